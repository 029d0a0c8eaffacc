"""What a run shows of itself: tidy frames, profiles over layers, a chart, a page and a comparison."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import anisoscope
from anisoscope.errors import InputError
from anisoscope.records import COLUMNS, Record
from anisoscope.report.interval import interval
from anisoscope.report.views import TIDY
from anisoscope.store.run import Run

CARDS = {"isoscore": {"name": "isoscore", "low": 0, "high": 1, "meaning": "evenness", "headline": {}}}
KIND = "jackknife-16-documents"


def make_run(path: Path, shift: float = 0.0) -> Run:
    """Two layers under two token policies, heads of a pattern, and a number without an error."""
    with Run.create(path, {"metrics": CARDS}) as run:
        for tokens, base in (("all", 0.05), ("no-sink", 0.5)):
            for position, site in enumerate(("embed", "resid.0", "resid.1", "final")):
                value = base + shift + position / 100
                shared: dict[str, Any] = {"tokens": tokens, "null": 0.9, "n": 64}
                run.append([Record(site, "isoscore", value, error=0.05, error_kind=KIND, **shared)])
        run.append([Record("pattern.1", "attention_entropy", 0.5, index=3), Record("q.1.2", "isoscore", 0.3)])
    return run


def test_a_frame_has_layer_depth_head_and_interval(tmp_path: Path) -> None:
    frame = make_run(tmp_path / "a").frame()
    assert list(frame.columns) == [*COLUMNS, *TIDY]
    rows: dict[tuple[Any, Any], Any] = {(row.site, row.tokens): row for row in frame.itertuples()}
    layers = {site: (rows[site, "all"].layer, rows[site, "all"].depth) for site in ("embed", "resid.0", "resid.1")}
    assert layers == {"embed": (-1, 0.0), "resid.0": (0, 0.5), "resid.1": (1, 1.0)}
    assert (rows["final", "all"].layer, rows["final", "all"].depth) == (2, 1.0)
    assert (rows["pattern.1", "all"].head, rows["q.1.2", "all"].head) == (3, 2)
    assert (rows["resid.1", "all"].stream, rows["resid.1", "all"].kind) == ("resid", "resid")
    low, high = interval(rows["embed", "all"].value, 0.05, KIND, 0, 1)
    assert (rows["embed", "all"].low, rows["embed", "all"].high) == (pytest.approx(low), pytest.approx(high))
    assert low == 0  # the range of the metric ends there
    assert pd.isna(rows["q.1.2", "all"].low)


def test_a_frame_of_no_records_has_all_columns(tmp_path: Path) -> None:
    with Run.create(tmp_path / "empty") as run:
        assert list(run.frame().columns) == [*COLUMNS, *TIDY]


def test_a_profile_has_one_row_per_layer(tmp_path: Path) -> None:
    table = make_run(tmp_path / "a").profile("isoscore")
    assert table.index.tolist() == [-1, 0, 1, 2]
    assert list(table.columns) == ["all", "no-sink", "low", "high", "null"]
    assert table["no-sink"].tolist() == pytest.approx([0.5, 0.51, 0.52, 0.53])
    assert table["high"][1] == pytest.approx(interval(0.52, 0.05, KIND)[1])  # of the rows without sinks
    with pytest.raises(InputError, match="no single number per layer"):
        Run.open(tmp_path / "a").profile("attention_entropy")
    with pytest.raises(InputError, match="Did you mean 'isoscore'"):
        Run.open(tmp_path / "a").profile("isoscor")
    with pytest.raises(InputError, match="Choose another step, stream or variant"):
        Run.open(tmp_path / "a").profile("isoscore", step=7)


def test_frames_of_several_runs_are_joined_under_their_names(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / "a"), make_run(tmp_path / "b")]
    frame = anisoscope.concat(runs)
    assert frame.groupby("run").size().to_dict() == {"a": 10, "b": 10}
    with pytest.raises(InputError, match="no runs"):
        anisoscope.concat([])


def test_two_runs_are_compared_in_a_table(tmp_path: Path) -> None:
    first, second = make_run(tmp_path / "a"), make_run(tmp_path / "b", shift=0.1)
    table = first.compare(second, ["isoscore"])
    assert table.equals(anisoscope.compare(first, second, ["isoscore"]))
    moved = table[table["site"] != "q.1.2"]["difference"].tolist()
    assert moved == pytest.approx([0.1] * 8, abs=1e-12)


def test_a_run_draws_prints_and_writes_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run(tmp_path / "a")
    assert "without first and massive tokens" in str(run.plot().to_dict())  # the chart at the top of the report
    assert run.plot("isoscore").to_dict()["datasets"]
    run.show()
    assert "isoscore" in capsys.readouterr().out
    for page in (run.report(tmp_path / "one.html"), anisoscope.report([run, run], tmp_path / "two.html")):
        assert "isoscore" in page.read_text()
    assert "<svg" in run._repr_html_()
    with Run.create(tmp_path / "empty") as empty:
        assert "&lt;Run empty: 0 records" in empty._repr_html_()  # without a summary, the table


def test_help_of_a_metric_is_its_formula() -> None:
    assert "participation ratio" in (anisoscope.metrics.isoscore.__doc__ or "")
