"""The records of a check of embeddings, as they are made."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from anisoscope.embedding_quality.means import MeanError
from anisoscope.metrics.evaluate import MetricResult
from anisoscope.records import Record
from anisoscope.report.embedding_advice import CHANGE


def number_key(record: Record) -> tuple[Any, ...]:
    """Identify a number among those of one map."""
    variant = {key: value for key, value in record.variant.items() if key != "remedy"}
    return (record.metric, record.index, *sorted(variant.items()))


class QualityRecords:
    """A list of records: each number after each map, and its change from no map."""

    def __init__(self, unit: str) -> None:
        self.records: list[Record] = []
        self.unit = unit  # what blocks consist of: rows or documents

    def fact(self, metric: str, value: float, **facts: Any) -> None:
        """Add a number of all rows."""
        self.records.append(Record("vectors", metric, float(value), **facts))

    def results(self, results: Iterable[MetricResult], nulls: Mapping[tuple[Any, ...], float]) -> None:
        """Add the metrics of a cloud, with nulls that were drawn."""
        for each in results:
            row = each.record.to_json() | {"null": nulls.get(number_key(each.record), each.record.null)}
            self.records.append(Record.from_json(row))

    def mean(self, metric: str, mean: MeanError, remedy: str, *, index: int | None = None, **facts: Any) -> None:
        """Add a mean over blocks of rows, or over `unit`."""
        kind = error_kind(mean.error, mean.units, facts.pop("unit", self.unit))
        variant = {**facts.pop("variant", {}), "remedy": remedy}
        self.records.append(
            Record(
                "vectors", metric, mean.value, index=index, variant=variant, error=mean.error, error_kind=kind, **facts
            )
        )

    def change(self, of: Record, value: float, error: float | None, units: int, unit: str | None = None) -> None:
        """Add how much a number differs from the same number without a map."""
        variant = {"of": of.metric, **{"part" if key == "of" else key: each for key, each in of.variant.items()}}
        kind = error_kind(error, units, unit or self.unit)
        self.records.append(
            Record("vectors", CHANGE, value, index=of.index, variant=variant, error=error, error_kind=kind, n=of.n)
        )


def error_kind(error: float | None, units: int, unit: str) -> str | None:
    """Return how an error was found, as records write it; None without an error."""
    return None if error is None else f"jackknife-{units}-{unit}"
