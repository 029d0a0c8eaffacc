"""Scores become words of midisimx: ties are joined, unknown notes left out, times counted in ticks of 32 ms."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from anisoscope.studies.atlas.music_words import known_chords, music_tokenizer, score_notes, score_texts, score_words

CHORDS = "ALL_CHORDS_SORTED = [[0], [0, 4],\n    [0, 4, 7], [4], [7]]\n"


def note(step: str, octave: int, duration: int, extra: str = "") -> str:
    pitch = f"<pitch><step>{step}</step><octave>{octave}</octave></pitch>"
    return f"<note>{extra}{pitch}<duration>{duration}</duration></note>"


def score(file: Path, *parts: str) -> Path:
    """Write a compressed score with two divisions per quarter note."""
    divisions = "<attributes><divisions>2</divisions></attributes>"
    body = "".join(f"<part><measure>{divisions}{part}</measure></part>" for part in parts)
    with zipfile.ZipFile(file, "w") as zipped:
        zipped.writestr("META-INF/container.xml", "<container/>")
        zipped.writestr("score.musicxml", f"<score-partwise>{body}</score-partwise>")
    return file


def test_notes_have_starts_and_durations_in_ticks(tmp_path: Path) -> None:
    rest = "<note><rest/><duration>2</duration></note>"
    sharp = "<note><pitch><step>F</step><alter>1</alter><octave>4</octave></pitch><duration>1</duration></note>"
    upper = note("C", 5, 2) + note("E", 5, 2, "<chord/>") + rest + sharp
    lower = note("C", 4, 4) + "<backup><duration>4</duration></backup>" + note("G", 3, 1)
    assert score_notes(score(tmp_path / "a.mxl", upper, lower)) == [
        (0, 8, 55),
        (0, 16, 72),
        (0, 16, 76),
        (0, 32, 60),
        (32, 8, 66),
    ]


def test_tied_notes_are_one_and_a_note_ends_when_its_pitch_sounds_again(tmp_path: Path) -> None:
    tied = note("C", 4, 2, '<tie type="start"/>') + note("C", 4, 2, '<tie type="stop"/>')
    assert score_notes(score(tmp_path / "tied.mxl", tied)) == [(0, 32, 60)]
    again = note("E", 4, 1) + note("C", 4, 1)
    assert score_notes(score(tmp_path / "again.mxl", note("C", 4, 4), again)) == [(0, 8, 60), (0, 8, 64), (8, 8, 60)]


def test_chords_are_read_from_the_source_without_running_it(tmp_path: Path) -> None:
    (tmp_path / "chords.py").write_text("raise SystemExit\n" + CHORDS)
    assert known_chords(tmp_path / "chords.py")[2] == (0, 4, 7)
    (tmp_path / "chords.py").write_text("OTHER = []\n")
    with pytest.raises(ValueError, match="lists no chords"):
        known_chords(tmp_path / "chords.py")


def test_notes_outside_the_largest_known_chord_are_left_out() -> None:
    chords = [(0,), (0, 4), (0, 4, 7)]
    assert score_words([(0, 16, 60), (0, 16, 61), (0, 16, 64)], chords) == "0 397 192 272 188 272"
    assert score_words([(0, 16, 60), (200, 300, 72)], chords) == "0 384 188 272 127 384 200 383"


def test_scores_are_taken_at_equal_distances_and_their_words_are_known(tmp_path: Path) -> None:
    (tmp_path / "chords.py").write_text(CHORDS)
    files = [score(tmp_path / f"{name}.mxl", note(step, 4, 2)) for name, step in zip("abcd", "CEGC", strict=True)]
    texts = list(score_texts([tmp_path / "chords.py", *files], count=2))
    assert texts == ["0 384 188 272", "0 391 195 272"]
    assert music_tokenizer()(texts[1])["input_ids"] == [0, 391, 195, 272]
