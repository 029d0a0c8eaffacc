"""Large scratch files are announced after the first batch, and refused if the disk is too small."""

from __future__ import annotations

import shutil
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest

import anisoscope
from anisoscope.errors import InputError
from anisoscope.measurement.holdings import Holdings
from anisoscope.measurement.site_statistics import SiteShape
from anisoscope.stats.scratch import Room

Usage = namedtuple("Usage", "total used free")


def test_memory_is_bounded_whatever_the_number_of_layers_and_tokens() -> None:
    for layers in (6, 32, 80, 200):
        for width in (64, 576, 4096):
            shapes = [SiteShape(1, width, 4)] * layers
            held = Holdings(shapes, 4096, 256, 2, 1024, 32, Room(), layers)
            assert held.memory <= Room().open + Room().blocks, (layers, width)
            assert held.memory + held.scratch >= layers * 32 * 2 * 8 * width**2
            assert held.memory + held.evaluation < 1.5e9


def test_the_announcement_counts_the_copies_of_an_unfinished_pass(
    folder: Path, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request: dict[str, Any] = {"text": text, "tokens": 256, "window": 32, "metrics": ["mean_cosine"], "errors": False}
    monkeypatch.setattr("anisoscope.measurement.holdings._WORTH_A_NOTE", 0)
    monkeypatch.setattr("anisoscope.measurement.holdings._gigabytes", lambda size: f"{size} bytes")
    notes: list[str] = []
    anisoscope.measure(folder, **request, on_note=notes.append)
    anisoscope.measure(folder, **request, out=tmp_path / "run", on_note=notes.append)
    alone, resumable = (int(note.split()[2]) for note in notes)
    assert alone == 0, "everything fits into memory"
    assert resumable > 0, "and is saved from there, so that the run can be resumed"


def test_large_scratch_files_are_announced_and_refused_if_the_disk_is_too_small(
    folder: Path, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request: dict[str, Any] = {"text": text, "tokens": 256, "window": 32, "metrics": ["mean_cosine"], "errors": False}
    notes: list[str] = []
    anisoscope.measure(folder, **request, on_note=notes.append)
    assert notes == [], "small ones are not worth a note"
    monkeypatch.setattr("anisoscope.measurement.engine.Room", lambda parent: Room(0, 0, parent))
    monkeypatch.setattr("anisoscope.measurement.holdings._WORTH_A_NOTE", 0)
    anisoscope.measure(folder, **request, out=tmp_path / "run", on_note=notes.append)
    [note] = notes
    assert note.startswith("Up to 0.0 GB of scratch files in ")
    assert str(tmp_path / "run") in note
    assert not list((tmp_path / "run").glob("scratch-*")), "they are deleted"
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(10, 10, 0))
    with pytest.raises(InputError, match=r"scratch files are needed in .*which has 0\.0 GB free"):
        anisoscope.measure(folder, **request, out=tmp_path / "full")
