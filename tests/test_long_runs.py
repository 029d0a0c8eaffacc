"""Long trainings and long runs: what is held does not grow with the steps, and reading makes no object per record."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import random
import tracemalloc
from pathlib import Path

import psutil
import pytest
from typer.testing import CliRunner

from anisoscope import Record, Run
from anisoscope.cli import app
from anisoscope.report import live
from anisoscope.report.page import report_page
from benchmarks.long import long_run, look_of


def io_of_a_look(folder: Path, before: int) -> tuple[int, int]:
    """Bytes that appending one look reads and writes in a run that holds so many looks."""
    chance = random.Random(0)
    with Run.create(folder) as run:
        for step in range(before):
            run.append(look_of(step, bars=False, chance=chance))
        then = psutil.Process().io_counters()
        run.append(look_of(before, bars=False, chance=chance))
        run.update_info(tracker={"probes": before})
        now = psutil.Process().io_counters()
    return now.read_chars - then.read_chars, now.write_chars - then.write_chars


def test_what_a_look_reads_and_writes_does_not_grow_with_the_run(tmp_path: Path) -> None:
    few, many = io_of_a_look(tmp_path / "few", 3), io_of_a_look(tmp_path / "many", 60)
    assert many[0] <= few[0] + 300_000  # the end of the file is looked at, never the file
    assert many[1] == pytest.approx(few[1], rel=0.05)


def test_a_followed_run_costs_the_server_nothing_that_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "_POLL_EVERY", 0.001)
    path = tmp_path / "r"
    Run.create(path).close()

    async def follow() -> list[int]:
        stream = live._follow([Run.open(path)], [0])
        await anext(stream)
        marks = []
        with Run.create(path, resume=True) as writer:
            for step in range(60):
                writer.append([Record(f"resid.{layer}", "isoscore", 0.5, step=step) for layer in range(20)])
                assert len(json.loads((await anext(stream)).removeprefix("data: "))["rows"]) == 20
                if step in (20, 59):
                    gc.collect()
                    marks.append(tracemalloc.get_traced_memory()[0])
        await stream.aclose()  # type: ignore[attr-defined]
        return marks

    tracemalloc.start()
    try:
        early, late = asyncio.run(follow())
    finally:
        tracemalloc.stop()
    assert late - early < 50_000


def test_reading_a_run_takes_a_few_bytes_a_record(tmp_path: Path) -> None:
    count = 30_000
    run = long_run(tmp_path / "r", count)
    run.frame()  # what is imported at first use
    tracemalloc.start()
    try:
        assert len(run.frame()) == count
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 400 * count  # an object per record took 900


def require_every_view(folder: Path, count: int) -> None:
    run = long_run(folder / "run", count)
    frame = run.frame()
    assert len(frame) == count
    assert [frame["step"].iloc[-1], len(run.sites())] == [frame["step"].max(), 38]
    shown = CliRunner().invoke(app, ["show", str(run.path)])
    assert shown.exit_code == 0
    assert "spectral_anisotropy" in shown.stdout
    page = report_page([run])
    assert f"{count:,} records" in page  # all of them: nothing is thinned
    other = long_run(folder / "other", count, seed=1)
    compared = CliRunner().invoke(app, ["compare", str(run.path), str(other.path)])
    assert compared.exit_code == 0, compared.output
    assert f"the last of {frame['step'].nunique():,} that both have" in " ".join(compared.stdout.split())


def test_every_view_of_twenty_thousand_records(tmp_path: Path) -> None:
    require_every_view(tmp_path, 20_000)


@pytest.mark.slow
def test_every_view_of_a_million_records_in_bounded_memory(tmp_path: Path) -> None:
    before = psutil.Process().memory_info().rss
    require_every_view(tmp_path, 1_000_000)
    assert psutil.Process().memory_info().rss - before < 1.5e9
    assert os.path.getsize(tmp_path / "run" / "records.jsonl") > 2e8
