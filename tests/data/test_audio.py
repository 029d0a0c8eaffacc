"""Recordings are cut into clips and resampled; unreadable ones are named."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch

from anisoscope.data.audio import audio_batches, resample
from anisoscope.data.batches import model_batches
from anisoscope.data.token_table import table_of_length
from anisoscope.errors import InputError
from anisoscope.models.open import open_model
from tests import model_folders as made


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def sine(hertz: float, rate: int, seconds: float) -> np.ndarray[Any, np.dtype[np.float64]]:
    return np.asarray(np.sin(2 * np.pi * hertz * np.arange(round(rate * seconds)) / rate))


@pytest.mark.parametrize(
    ("rate", "to"), [(44_100, 16_000), (44_101, 16_000), (8_000, 16_000), (48_000, 16_000), (22_050, 16_000)]
)
def test_a_resampled_sine_is_the_same_sine(rate: int, to: int) -> None:
    result = resample(torch.from_numpy(sine(440, rate, 1)), rate, to)
    assert len(result) == to
    inner = slice(to // 10, -to // 10)
    assert np.abs(result.numpy() - sine(440, to, 1))[inner].max() < 1e-4


def test_frequencies_above_the_new_rate_are_removed() -> None:
    result = resample(torch.from_numpy(sine(12_000, 44_100, 1)), 44_100, 16_000)
    assert result[1600:-1600].abs().max() < 1e-3


@pytest.mark.parametrize("samples", [1, 2, 7, 160, 441, 443])
def test_a_resampled_clip_keeps_its_duration(samples: int) -> None:
    assert len(resample(torch.zeros(samples), 44_100, 16_000)) == -(-samples * 160 // 441)


@pytest.fixture
def recordings(tmp_path: Path) -> Path:
    folder = _made(tmp_path / "recordings")
    soundfile.write(folder / "a.wav", sine(440, 16_000, 0.5), 16_000)
    soundfile.write(folder / "b.flac", np.stack([sine(440, 8_000, 2.25)] * 2, axis=1), 8_000)
    (folder / "a.txt").write_text("the fox")
    return folder


def test_recordings_are_cut_into_clips_and_never_padded(recordings: Path) -> None:
    batches = list(audio_batches(None, recordings, batch=4, seconds=1))
    assert [tuple(b.inputs["input_values"].shape) for b in batches] == [(1, 8_000), (2, 16_000), (1, 4_000)]
    assert [b.document.flatten().tolist() for b in batches] == [[0], [1, 2], [3]]
    assert {b.unit for b in batches} == {"clips"}
    for batch in batches:
        values = batch.inputs["input_values"]
        assert torch.allclose(values.mean(dim=1), torch.zeros(len(values)), atol=1e-5)
        assert torch.allclose(values.std(dim=1), torch.ones(len(values)), atol=1e-3)


def test_a_raw_sound_model_reads_recordings_with_and_without_its_extractor(tmp_path: Path, recordings: Path) -> None:
    model = made.hf.Wav2Vec2Model(made.wav2vec2_config())
    plain = open_model(made.save(tmp_path / "plain", model))
    fitted = open_model(made.save(tmp_path / "fitted", model, made.hf.Wav2Vec2FeatureExtractor()))
    assert (plain.modality, plain.processor) == ("audio", None)
    for ours, theirs in zip(
        model_batches(plain, recordings, seconds=1), model_batches(fitted, recordings, seconds=1), strict=True
    ):
        assert torch.allclose(ours.inputs["input_values"], theirs.inputs["input_values"], atol=1e-4)
        states = fitted.model(**theirs.inputs).last_hidden_state
        assert table_of_length(theirs, states.shape[1]).counts.all()


def test_padding_to_a_fixed_length_does_not_count(tmp_path: Path, recordings: Path) -> None:
    words = made.byte_pairs(310)
    processor = made.hf.WhisperProcessor(made.whisper_extractor(), words)
    model = made.hf.WhisperForConditionalGeneration(made.whisper_config())
    opened = open_model(made.save(tmp_path / "whisper", model, processor))
    assert opened.modality == "audio"
    first, *rest = model_batches(opened, recordings)
    assert first.counts.shape == (1, 100)
    assert int(first.counts.sum()) == 50  # half a second of the fixed one
    outputs = opened.model(**first.inputs)
    assert int(table_of_length(first, outputs.encoder_last_hidden_state.shape[1]).counts.sum()) == 25
    assert first.decoder is not None
    assert first.decoder.token[0].tolist() == [1, *words("the fox", add_special_tokens=False)["input_ids"]]
    assert first.decoder.special[0].tolist() == [True] + [False] * (first.decoder.token.shape[1] - 1)
    assert all(batch.decoder is not None and batch.decoder.token.shape[1] == 1 for batch in rest)


def test_a_recording_that_cannot_be_used_is_named(recordings: Path) -> None:
    soundfile.write(recordings / "c.wav", np.zeros(100), 16_000)
    with pytest.raises(InputError, match=r"c\.wav is shorter than"):
        list(audio_batches(None, recordings, seconds=1))
    (recordings / "c.wav").write_bytes(b"noise")
    with pytest.raises(InputError, match=r"c\.wav: cannot be read"):
        list(audio_batches(None, recordings, seconds=1))
    with pytest.raises(InputError, match="longer than the 1 s that the model takes"):
        audio_batches(made.whisper_extractor(), recordings, seconds=3)


def wav(rate: int, channels: int, frames: int = 16_000, claimed: int | None = None) -> bytes:
    data = bytes(2 * channels * min(frames, 1 << 16))
    size = len(data) if claimed is None else claimed
    form = struct.pack("<HHIIHH", 1, channels, rate, min(rate * channels * 2, 2**32 - 1), channels * 2 % 65536, 16)
    body = b"WAVEfmt " + struct.pack("<I", 16) + form + b"data" + struct.pack("<I", size) + data
    return b"RIFF" + struct.pack("<I", min(len(body), 2**32 - 1)) + body


def test_a_recording_that_claims_hours_gives_what_it_holds(tmp_path: Path) -> None:
    (tmp_path / "a.wav").write_bytes(wav(16_000, 1, frames=32_000, claimed=2**32 - 100))
    assert sum(len(batch.inputs["input_values"]) for batch in audio_batches(None, tmp_path / "a.wav", seconds=1)) == 2


def test_a_transcript_must_be_text(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "a.wav", np.zeros(16_000), 16_000)
    (tmp_path / "a.txt").write_bytes(b"\xff\xfe\xfa")
    with pytest.raises(InputError, match=r"a\.txt"):
        list(audio_batches(None, tmp_path / "a.wav", decoder_start=1))
