"""Rows of a few records, for tests of sentences and caveats."""

from __future__ import annotations

from typing import Any

from anisoscope.records import Record
from anisoscope.report.tables import by_metric, rows_of
from tests import report_runs as runs


def rows(records: list[Record]) -> dict[str, Any]:
    return {metric: rows_of(group) for metric, group in by_metric(runs.frame_of(records)).items()}


def profile(values: list[float], without: list[float] | None = None) -> list[Record]:
    policies = {"all": values} | ({"no-sink": without} if without else {})
    return [
        Record(f"resid.{i}", "spectral_anisotropy", v, tokens=tokens)
        for tokens, curve in policies.items()
        for i, v in enumerate(curve)
    ]
