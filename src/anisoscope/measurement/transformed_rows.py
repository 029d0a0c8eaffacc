"""Transforming files of vectors with a remedy: fit it, write the result, and measure before and after."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from torch import Tensor

from anisoscope.data.vectors import Vectors, open_vectors, write_npy
from anisoscope.errors import InputError
from anisoscope.measurement.engine import OnProgress
from anisoscope.measurement.measure_rows import READ_ROWS, row_results
from anisoscope.metrics.evaluate import MetricResult
from anisoscope.remedies import Remedy, fit_remedy
from anisoscope.stats.collect import collect
from anisoscope.stats.moments import Moments
from anisoscope.stats.rows import Rows, bare_rows


def fit_to_vectors(
    vectors: Vectors,
    *,
    centre: bool = False,
    remove_top: int = 0,
    whiten: bool = False,
    shrinkage: float | None = None,
    progress: OnProgress | None = None,
) -> Remedy:
    """Fit a remedy on a file of vectors, in one pass and constant memory. The options are those of `fit_remedy`."""

    def read() -> Iterator[Rows]:
        first = 0
        for x in _counted(vectors, progress):
            yield bare_rows(x, first=first)
            first += len(x)

    cloud = collect(read, {"Moments"})
    return fit_remedy(cloud.get(Moments), centre=centre, remove_top=remove_top, whiten=whiten, shrinkage=shrinkage)


def transformed(vectors: Vectors, remedy: Remedy) -> Vectors:
    """Return the vectors as the remedy maps them, in float32, transformed batch by batch whenever they are read."""
    if vectors.d != remedy.d:
        raise InputError(
            f"The map was fitted on rows of {remedy.d:,} numbers, but those of {vectors.name} have {vectors.d:,}. "
            "Use rows of the same model."
        )

    def stream(rows: int) -> Iterator[Tensor]:
        for x in vectors.stream(rows):
            yield remedy.apply(x.double()).float()  # (m, d)

    return replace(vectors, dtype="float32", stream=stream)


def write_vectors(vectors: Vectors, out: str | Path, progress: OnProgress | None = None) -> Vectors:
    """Write vectors to a .npy file, in constant memory, and return the file with the documents of the vectors."""
    with write_npy(out, vectors.n, vectors.d) as write:
        for x in _counted(vectors, progress):
            write(x)
    return replace(open_vectors(out), documents=vectors.documents)


def before_and_after(
    before: Vectors, after: Vectors, metrics: Sequence[str] | None = None
) -> list[tuple[MetricResult, MetricResult | None]]:
    """Measure vectors before and after a transformation, with the same sample and the same blocks left out.

    Returns:
        Each number before, with the same number after, or None if it has no counterpart. Replicates are paired: the
        error of the difference is the jackknife of the differences of the replicates.
    """
    first, second = row_results(before, metrics), row_results(after, metrics)
    later = {_key(each): each for each in second}
    return [(each, later.get(_key(each))) for each in first]


def _key(result: MetricResult) -> tuple[object, ...]:
    record = result.record
    return (record.metric, record.index, *sorted(record.variant.items()))


def _counted(vectors: Vectors, progress: OnProgress | None) -> Iterator[Tensor]:
    for x in vectors.batches(READ_ROWS):
        yield x
        if progress is not None:
            progress(len(x))
