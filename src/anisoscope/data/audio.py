"""Sound into batches: clips of recordings, resampled to the model's rate."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from anisoscope.data.token_table import Batch, TokenTable, item_table, require_positive, runs, window_table, with_inputs
from anisoscope.errors import InputError
from anisoscope.models.sources import named_files
from anisoscope.store.files import understood

SOUNDS = (".wav", ".flac", ".ogg", ".mp3", ".aiff", ".aif")

# What nearly all models of raw sound were trained on; used where a folder has no feature extractor.
PLAIN_RATE = 16_000

# Shorter clips have fewer frames than any model's first convolutions need.
_SHORTEST = 0.1

# What a header may claim: channels, and weights of the resampling kernel (from 44,100 to 16,000 Hz it has 70,560).
_CHANNELS, _WEIGHTS = 64, 1 << 25
_TRANSCRIPT = 1 << 20  # characters of what is said in a clip

# Zero crossings of the resampling kernel on each side, and the shape of its Kaiser window (stop band below -100 dB).
_CROSSINGS, _KAISER = 48, 12.0


@dataclass(frozen=True)
class Clip:
    """A stretch of a recording at the model's rate, and what is said in it where that is known."""

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
    """The recordings of a folder or a list of files in clips of at most `seconds`, `batch` at a time, each a document.

    Only clips of equal length share a batch, so raw sound is never padded; extractors with a fixed length (Whisper)
    pad, and their frames of silence do not count. With `decoder_start` the decoder gets its start tokens, and the
    transcript if `clip.txt` lies beside `clip.wav`. Without a processor: 16 kHz, zero mean and unit variance.
    """
    require_positive(batch=batch, seconds=seconds)
    extractor = getattr(processor, "feature_extractor", processor)
    tokenizer = getattr(processor, "tokenizer", None)
    longest = getattr(extractor, "chunk_length", None)
    if seconds is not None and longest is not None and seconds > longest:
        raise InputError(f"clips of {seconds} s are longer than the model's {longest} s; give at most that")
    rate = PLAIN_RATE if extractor is None else int(extractor.sampling_rate)
    files = named_files(source, SOUNDS)
    clips = _clips(files, rate, seconds or longest or 10.0)
    groups = runs(clips, batch, key=lambda clip: len(clip.sound))
    return (_batch(group, extractor, tokenizer, decoder_start, decoder_window) for group in groups)


