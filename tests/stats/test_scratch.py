"""Scratch folders are deleted, and the room of several collectors adds up to that of all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from anisoscope.stats.scratch import Room, Scratch, link_or_copy, remove_stale


def test_a_scratch_folder_is_deleted_with_its_object(tmp_path: Path) -> None:
    path = Scratch(tmp_path).path
    assert not path.exists()


def test_stale_folders_are_removed_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "scratch-left" / "inside").mkdir(parents=True)
    (tmp_path / "partial-1").mkdir()
    remove_stale(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["partial-1"]


def test_rooms_of_several_collectors_fit_into_the_whole(tmp_path: Path) -> None:
    room = Room(blocks=1000, open=500, parent=tmp_path)
    assert room.shared(3) == Room(333, 166, tmp_path)


def test_a_file_is_copied_if_it_cannot_be_linked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_text("x")
    link_or_copy(tmp_path / "a", tmp_path / "b")
    assert (tmp_path / "b").stat().st_ino == (tmp_path / "a").stat().st_ino

    def refuse(*_: object) -> None:
        raise OSError(18, "another file system")

    monkeypatch.setattr(os, "link", refuse)
    link_or_copy(tmp_path / "a", tmp_path / "b")
    assert (tmp_path / "b").read_text() == "x"
    assert (tmp_path / "b").stat().st_ino != (tmp_path / "a").stat().st_ino
