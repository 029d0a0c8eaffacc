"""Scores as the words of midisimx: the time since the last chord, the chord, then pitch and duration of each note.

This is the order in its description. Its own reader writes the chord before the time, which its model does not know:
it then restores 40 % of masked words instead of 80 %.
"""

from __future__ import annotations

import ast
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations, groupby
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

VOCABULARY = 720
_PITCH, _DURATION, _NOTE, _CHORD = 128, 256, 384, 396  # first number of each kind of word; times start at 0
_MASK, _PAD = 718, 719
_LONGEST = 127  # ticks
_QUARTER = 16  # ticks of 32 ms in a quarter note: 117 beats per minute
_STEPS = {"C": 0, "D": 2, "E": 4, "F": 5, "G": 7, "A": 9, "B": 11}

Note = tuple[int, int, int]  # start and duration in ticks, pitch


def score_texts(files: list[Path], *, count: int) -> Iterable[str]:
    """Return scores as words, one text per score.

    Args:
        files: The source file that lists the chords, and compressed MusicXML files.
        count: How many scores, taken at equal distances.
    """
    chords = known_chords(next(file for file in files if file.suffix == ".py"))
    scores = sorted(file for file in files if file.suffix == ".mxl")
    return [score_words(score_notes(file), chords) for file in scores[:: max(1, len(scores) // count)][:count]]


def known_chords(source: Path) -> list[tuple[int, ...]]:
    """Return the chords that midisimx knows, as sets of pitch classes, from its source file, which is not run."""
    for node in ast.parse(source.read_text("utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "ALL_CHORDS_SORTED":
            return [tuple(chord) for chord in ast.literal_eval(node.value)]
    raise ValueError(f"{source.name} lists no chords.")


def score_notes(file: Path) -> list[Note]:
    """Return the notes of a compressed MusicXML file; tied notes are one, repeats are played once."""
    with zipfile.ZipFile(file) as zipped:
        name = next(n for n in zipped.namelist() if n.endswith((".xml", ".musicxml")) and not n.startswith("META-INF"))
        root = ElementTree.fromstring(zipped.read(name))
    notes = {(start, pitch): long for part in root.iter("part") for start, long, pitch in _notes_of_part(part)}
    following: dict[int, int] = {}  # when each pitch sounds again
    trimmed = []
    for start, pitch in sorted(notes, reverse=True):
        trimmed.append((start, min(notes[start, pitch], following.get(pitch, start + _LONGEST) - start), pitch))
        following[pitch] = start
    return sorted(trimmed)


def _notes_of_part(part: ElementTree.Element) -> Iterator[Note]:
    unit, now, began = 1.0, 0.0, 0.0  # divisions of a quarter note; the time, and that of the last note, in quarters
    tied: dict[int, float] = {}  # when each pitch that is tied to a later note started
    for element in part.iter():
        if element.tag == "divisions":
            unit = float(element.text or 1)
        elif element.tag in ("backup", "forward"):
            now += _duration(element, unit) * (1 if element.tag == "forward" else -1)
        elif element.tag == "note" and element.find("grace") is None:
            long = _duration(element, unit)
            start = began if element.find("chord") is not None else now
            began, now = start, max(now, start + long)
            if (pitch := _pitch(element)) is None:
                continue
            ties = {tie.get("type") for tie in element.findall("tie")}
            first = tied.pop(pitch, start) if "stop" in ties else start
            if "start" in ties:
                tied[pitch] = first
            else:
                yield _ticks(first), max(1, _ticks(start + long) - _ticks(first)), pitch


def _duration(element: ElementTree.Element, unit: float) -> float:
    return float(element.findtext("duration") or 0) / unit


def _pitch(note: ElementTree.Element) -> int | None:
    """Return the number of a note, 60 for the middle C; None for a rest."""
    pitch = note.find("pitch")
    if pitch is None:
        return None
    alter = round(float(pitch.findtext("alter") or 0))
    return 12 * (int(pitch.findtext("octave") or 4) + 1) + _STEPS[pitch.findtext("step") or "C"] + alter


def _ticks(quarters: float) -> int:
    return round(quarters * _QUARTER)


def score_words(notes: Sequence[Note], chords: Sequence[tuple[int, ...]]) -> str:
    """Return the words of a score; notes outside the largest known chord of their moment are left out.

    >>> score_words([(0, 16, 60), (0, 16, 64), (16, 8, 62)], [(0,), (0, 4), (2,)])
    '0 397 192 272 188 272 16 386 190 264'
    """
    words: list[int] = []
    before: int | None = None
    for start, group in groupby(sorted(notes), key=lambda note: note[0]):
        played = sorted(group, key=lambda note: -note[2])
        classes = _known_part(sorted({pitch % 12 for _, _, pitch in played}), chords)
        kept = [(long, pitch) for _, long, pitch in played if pitch % 12 in classes]
        chord = _CHORD + chords.index(classes) if len(kept) > 1 else _NOTE + classes[0]
        words += [min(_LONGEST, start - (start if before is None else before)), chord]
        for long, pitch in kept:
            words += [_PITCH + pitch, _DURATION + min(_LONGEST, long)]
        before = start
    return " ".join(map(str, words))


def _known_part(classes: Sequence[int], chords: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """Return the first of the largest parts of a set of pitch classes that is a known chord."""
    parts = (part for size in range(len(classes), 0, -1) for part in combinations(classes, size))
    return next(part for part in parts if part in chords)


def music_tokenizer() -> Any:
    """Return the tokenizer of the words, which are the numbers of their rows in the embedding."""
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers

    names = {_MASK: "[MASK]", _PAD: "[PAD]"}
    vocabulary = {names.get(number, str(number)): number for number in range(VOCABULARY)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[PAD]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]", mask_token="[MASK]")