def resample(sound: Tensor, rate: int, to: int) -> Tensor:
    """Sound (samples,) at another rate: the band-limited signal, evaluated at the new times.

    y(n) = Σ_m x(m) c·sinc(c(t_n - m)) w(t_n - m), t_n = n·rate/to, with c = min(1, to/rate) and a Kaiser window w.
    The weights repeat after `to / gcd` outputs, so that a strided convolution with one kernel for each gives them all.
    Example: a second of a 440 Hz sine at 44,100 Hz becomes the same sine in 16,000 samples.
    """
    if rate == to:
        return sound
    common = math.gcd(rate, to)
    stride, phases = rate // common, to // common
    cutoff = min(1.0, to / rate)
    reach = math.ceil(_CROSSINGS / cutoff)  # input samples on each side
    taps = torch.arange(-reach, stride + reach + 1, dtype=torch.float64)  # (k,)
    times = torch.arange(phases, dtype=torch.float64) * stride / phases  # (phases,)
    distance = times[:, None] - taps  # (phases, k)
    window = torch.special.i0(_KAISER * (1 - (distance / reach).square()).clamp(min=0).sqrt())
    window = torch.where(distance.abs() <= reach, window, 0) / torch.special.i0(torch.tensor(_KAISER))
    kernel = (cutoff * torch.sinc(cutoff * distance) * window).to(sound.dtype)[:, None]  # (phases, 1, k)
    length = -(-len(sound) * phases // stride)
    periods = -(-length // phases)
    padded = torch.nn.functional.pad(sound, (reach, periods * stride + reach + 1 - len(sound)))
    frames = torch.nn.functional.conv1d(padded[None, None], kernel, stride=stride)[0]  # (phases, periods or more)
    return frames.T.reshape(-1)[:length]


def _clips(files: list[Path], rate: int, seconds: float) -> Iterator[Clip]:
    number = 0
    for file in files:
        before = number
        for sound, whole in _recording(file, rate, seconds):
            # Which words belong to which part of a longer recording is not known.
            yield Clip(number, sound, _transcript(file) if whole else None)
            number += 1
        if number == before:
            raise InputError(f"{file} is shorter than {_SHORTEST} s; remove it or give a longer recording")


def _transcript(file: Path) -> str | None:
    beside = file.with_suffix(".txt")
    if not beside.is_file():
        return None
    with understood(beside, "write what is said as UTF-8 text"), beside.open(encoding="utf-8") as text:
        return text.read(_TRANSCRIPT).strip()


def _recording(file: Path, rate: int, seconds: float) -> Iterator[tuple[Tensor, bool]]:
    """A recording in mono clips (samples,) at `rate`, read one at a time, each with whether it is all of it.

    A tail that is too short to measure is left out.
    """
    import soundfile

    with understood(file, "remove or replace it"), soundfile.SoundFile(file) as recording:
        _require_readable(file, recording.samplerate, recording.channels, rate)
        frames = max(1, round(seconds * recording.samplerate))
        for block in recording.blocks(blocksize=frames, dtype="float32", always_2d=True):  # (frames, channels)
            if len(block) >= _SHORTEST * recording.samplerate:
                sound = torch.from_numpy(block.mean(axis=1))
                yield resample(sound, recording.samplerate, rate), recording.frames <= frames


def _require_readable(file: Path, rate: int, channels: int, to: int) -> None:
    """Refuse what a header may claim but no recording has: memory is asked for by its rate and channels."""
    if not 1_000 <= rate <= 1_000_000 or channels > _CHANNELS:
        raise InputError(f"{file} claims {rate:,} samples a second in {channels} channels; remove or replace it")
    common = math.gcd(rate, to)
    if (rate // common) * (to // common) > _WEIGHTS:
        # Both rates share no large divisor, so that every sample would need weights of its own.
        raise InputError(f"{file} has {rate:,} samples a second, which do not go into {to:,}; resample it first")


def _batch(clips: list[Clip], extractor: Any, tokenizer: Any, decoder_start: int | None, decoder_window: int) -> Batch:
    document = torch.tensor([clip.number for clip in clips])  # (b,)
    sounds = torch.stack([clip.sound for clip in clips])  # (b, samples)
    inputs, counts = _plain_inputs(sounds) if extractor is None else _extracted(extractor, sounds)
    table = item_table(document, counts)
    if decoder_start is None:
        return with_inputs(table, inputs, "clips")
    decoder, ids = _decoder(clips, document, tokenizer, decoder_start, decoder_window)
    inputs |= {"decoder_input_ids": ids, "decoder_attention_mask": decoder.counts.long()}
    return with_inputs(table, inputs, "clips", decoder)


def _plain_inputs(sounds: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    centred = sounds - sounds.mean(dim=1, keepdim=True)
    scaled = centred / (centred.square().mean(dim=1, keepdim=True) + 1e-7).sqrt()  # (b, samples)
    return {"input_values": scaled}, torch.ones(len(sounds), 1, dtype=torch.bool)


def _extracted(extractor: Any, sounds: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    """The model's inputs and which input frames (b, T) are sound; T is 1 where nothing is padded."""
    options: dict[str, Any] = {"sampling_rate": extractor.sampling_rate, "return_tensors": "pt"}
    if "return_attention_mask" in inspect.signature(extractor.__call__).parameters:
        options["return_attention_mask"] = True
    inputs: dict[str, Tensor] = dict(extractor(list(sounds.numpy()), **options))
    mask = inputs.pop("attention_mask", None)
    if mask is None or bool(mask.all()):
        return inputs, torch.ones(len(sounds), 1, dtype=torch.bool)
    # Models whose extractor gives no mask on its own (Whisper) attend to the padding and take no mask.
    if getattr(extractor, "return_attention_mask", False):
        inputs["attention_mask"] = mask
    return inputs, mask.bool()


def _decoder(clips: list[Clip], document: Tensor, tokenizer: Any, start: int, window: int) -> tuple[TokenTable, Tensor]:
    """The decoder's table and ids (b, T): its start tokens and the transcript, padded on the right."""
    opening = list(getattr(tokenizer, "prefix_tokens", None) or [start])
    rows = [opening + _words(tokenizer, clip.transcript) for clip in clips]
    lengths = torch.tensor([min(len(row), window) for row in rows])  # (b,)
    pad = getattr(tokenizer, "pad_token_id", None)
    ids = torch.full((len(rows), int(lengths.max())), start if pad is None else pad)  # (b, T)
    special = torch.zeros_like(ids, dtype=torch.bool)  # (b, T)
    special[:, : len(opening)] = True
    for row, tokens in enumerate(rows):
        ids[row, : lengths[row]] = torch.tensor(tokens[:window])
    return window_table(ids, lengths, document, torch.zeros_like(document), special), ids


def _words(tokenizer: Any, transcript: str | None) -> list[int]:
    if transcript is None or tokenizer is None:
        return []
    return list(tokenizer(transcript, add_special_tokens=False)["input_ids"])
