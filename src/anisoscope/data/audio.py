"""Batches of sound: clips of recordings, resampled to the model's rate."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from anisoscope.data.token_table import (
    Batch,
    TokenTable,
    group_consecutive,
    make_batch,
    require_positive,
    table_without_ids,
    window_table,
)
from anisoscope.errors import InputError
from anisoscope.extras import needs
from anisoscope.models.sources import named_files
from anisoscope.store.files import parse_errors

AUDIO_SUFFIXES = (".wav", ".flac", ".ogg", ".mp3", ".aiff", ".aif")

# Most models of raw sound were trained at this rate; used for folders without a feature extractor.
DEFAULT_RATE = 16_000

# Shorter clips have fewer frames than the first convolutions of any model need.
_MIN_SECONDS = 0.1

# Limits on what a header may claim.
_MAX_CHANNELS = 64
_MAX_FACTOR = 1 << 17  # of resampling: the filter has about 100 taps per unit (441 from 44,100 to 16,000 Hz)
_MAX_TRANSCRIPT = 1 << 20  # characters

# Zero crossings of the resampling filter on each side, and the shape of its Kaiser window (stop band below -100 dB).
_ZERO_CROSSINGS, _KAISER_BETA = 48, 12.0


@dataclass(frozen=True)
class Clip:
    """A part of a recording at the model's rate, and its transcript if known."""

    number: int
    sound: Tensor  # (samples,)
    transcript: str | None


def audio_batches(
    processor: Any,
    source: str | Path | Iterable[str | Path],
    *,
    batch: int = 4,
    seconds: float | None = None,
    decoder_start: int | None = None,
    decoder_window: int = 448,
) -> Iterator[Batch]:
    """Read recordings in clips; each clip is one document.

    Only clips of equal length share a batch, so raw sound is never padded. Feature extractors with a fixed length
    (Whisper) do pad; frames of padding are not counted.

    Args:
        processor: the model's processor or feature extractor; None for 16 kHz, zero mean and unit variance.
        source: a folder, a file or a list of files.
        batch: clips per batch.
        seconds: longest clip; by default what the feature extractor takes, or 10.
        decoder_start: id of the decoder's start token. The decoder then also gets the transcript `clip.txt` that is
            stored next to `clip.wav`, if there is one.
        decoder_window: longest input of the decoder in tokens.
    """
    require_positive(batch=batch, seconds=seconds)
    extractor = getattr(processor, "feature_extractor", processor)
    tokenizer = getattr(processor, "tokenizer", None)
    longest = getattr(extractor, "chunk_length", None)
    if seconds is not None and longest is not None and seconds > longest:
        raise InputError(
            f"Clips of {seconds} s are longer than the {longest} s that the model takes. Use at most that."
        )
    rate = DEFAULT_RATE if extractor is None else int(extractor.sampling_rate)
    files = named_files(source, AUDIO_SUFFIXES)
    clips = _clips(files, rate, seconds or longest or 10.0)
    groups = group_consecutive(clips, batch, key=lambda clip: len(clip.sound))
    return (_batch(group, extractor, tokenizer, decoder_start, decoder_window) for group in groups)


def resample(sound: Tensor, rate: int, to: int) -> Tensor:
    """Resample sound (samples,) from `rate` to `to` samples per second, with a Kaiser-windowed sinc filter.

    The filter is longer than scipy's default one, which lets 3 % of an inaudible 9 kHz tone through at 16 kHz.

    Example: one second of a 440 Hz sine at 44,100 Hz becomes the same sine in 16,000 samples.
    """
    if rate == to:
        return sound
    from scipy.signal import firwin, resample_poly

    common = math.gcd(rate, to)
    up, down = to // common, rate // common
    widest = max(up, down)
    kernel = firwin(2 * _ZERO_CROSSINGS * widest + 1, 1 / widest, window=("kaiser", _KAISER_BETA))  # (taps,)
    x = sound.numpy()  # (samples,)
    return torch.from_numpy(resample_poly(x, up, down, window=kernel.astype(x.dtype)))


def _clips(files: list[Path], rate: int, seconds: float) -> Iterator[Clip]:
    number = 0
    for file in files:
        before = number
        for sound, whole in _recording(file, rate, seconds):
            # The transcript of a longer recording cannot be assigned to its parts.
            yield Clip(number, sound, _transcript(file) if whole else None)
            number += 1
        if number == before:
            raise InputError(f"{file} is shorter than {_MIN_SECONDS} s. Remove it or use a longer recording.")


def _transcript(file: Path) -> str | None:
    text_file = file.with_suffix(".txt")
    if not text_file.is_file():
        return None
    with parse_errors(text_file, "save the transcript as UTF-8 text"), text_file.open(encoding="utf-8") as text:
        return text.read(_MAX_TRANSCRIPT).strip()


