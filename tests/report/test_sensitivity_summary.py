"""Rows, tables and sentences of metrics against samples."""

from __future__ import annotations

from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from anisoscope.records import Record
from anisoscope.report.sensitivity_summary import conclusions, sample_rows, sensitivity_tables

INFO: dict[str, Any] = {"metrics": {}, "sensitivity": {"n": [100, 400], "batches": [100], "shuffles": 2}}


def records(small: float = 0.5, batch: float = 0.5, order: float = 0.0) -> list[Record]:
    """A number of 0.5 with error bars of 0.1 at n = 100, 0.05 at n = 400, and 0.1 of the mean over batches."""

    def record(value: float, error: float | None = None, kind: str | None = None, **variant: Any) -> Record:
        return Record("resid.3", "isoscore", value, error=error, error_kind=kind, variant=variant)

    over: dict[str, Any] = {"over": "batches", "batch": 100}
    return [
        record(0.5, 0.05, "jackknife-16-documents"),
        record(small, 0.1, "jackknife-16-documents", n=100),
        record(batch, 0.1, "spread-4-batches", **over, **{"of batches": "mean"}),
        record(0.2, None, None, **over, **{"of batches": "std"}),
        *(record(0.5 + order * shuffle, shuffle=shuffle) for shuffle in (1, 2)),
        *(record(0.4 + 0.1 * shuffle, n=100, shuffle=shuffle) for shuffle in (1, 2)),
    ]


def test_rows_join_what_belongs_to_one_size() -> None:
    small, whole, batches = sample_rows(records(), INFO)
    assert (small.sample, small.size, small.value, small.error) == ("n", 100, 0.5, 0.1)
    assert small.shuffle_std == pytest.approx(0.1 / 2**0.5)
    assert (whole.size, whole.shuffle_std, whole.shuffles) == (400, 0.0, 2)
    assert (batches.sample, batches.batches, batches.batch_std, batches.shuffles) == ("batch", 4, 0.2, 0)


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        ({}, ["no dependence on n is visible", "the value does not depend on their order"]),
        ({"small": 0.72}, ["changes by 2.2 error bars: it depends on n", "does not depend"]),  # t of 16 blocks: 2.13
        ({"small": 0.7}, ["changes by 2.0 error bars: no dependence", "does not depend"]),
        ({"batch": 0.83}, ["no dependence", "Batches of 100 do not average", "does not depend"]),  # of 4 batches: 3.18
        ({"batch": 0.8}, ["no dependence", "does not depend"]),
        ({"order": 1e-3}, ["no dependence", "the value depends, through the rows that are sampled, on their order"]),
    ],
)
def test_conclusions_follow_from_student_t(made: dict[str, float], expected: list[str]) -> None:
    texts = conclusions(sample_rows(records(**made), INFO))
    assert len(texts) == len(expected)
    assert all(words in text for words, text in zip(expected, texts, strict=True))


def test_the_table_fits_into_eighty_columns() -> None:
    console = Console(width=80, file=StringIO(), record=True)
    console.print(sensitivity_tables(records(), INFO))
    text = console.export_text()
    assert "…" not in text
    assert "4 batches of 100" in text
    (line,) = [line for line in text.splitlines() if line.startswith("  n = 400")]
    assert line.split() == ["n", "=", "400", "0.5", "0.05", "–", "0"]


def test_a_metric_with_variants_shows_the_one_of_its_card() -> None:
    both = [
        Record("vectors", "two_nn", value, variant={"neighbours": name, **own})
        for own in ({}, {"n": 100})
        for name, value in (("other documents", 9.0), ("all", 3.0))
    ]
    info = {**INFO, "metrics": {"two_nn": {"headline": {"neighbours": "all"}}}}
    assert [row.value for row in sample_rows(both, info)] == [3.0, 3.0]
    assert [row.value for row in sample_rows(both, INFO)] == [9.0, 9.0]
