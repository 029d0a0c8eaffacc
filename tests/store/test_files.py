"""Files that survive kills, full disks and crafted folders."""

from __future__ import annotations

import os
import random
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from anisoscope.errors import StoreError
from anisoscope.store import files as disk
from anisoscope.store.run import Run, record_key
from tests.run_samples import python, record

WRITER = """
import itertools, sys
from anisoscope.records import Record
from anisoscope.store.run import Run
with Run.create(sys.argv[1], resume=True) as run:
    first = 1 + max((r.step for r in run.records()), default=-1)
    for lot in itertools.count():
        steps = range(first + 40 * lot, first + 40 * lot + 40)
        records = [Record("resid.0", "isoscore", i / 7, step=i, note="x" * (i % 900)) for i in steps]
        run.append(records, [[float(i)] for i in steps])
        print(steps[-1], flush=True)  # this lot was reported as done
"""


def test_a_writer_killed_at_any_moment_leaves_complete_lines_and_the_next_one_continues(tmp_path: Path) -> None:
    chance = random.Random(0)
    for _ in range(10):
        writer = python(WRITER, tmp_path / "r")
        assert writer.stdout is not None
        writer.stdout.readline()  # it writes now
        time.sleep(chance.uniform(0, 0.05))
        writer.kill()
        promised = [int(line) for line in writer.communicate()[0].splitlines()]
        run = Run.open(tmp_path / "r")
        steps = [r.step for r in run.records()]
        assert steps == list(range(len(steps)))
        assert all(step < len(steps) for step in promised)
        assert set(run.replicates()) == {record_key(r) for r in run.records()}


def test_a_file_cut_at_any_byte_has_its_complete_lines_and_accepts_the_next_append(tmp_path: Path) -> None:
    with Run.create(tmp_path / "r") as run:
        run.append([record(i, note="é" * i) for i in range(4)])
    path = tmp_path / "r" / "records.jsonl"
    whole = path.read_bytes()
    for cut in range(len(whole) + 1):
        path.write_bytes(whole[:cut])
        complete = whole[:cut].count(b"\n")
        assert [r.step for r in run.records()] == list(range(complete))
        if cut % 37 == 0:
            with Run.create(tmp_path / "r", resume=True) as again:
                again.append([record(9)])
            assert [r.step for r in run.records()] == [*range(complete), 9]


def test_an_incomplete_line_longer_than_a_chunk_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "_CHUNK", 64)
    with Run.create(tmp_path / "r") as run:
        run.append([record(0), record(1)])
        with (tmp_path / "r" / "records.jsonl").open("a") as file:
            file.write("{" + "x" * 1000)
        assert [r.step for r in run.records()] == [0, 1]
        run.append([record(2)])
        assert [r.step for r in run.records()] == [0, 1, 2]
        assert (tmp_path / "r" / "records.jsonl").read_bytes().endswith(b"}\n")


@pytest.mark.parametrize("fails", ["write", "fsync"])
def test_a_full_disk_is_one_clear_line_and_the_run_stays_intact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with Run.create(tmp_path / "r") as run:
        run.append([record(0)])
        with monkeypatch.context() as patch:
            patch.setattr(os, fails, full)
            with pytest.raises(StoreError, match=r"No space left.*free some space") as caught:
                run.append([record(1)])
        assert "\n" not in str(caught.value)
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", full)
            with pytest.raises(StoreError, match="No space left"):
                run.save_statistics(0, "embed", "all", {"x": np.zeros(1)})
        assert run.statistics() == []
        assert [r.step for r in run.records()] == [0]
        run.append([record(2)])
        assert [r.step for r in run.records()] == [0, 2]


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no limit on file sizes")
def test_a_disk_that_takes_half_a_line_leaves_no_incomplete_line(tmp_path: Path) -> None:
    code = """
        import resource, sys
        from anisoscope.errors import StoreError
        from anisoscope.records import Record
        from anisoscope.store.run import Run
        with Run.create(sys.argv[1]) as run:
            resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
            try:
                for i in range(100):
                    run.append([Record("embed", "isoscore", 0.5, step=i)])
            except StoreError as error:
                print(i, error)
        """
    out, err = python(code, tmp_path / "r").communicate()
    assert err == ""
    assert "cannot append to" in out
    assert (tmp_path / "r" / "records.jsonl").read_bytes().endswith(b"\n")
    assert [r.step for r in Run.open(tmp_path / "r").records()] == list(range(int(out.split()[0])))


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such permissions")
def test_a_read_only_folder_can_be_read_and_writing_is_refused() -> None:
    code = """
        import fcntl, filelock, os, tempfile  # the modules of the lock too: below, Python itself may be out of reach
        from pathlib import Path
        from anisoscope.errors import StoreError
        from anisoscope.records import Record
        from anisoscope.store.run import Run
        if os.getuid() == 0:
            os.setuid(65534)  # nothing is read-only for root
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "r"
            with Run.create(path) as run:
                run.append([Record("embed", "isoscore", 0.5)])
            os.chmod(path, 0o555)
            for file in path.iterdir():
                os.chmod(file, 0o444)
            assert len(list(Run.open(path).records())) == 1
            for attempt in (lambda: Run.create(path, resume=True), lambda: Run.create(path / "s")):
                try:
                    attempt()
                except StoreError as error:
                    print(error)
            os.chmod(path, 0o755)
        """
    out, err = python(code).communicate()
    assert err == ""
    assert len(out.splitlines()) == 2
    assert all("Permission denied; choose a folder you may use" in line for line in out.splitlines())