def _recording(file: Path, rate: int, seconds: float) -> Iterator[tuple[Tensor, bool]]:
    """Yield mono clips (samples,) at `rate`, each with whether it is the whole recording.

    A last clip that is too short to measure is left out.
    """
    with needs("audio", "reading recordings"):
        import soundfile

    with parse_errors(file, "remove or replace it"), soundfile.SoundFile(file) as recording:
        _require_readable(file, recording.samplerate, recording.channels, rate)
        frames = max(1, round(seconds * recording.samplerate))
        for block in recording.blocks(blocksize=frames, dtype="float32", always_2d=True):  # (frames, channels)
            if len(block) >= _MIN_SECONDS * recording.samplerate:
                sound = torch.from_numpy(block.mean(axis=1))
                yield resample(sound, recording.samplerate, rate), recording.frames <= frames


def _require_readable(file: Path, rate: int, channels: int, to: int) -> None:
    """Refuse rates and channels that no recording has: memory is allocated according to them."""
    if not 1_000 <= rate <= 1_000_000 or channels > _MAX_CHANNELS:
        raise InputError(
            f"{file} claims {rate:,} samples per second in {channels} channels, so it is damaged. Remove or replace it."
        )
    if max(rate, to) // math.gcd(rate, to) > _MAX_FACTOR:
        raise InputError(f"{file} has {rate:,} samples per second, an unusual rate. Convert it to {to:,} first.")


def _batch(clips: list[Clip], extractor: Any, tokenizer: Any, decoder_start: int | None, decoder_window: int) -> Batch:
    document = torch.tensor([clip.number for clip in clips])  # (b,)
    sounds = torch.stack([clip.sound for clip in clips])  # (b, samples)
    inputs, counts = _plain_inputs(sounds) if extractor is None else _extracted(extractor, sounds)
    table = table_without_ids(document, counts)
    if decoder_start is None:
        return make_batch(table, inputs, "clips")
    decoder, ids = _decoder(clips, document, tokenizer, decoder_start, decoder_window)
    inputs |= {"decoder_input_ids": ids, "decoder_attention_mask": decoder.counts.long()}
    return make_batch(table, inputs, "clips", decoder)


def _plain_inputs(sounds: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    centred = sounds - sounds.mean(dim=1, keepdim=True)
    scaled = centred / (centred.square().mean(dim=1, keepdim=True) + 1e-7).sqrt()  # (b, samples)
    return {"input_values": scaled}, torch.ones(len(sounds), 1, dtype=torch.bool)


def _extracted(extractor: Any, sounds: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    """Return the model's inputs and which input frames (b, T) are not padding; T is 1 if nothing is padded."""
    options: dict[str, Any] = {"sampling_rate": extractor.sampling_rate, "return_tensors": "pt"}
    if "return_attention_mask" in inspect.signature(extractor.__call__).parameters:
        options["return_attention_mask"] = True
    inputs: dict[str, Tensor] = dict(extractor(list(sounds.numpy()), **options))
    mask = inputs.pop("attention_mask", None)
    if mask is None or bool(mask.all()):
        return inputs, torch.ones(len(sounds), 1, dtype=torch.bool)
    # Models whose extractor returns no mask by default (Whisper) attend to the padding and take no mask.
    if getattr(extractor, "return_attention_mask", False):
        inputs["attention_mask"] = mask
    return inputs, mask.bool()


def _decoder(clips: list[Clip], document: Tensor, tokenizer: Any, start: int, window: int) -> tuple[TokenTable, Tensor]:
    """Return the decoder's table and ids (b, T): start tokens and transcript, padded on the right."""
    start_ids = list(getattr(tokenizer, "prefix_tokens", None) or [start])
    rows = [start_ids + _words(tokenizer, clip.transcript) for clip in clips]
    lengths = torch.tensor([min(len(row), window) for row in rows])  # (b,)
    pad = getattr(tokenizer, "pad_token_id", None)
    ids = torch.full((len(rows), int(lengths.max())), start if pad is None else pad)  # (b, T)
    special = torch.zeros_like(ids, dtype=torch.bool)  # (b, T)
    special[:, : len(start_ids)] = True
    for row, tokens in enumerate(rows):
        ids[row, : lengths[row]] = torch.tensor(tokens[:window])
    return window_table(ids, lengths, document, torch.zeros_like(document), special), ids


def _words(tokenizer: Any, transcript: str | None) -> list[int]:
    if transcript is None or tokenizer is None:
        return []
    return list(tokenizer(transcript, add_special_tokens=False)["input_ids"])
