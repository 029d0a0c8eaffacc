"""The top of a report, as notebooks and `Run.plot()` show it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from anisoscope.errors import InputError
from anisoscope.records import Record
from anisoscope.report.reported_run import reported_runs
from anisoscope.report.summary import hero_chart, summary_html, summary_of
from anisoscope.store.run import Run
from tests import report_runs as runs
from tests.report_pages import KINDS


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_run_has_a_thesis_tiles_and_a_valid_hero_chart(tmp_path: Path, kind: str) -> None:
    made = KINDS[kind](tmp_path)
    summary = summary_of(reported_runs(made))
    assert summary.kind == {"two-models": "models"}.get(kind, kind)
    assert summary.thesis.title.endswith(".")
    assert 4 <= len(summary.tiles) <= 5
    assert summary.heroes
    assert hero_chart(made).to_dict(validate=True)  # Vega-Lite's own schema


def test_a_notebook_shows_thesis_tiles_and_picture_without_scripts(tmp_path: Path) -> None:
    hostile = f"a{runs.HOSTILE.replace('/', '')}"
    made = runs.make_run(tmp_path / "exp", runs.profiles(), name=hostile)
    text = summary_html([made])
    assert text.count('class="tile"') >= 2
    assert "<svg" in text
    assert "<script" not in text.replace("&lt;script", "")


def test_no_training_panel_is_wider_than_the_notebook(tmp_path: Path) -> None:
    chart = hero_chart(KINDS["training"](tmp_path)).to_dict(validate=False)
    assert len(chart["vconcat"]) == 2
    assert len({part["width"] for part in chart["vconcat"]}) == 1


def test_a_run_that_fits_no_hero_chart_lists_its_metrics(tmp_path: Path) -> None:
    made = runs.make_run(tmp_path / "exp", [Record("resid.0", "mine", 0.5)])
    with pytest.raises(InputError, match="mine"):
        hero_chart([made])


def test_a_run_without_records_is_refused(tmp_path: Path) -> None:
    with Run.create(tmp_path / "exp") as run, pytest.raises(InputError, match="no records"):
        summary_html([run])


def test_the_name_of_a_site_does_not_become_an_expression(tmp_path: Path) -> None:
    [run] = KINDS["tangent"](tmp_path)
    hostile = "grad.weight.x' + window.taken + '"
    records = [replace(record, site=hostile) for record in run.records() if record.site == "grad.resid.0"]
    [figure] = summary_of(reported_runs([runs.make_run(tmp_path / "hostile", records, kind="tangent")])).heroes
    assert figure.spec["encoding"]["x"]["axis"]["labelExpr"] == json.dumps([hostile[5:]]) + "[datum.value]"
