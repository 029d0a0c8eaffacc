"""Runs as tables for charts and sentences."""

from __future__ import annotations

from pathlib import Path

import pytest

from anisoscope.records import Record
from anisoscope.report.tables import first_and_last, rows_of, table_of
from tests import report_runs as runs


def test_sentences_use_only_the_first_and_last_step() -> None:
    table = runs.frame_of(runs.profiles((0, 1, 10)))
    assert set(first_and_last(table)["step"]) == {0, 10}


def test_two_runs_of_one_name_stay_separate(tmp_path: Path) -> None:
    pair = [runs.make_run(tmp_path / folder / "exp", runs.profiles()) for folder in ("one", "two")]
    assert set(table_of(pair)["run"]) == {"one/exp", "two/exp"}


def test_a_site_without_a_layer_has_no_position() -> None:
    [row] = rows_of(runs.frame_of([Record("weight.lm_head", "isoscore", 0.5)]))
    assert row["layer"] is None
    assert row["site"] == "weight.lm_head"


def test_intervals_of_a_run_stay_in_the_range_that_its_cards_declare(tmp_path: Path) -> None:
    record = Record("resid.0", "spectral_anisotropy", 0.95, error=0.2, error_kind="jackknife-8-documents")
    [row] = rows_of(table_of([runs.make_run(tmp_path / "run", [record])]))
    assert row["high"] == 1.0
    assert row["low"] == pytest.approx(0.95 - 2.3646 * 0.2, abs=1e-3)
