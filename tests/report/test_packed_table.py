"""Records as compressed columns: small, and exact to the promised digits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from anisoscope.records import Record
from anisoscope.report.outline import outline_of
from anisoscope.report.packed_table import pack, rounded
from anisoscope.report.tables import table_of
from tests import report_runs as runs


def test_packed_records_are_small() -> None:
    table = runs.big_table(steps=30, layers=16, metrics=15)
    assert len(pack(table, outline_of(table, {}))) / len(table) < 11  # bytes a record, as text


def test_rounding_keeps_the_requested_digits() -> None:
    values = np.array([1 / 3, -2e-5, 0.0, np.nan, 3e30], "<f4")
    found = rounded(values, 12)
    assert np.isnan(found[3])
    assert np.allclose(found[[0, 1, 2, 4]], values[[0, 1, 2, 4]], rtol=2**-13)
    assert rounded(values, 23) is values


def test_the_page_gets_the_range_of_each_metric(tmp_path: Path) -> None:
    """The page computes intervals itself, and must not let them leave the range."""
    record = Record("resid.0", "spectral_anisotropy", 0.95, error=0.2, error_kind="jackknife-8-documents")
    table = table_of([runs.make_run(tmp_path / "run", [record])])
    head = runs.unpacked(pack(table, outline_of(table, {})))[0]
    assert (head["lists"]["least"], head["lists"]["most"]) == ([0.0], [1.0])


def test_runs_keep_the_order_in_which_they_were_given() -> None:
    table = pd.concat([runs.frame_of(runs.profiles()).assign(run=name) for name in ("zebra", "ant")], ignore_index=True)
    assert runs.unpacked(pack(table, {}))[0]["lists"]["run"] == ["zebra", "ant"]
