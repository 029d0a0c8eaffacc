"""The parts of a report that are plain HTML."""

from __future__ import annotations

from pathlib import Path

from anisoscope.records import Record
from anisoscope.report.reported_run import reported_runs
from anisoscope.report.sections import RunResults, run_results
from tests import report_runs as runs


def results(folder: Path, records: list[Record]) -> RunResults:
    [run] = reported_runs([runs.make_run(folder / "exp", records)])
    return run_results(run)


def test_every_stream_has_its_own_line_with_its_name(tmp_path: Path) -> None:
    """The last value of the residual stream must not be that of a gradient."""
    records = [
        Record(f"{stream}.{layer}", "isoscore", value)
        for stream, value in (("grad.resid", 0.8), ("resid", 0.1))
        for layer in range(3)
    ]
    lines = results(tmp_path, records).curves
    assert {line.name: line.ends[-1] for line in lines} == {
        "isoscore of gradients": ("0.80", "grad.resid.2"),
        "isoscore": ("0.10", "resid.2"),
    }


def test_heads_are_averaged_under_the_name_of_their_stream(tmp_path: Path) -> None:
    records = [Record(f"k.{layer}.{head}", "isoscore", float(head)) for layer in range(3) for head in range(2)]
    [line] = results(tmp_path, records).curves
    assert line.name == "isoscore of keys mean over heads"
    assert line.ends[0] == ("0.50", "k.0")
