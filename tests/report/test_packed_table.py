"""Records as compressed columns: small, and exact to the promised digits."""

from __future__ import annotations

import base64
import json
import zlib
from pathlib import Path

import numpy as np
import pandas as pd

from anisoscope.records import Record
from anisoscope.report.outline import outline_of
from anisoscope.report.packed_table import pack, rounded
from anisoscope.report.tables import table_of
from tests import report_runs as runs


def big_table(steps: int, layers: int, metrics: int) -> pd.DataFrame:
    """Records without any pattern to compress: the worst case."""
    rng = np.random.default_rng(0)
    n = steps * layers * metrics * 2
    return pd.DataFrame(
        {
            "run": "exp",
            "step": np.repeat(np.arange(steps) ** 2, layers * metrics * 2),
            "site": np.tile(np.repeat([f"resid.{i}" for i in range(layers)], metrics * 2), steps),
            "metric": np.tile(np.repeat([f"metric_{i}" for i in range(metrics)], 2), steps * layers),
            "version": 1,
            "tokens": np.tile(["all", "no-sink"], steps * layers * metrics),
            "index": pd.array([None] * n, dtype="Int64"),
            "variant": "{}",
            "value": rng.random(n),
            "error": rng.random(n) / 10,
            "error_kind": "jackknife-16-documents",
            "null": rng.random(n) / 100,
            "n": 8192,
            "note": None,
        }
    )


def test_packed_records_are_small() -> None:
    table = big_table(steps=30, layers=16, metrics=15)
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
    body = zlib.decompress(base64.b64decode(pack(table, outline_of(table, {}))))
    head = json.loads(body[4 : 4 + int.from_bytes(body[:4], "little")])
    assert (head["lists"]["least"], head["lists"]["most"]) == ([0.0], [1.0])
