"""The header of a run and its folder: what can become a run, and what is not one."""

from __future__ import annotations

import math
import os
import sys
from pathlib import Path

import numpy as np
import pytest

from anisoscope.errors import AnisoscopeError, InputError, StoreError
from anisoscope.store.run import Run
from tests.run_samples import full_run, record


def test_a_kill_while_run_json_is_replaced_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def kill(*_: object) -> None:
        raise KeyboardInterrupt

    with Run.create(tmp_path / "r", info={"a": 1}) as run:
        monkeypatch.setattr(os, "replace", kill)
        with pytest.raises(KeyboardInterrupt):
            run.update_info(a=2)
        assert run.info == Run.open(tmp_path / "r").info == {"a": 1}
    assert not list((tmp_path / "r").glob("*.tmp"))


def test_a_run_killed_before_its_run_json_can_be_created_again(tmp_path: Path) -> None:
    (tmp_path / "r").mkdir()
    for name in ("lock", ".run.1.tmp"):
        (tmp_path / "r" / name).write_text("1")
    with Run.create(tmp_path / "r") as run:
        run.append([record()])


def test_an_existing_run_is_not_overwritten(tmp_path: Path) -> None:
    Run.create(tmp_path / "r").close()
    with pytest.raises(StoreError, match=r"is already a run\. Resume it"):
        Run.create(tmp_path / "r")


def test_a_folder_with_other_files_does_not_become_a_run(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("")
    for resume in (False, True):
        with pytest.raises(StoreError, match="not empty and not a run"):
            Run.create(tmp_path, resume=resume)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_what_is_not_a_run_cannot_be_opened(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for name in ("missing", "file", "."):
        with pytest.raises(StoreError, match="is not a run"):
            Run.open(tmp_path / name)
    with pytest.raises(StoreError, match="cannot create"):
        Run.create(tmp_path / "file")
    with pytest.raises(AnisoscopeError):
        Run.open("a\0b")


def test_a_run_cannot_have_the_name_of_a_path(tmp_path: Path) -> None:
    for name in ("..", "", "a/b", "a\\b", "a\nb"):
        with pytest.raises(InputError, match="cannot be the name of a run"):
            Run.create(tmp_path / "r", name=name)
    assert not (tmp_path / "r").exists()


def test_info_that_is_not_json_is_refused_and_the_old_info_stays(tmp_path: Path) -> None:
    with Run.create(tmp_path / "r", info={"a": 1}) as run:
        for bad in (object(), math.nan, {1, 2}, "\ud800"):
            with pytest.raises(InputError, match="cannot be JSON"):
                run.update_info(a=bad)
        assert run.info == Run.open(tmp_path / "r").info == {"a": 1}


@pytest.mark.parametrize(
    "text",
    [
        "nonsense",
        "",
        "[]",
        "{}",
        '{"format": 2}',
        '{"format": 1, "name": "r", "created": "", "anisoscope": "", "command": null, "info": []}',
        '{"format": 1, "name": "../../x", "created": "", "anisoscope": "", "command": null, "info": {}}',
        '{"format": 1, "name": 3, "created": "", "anisoscope": "", "command": null, "info": {}}',
        '{"format": 1, "name": "r", "created": "", "anisoscope": "", "command": null, "info": {"a": NaN}}',
        "[" * 100_000,
        " " * (17 << 20),
    ],
)
def test_a_damaged_run_json_is_a_store_error(tmp_path: Path, text: str) -> None:
    Run.create(tmp_path / "r").close()
    (tmp_path / "r" / "run.json").write_text(text)
    with pytest.raises(StoreError, match=r"run\.json cannot be read"):
        Run.open(tmp_path / "r")
    with pytest.raises(StoreError, match=r"run\.json cannot be read"):
        Run.create(tmp_path / "r", resume=True)


@pytest.mark.skipif(sys.platform == "win32", reason="links need rights on Windows")
@pytest.mark.parametrize("name", ["run.json", "records.jsonl", "replicates.jsonl", "stats", "lock"])
@pytest.mark.parametrize("kind", ["link", "dangling link", "pipe", "folder"])
def test_links_pipes_and_folders_in_place_of_files_are_refused_without_hanging(
    tmp_path: Path, name: str, kind: str
) -> None:
    Run.create(tmp_path / "r").close()
    precious = tmp_path / ("precious" if name != "stats" else "folder")
    precious.write_text("precious") if name != "stats" else precious.mkdir()
    place = tmp_path / "r" / name
    place.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(place)
    elif kind == "folder":
        place.mkdir() if name != "stats" else place.write_text("")
    else:
        place.symlink_to(precious if kind == "link" else tmp_path / "nothing")

    def use() -> None:
        with Run.create(tmp_path / "r", resume=True) as run:
            run.append([record()], [[1.0]])
            run.save_statistics(0, "embed", "all", {"x": np.zeros(1)})

    with pytest.raises(StoreError):
        use()
    if name in ("records.jsonl", "replicates.jsonl"):
        with pytest.raises(StoreError):
            Run.open(tmp_path / "r").replicates()
    if name == "stats":
        run = Run.open(tmp_path / "r")
        with pytest.raises(StoreError):
            run.statistics()
        with pytest.raises(StoreError):
            run.load_statistics(0, "embed", "all")
        assert not precious.exists() or list(precious.iterdir()) == []
    else:
        assert precious.read_text() == "precious"
    assert not (tmp_path / "nothing").exists()


@pytest.mark.skipif(sys.platform == "win32", reason="links need rights on Windows")
def test_a_link_to_a_run_folder_is_accepted(tmp_path: Path) -> None:
    full_run(tmp_path / "r")
    (tmp_path / "latest").symlink_to(tmp_path / "r")
    assert len(list(Run.open(tmp_path / "latest").records())) == 3
