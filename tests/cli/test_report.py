"""The commands `report`, `show` and `figure`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from anisoscope.cli import app
from anisoscope.errors import InputError
from anisoscope.store.run import Run
from tests import report_runs as runs


def call(*words: str) -> Any:
    return CliRunner().invoke(app, list(words))


def test_the_report_is_written_to_the_run_by_default(tmp_path: Path) -> None:
    run = runs.make_run(tmp_path / "exp", runs.profiles())
    assert call("report", str(run.path)).exit_code == 0
    assert (run.path / "report.html").exists()
    assert len(list(Run.open(run.path).records())) == len(runs.profiles())  # the run itself stays as it was


def test_show_prints_curves_sentences_and_caveats(tmp_path: Path) -> None:
    run = runs.make_run(tmp_path / "exp", runs.profiles((0, 1000)))
    printed = " ".join(call("show", str(run.path)).stdout.split())
    assert "▁" in printed
    assert "84 % to 10 % at layer 2" in printed
    assert "Caveats" in printed


def test_a_figure_of_two_runs_with_a_pick(tmp_path: Path) -> None:
    for name in ("a", "b"):
        runs.make_run(tmp_path / name, runs.profiles((0, 10)))
    target = tmp_path / "fig.svg"
    words = ("figure", str(tmp_path / "a"), str(tmp_path / "b"), "--metric", "two_nn", "--save", str(target))
    assert call(*words, "--pick", "step=0", "--kind", "profile").exit_code == 0
    assert "step 0" in target.read_text()


def test_a_pick_without_a_value_is_refused_with_an_example(tmp_path: Path) -> None:
    run = runs.make_run(tmp_path / "exp", runs.profiles())
    result = call("figure", str(run.path), "--metric", "two_nn", "--save", str(tmp_path / "f.svg"), "--pick", "step")
    assert isinstance(result.exception, InputError)
    assert "write field=value" in str(result.exception)


def test_a_folder_with_runs_in_it_stands_for_all_of_them(tmp_path: Path) -> None:
    """As `serve` does: a report, a figure, and one table per run."""
    for name in ("b", "a"):
        runs.make_run(tmp_path / "runs" / name, runs.profiles())
    folder = str(tmp_path / "runs")
    assert call("report", folder).exit_code == 0
    assert "<title>a, b" in (tmp_path / "runs" / "report.html").read_text()
    drawn = tmp_path / "fig.json"
    assert call("figure", folder, "--metric", "two_nn", "--save", str(drawn)).exit_code == 0
    assert {row["run"] for row in json.loads(drawn.read_text())["datasets"]["rows"]} == {"a", "b"}
    assert call("show", folder).stdout.count("Caveats") == 2
