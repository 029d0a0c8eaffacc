"""Files that survive kills, full disks and crafted folders."""

from __future__ import annotations

import ast
import errno
import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import anisoscope
from anisoscope import Record, Tracker
from anisoscope.errors import StoreError
from anisoscope.report.run_index import RunIndex
from anisoscope.store import files as disk
from anisoscope.store import run_header
from anisoscope.store.files import WriterLock, refusal, replacing, similar_paths
from anisoscope.store.run import Run, record_key
from anisoscope.studies.lab.losses import add_losses, read_losses
from anisoscope.sweep.ledger import Ledger
from tests import training
from tests.killed_work import lab, make_material, measure, sweep, track
from tests.kills import Operation, Refusal, Work, failure, run
from tests.measurement.test_resume import require_readable, require_same
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


COMMANDS = (measure, sweep, lab)


@pytest.fixture(scope="module")
def material(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_material(tmp_path_factory.mktemp("material"))


@pytest.fixture(scope="module", params=COMMANDS, ids=lambda work: work.__name__)
def whole(
    request: pytest.FixtureRequest, material: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Work, Path, list[Operation]]:
    folder = tmp_path_factory.mktemp("whole")
    operations = run(request.param, material, folder)
    assert operations
    return request.param, folder, operations


def require_one_line(output: str, reason: str, remedy: str) -> None:
    """What a user sees: a single line with the reason and what to do."""
    lines = [line for line in output.splitlines() if "anisoscope:" in line]
    assert len(lines) == 1, output
    assert reason in lines[0]
    assert remedy in lines[0]
    assert "Traceback" not in output


def reopen(run: Path) -> None:
    """Mark a run as not complete: one that is complete is only read."""
    header = json.loads((run / "run.json").read_text())
    header["info"].pop("ended", None)
    if "complete" in header["info"]:
        header["info"]["complete"] = False
    (run / "run.json").write_text(json.dumps(header))


@pytest.mark.parametrize("share", [0.15, 0.5, 0.9])
def test_a_full_disk_is_one_line_and_the_command_resumes_when_there_is_space(
    whole: tuple[Work, Path, list[Operation]], share: float, material: Path, tmp_path: Path
) -> None:
    work, folder, operations = whole
    output = failure(work, material, tmp_path, Refusal(int(share * len(operations)), errno.ENOSPC))
    require_one_line(output, "No space left on device", "free some space")
    require_readable(tmp_path)
    run(work, material, tmp_path)
    require_same(tmp_path, folder)


@pytest.mark.slow
def test_a_disk_that_fills_up_at_any_operation(
    whole: tuple[Work, Path, list[Operation]], material: Path, tmp_path: Path
) -> None:
    work, folder, operations = whole
    for operation in range(0, len(operations), max(1, len(operations) // 20)):
        here = tmp_path / str(operation)
        output = failure(work, material, here, Refusal(operation, errno.ENOSPC))
        if output:  # or only the removal of scratch files failed, and the run is complete
            require_one_line(output, "No space left on device", "free some space")
            require_readable(here)
            run(work, material, here)
        require_same(here, folder)


def test_a_read_only_disk_is_one_line_and_what_is_stored_can_be_read(
    whole: tuple[Work, Path, list[Operation]], material: Path, tmp_path: Path
) -> None:
    work, folder, _ = whole
    output = failure(work, material, tmp_path, Refusal(0, errno.EROFS))
    require_one_line(output, "Read-only file system", "choose a folder on another disk")
    run(work, material, tmp_path)
    require_same(tmp_path, folder)


def test_a_full_disk_does_not_end_a_training_that_is_tracked(material: Path, tmp_path: Path) -> None:
    whole = run(track, material, tmp_path / "whole")
    assert whole
    full = tmp_path / "full"
    assert failure(track, material, full, Refusal(len(whole) // 2, errno.ENOSPC, within=f"{full}/run/")) == ""
    require_readable(full)
    few, all_ = (len(list(Run.open(folder / "run").records())) for folder in (full, tmp_path / "whole"))
    assert 0 < few < all_


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Any]:
    """Mounts a disk of a given size in bytes: a tmpfs; only root may mount one."""
    point = tmp_path / "disk"
    point.mkdir()
    mounted: list[Path] = []

    def mount(size: int, *options: str) -> Path:
        chosen = ",".join([f"size={size}", *options])
        command = ["mount", "-t", "tmpfs", "-o", chosen, "tmpfs", str(point)]
        if mounted:
            command = ["mount", "-o", f"remount,{chosen}", str(point)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"a disk can be mounted only by root where mounting is allowed: {done.stderr.strip()}")
        mounted.append(point)
        return point

    if shutil.which("mount") is None:
        pytest.skip("there is no mount command here")
    yield mount
    if mounted:
        subprocess.run(["umount", str(point)], check=True)


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.1, 0.4, 0.7])
def test_a_real_disk_that_is_full_is_reported_and_work_resumes_on_a_larger_one(
    whole: tuple[Work, Path, list[Operation]], share: float, material: Path, small_disk: Any
) -> None:
    work, folder, _ = whole
    need = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    disk = small_disk(max(4096 * 4, int(share * need)))
    output = failure(work, material, disk / "here")
    require_one_line(output, "No space left on device", "free some space")
    require_readable(disk / "here")
    small_disk(64 << 20)
    run(work, material, disk / "here")
    require_same(disk / "here", folder)


@pytest.mark.slow
def test_a_real_read_only_disk_can_be_read_and_writing_is_refused(
    whole: tuple[Work, Path, list[Operation]], material: Path, small_disk: Any
) -> None:
    work, folder, _ = whole
    disk = small_disk(64 << 20)
    shutil.copytree(folder, disk / "here")
    reopen(disk / "here" / "run")
    small_disk(64 << 20, "ro")
    require_one_line(failure(work, material, disk / "here"), "Read-only file system", "another disk")
    require_readable(disk / "here")
    small_disk(64 << 20, "rw")  # or it could not be unmounted cleanly everywhere


def test_errors_of_libraries_in_rust_are_recognised() -> None:
    from safetensors import SafetensorError

    error = SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")
    assert refusal(error) == "No space left on device; free some space; what was stored before is intact"
    assert refusal(ValueError("a mistake of ours")) is None


def test_a_ledger_cut_at_any_byte_has_its_complete_lines_and_accepts_the_next(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    for step in range(3):
        ledger.add(f"key{step}", step=step, sketch=[0.5 * step])
    data = (tmp_path / "tasks.jsonl").read_bytes()
    for cut in range(len(data)):
        (tmp_path / "tasks.jsonl").write_bytes(data[:cut])
        again = Ledger(tmp_path)
        there = data[:cut].count(b"\n")
        assert list(again.done) == [f"key{step}" for step in range(there)]
        again.add("new", step=9)
        assert list(Ledger(tmp_path).done) == [*(f"key{step}" for step in range(there)), "new"]


def test_a_damaged_line_of_a_ledger_is_reported_with_its_number(tmp_path: Path) -> None:
    for line in ("nonsense", "{}", "[]", '{"key": 1}'):
        (tmp_path / "tasks.jsonl").write_text(f'{{"key": "a"}}\n{line}\n')
        with pytest.raises(StoreError, match="line 2: cannot be read"):
            Ledger(tmp_path)


def test_replicates_and_losses_cut_at_any_byte_have_their_complete_lines(tmp_path: Path) -> None:
    with Run.create(tmp_path / "r") as opened:
        opened.append([Record("embed", "isoscore", 0.5, step=step) for step in range(3)], [[0.1, 0.2]] * 3)
    file = tmp_path / "r" / "replicates.jsonl"
    data = file.read_bytes()
    for cut in range(0, len(data), 7):
        file.write_bytes(data[:cut])
        assert len(opened.replicates()) == data[:cut].count(b"\n")
    for step in range(3):
        add_losses(tmp_path, {"step": step, "train": None, "validation": 1.5})
    losses = tmp_path / "losses.jsonl"
    data = losses.read_bytes()
    for cut in range(0, len(data), 7):
        losses.write_bytes(data[:cut])
        assert [row["step"] for row in read_losses(tmp_path)] == list(range(data[:cut].count(b"\n")))


def test_temporary_files_of_killed_processes_are_removed_and_those_of_living_ones_stay(tmp_path: Path) -> None:
    Run.create(tmp_path / "r").close()
    gone = subprocess.Popen(["true"])
    gone.wait()
    dead, living, strange = (f".run.{name}.tmp" for name in (gone.pid, os.getppid(), "x"))
    for name in (dead, living, strange):
        (tmp_path / "r" / name).write_text("half of somethi")
    Run.create(tmp_path / "r", resume=True).close()
    assert {path.name for path in (tmp_path / "r").glob(".*")} == {living, strange}


def test_a_second_writer_is_refused_with_the_id_of_the_first(
    whole: tuple[Work, Path, list[Operation]], material: Path, tmp_path: Path
) -> None:
    work, folder, _ = whole
    shutil.copytree(folder / "run", tmp_path / "run")
    reopen(tmp_path / "run")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file() and "lock" not in path.name}
    with Run.create(tmp_path / "run", resume=True):
        output = failure(work, material, tmp_path)
    require_one_line(output, f"is being written by process {os.getpid()}", "Wait until it ends")
    changed = [path for path, data in before.items() if path.read_bytes() != data and path.name != "run.json"]
    assert not changed


def test_a_second_training_of_the_lab_is_refused_without_a_tracker_too(material: Path, tmp_path: Path) -> None:
    run(lab, material, tmp_path)
    reopen(tmp_path / "run")
    lock = WriterLock(tmp_path / "run" / "training.lock")
    try:
        output = failure(lab, material, tmp_path)
    finally:
        lock.release()
    require_one_line(output, f"is being written by process {os.getpid()}", "Wait until it ends")
    run(lab, material, tmp_path)


def test_a_second_tracker_is_refused(tmp_path: Path) -> None:
    model = training.small_model()
    with training.tracked(tmp_path, model), pytest.raises(StoreError, match=f"written by process {os.getpid()}"):
        Tracker(model, training.held_out(), tmp_path / "run", resume=0)


class Backwards(datetime):
    """A clock that loses a day each time it is read."""

    reads = 0

    @classmethod
    def now(cls, tz: Any = None) -> Any:
        Backwards.reads += 1
        return datetime(2030, 1, 1, tzinfo=UTC) - timedelta(days=Backwards.reads)


def test_a_clock_that_goes_back_does_not_affect_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_header, "datetime", Backwards)
    for name in ("first", "second"):
        with Run.create(tmp_path / name) as opened:
            opened.append([Record("embed", "isoscore", 0.5, step=step) for step in range(3)])
    created = Run.open(tmp_path / "first").created
    assert created > Run.open(tmp_path / "second").created
    with Run.create(tmp_path / "first", resume=True) as opened:
        opened.append([Record("embed", "isoscore", 0.7, step=1)])
        assert opened.created == created
        assert [(r.step, r.value) for r in opened.records()] == [(0, 0.5), (1, 0.7), (2, 0.5)]


def test_the_list_of_runs_is_in_order_whatever_times_the_files_have(tmp_path: Path) -> None:
    for name, changed in (("a", 5.0), ("b", 4e9), ("c", 5.0), ("d", 0.0)):
        with Run.create(tmp_path / name) as opened:
            opened.append([Record("embed", "isoscore", 0.5)])
        os.utime(tmp_path / name / "records.jsonl", (changed, changed))
    assert [entry["id"] for entry in RunIndex(tmp_path).listing()] == ["b", "a", "c", "d"]


def test_a_growing_run_is_followed_by_its_size_not_by_its_time(tmp_path: Path) -> None:
    with Run.create(tmp_path / "r") as opened:
        opened.append([Record("embed", "isoscore", 0.5)])
        _, end = opened.since()
        opened.append([Record("embed", "isoscore", 0.6, step=1)])
        os.utime(tmp_path / "r" / "records.jsonl", (0, 0))
        frame, _ = opened.since(end)
    assert frame is not None
    assert frame["value"].tolist() == [0.6]


def test_durations_come_from_clocks_that_cannot_go_back() -> None:
    """The time of day is written down in a few places, and never subtracted or compared."""
    clocks = {"time.time", "datetime.now", "datetime.utcnow", "datetime.today", "time.time_ns"}
    found = set()
    root = Path(anisoscope.__file__).parent
    for path in root.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and ast.unparse(node) in clocks:
                found.add(str(path.relative_to(root)))
    assert found <= {"store/run_header.py", "cli/claims_page.py"}


def test_near_paths_finds_numbers_names_and_missing_folders(tmp_path: Path) -> None:
    for name in ("step-8", "step-64", "step-100", "data"):
        (tmp_path / name).mkdir()
    assert similar_paths(tmp_path / "step-99") == f" (did you mean {tmp_path / 'step-100'} or {tmp_path / 'step-64'}?)"
    assert similar_paths(tmp_path / "dat") == f" (did you mean {tmp_path / 'data'}?)"
    assert similar_paths(tmp_path / "dta" / "a" / "b") == f" (did you mean {tmp_path / 'data'}?)"
    assert similar_paths(tmp_path / "quite" / "other") == f" (there is no folder {tmp_path / 'quite'})"
    assert similar_paths(tmp_path / "quite other") == ""
    assert similar_paths(Path("/")) == ""
    os.mkfifo(tmp_path / "pipe")
    assert similar_paths(tmp_path / "pipe") == " (it is not a regular file)"


def test_two_files_of_one_stem_are_replaced_at_the_same_time(tmp_path: Path) -> None:
    with replacing(tmp_path / "a.bin") as one, replacing(tmp_path / "a.jsonl") as other:
        one.write_text("one")
        other.write_text("other")
    assert (tmp_path / "a.bin").read_text() == "one"
    assert (tmp_path / "a.jsonl").read_text() == "other"
