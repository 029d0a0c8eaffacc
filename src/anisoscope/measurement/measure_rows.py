"""Measuring vectors: arrays in memory and files on disk."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from anisoscope.data.vectors import Vectors, open_vectors
from anisoscope.measurement.engine import OnProgress
from anisoscope.measurement.geometry import collected_statistics
from anisoscope.measurement.request import VECTOR_SAMPLE, Request, VectorOptions, accepts, names_of
from anisoscope.measurement.run_output import choose_metrics, open_run, run_info, save_cloud, save_measured
from anisoscope.metrics.evaluate import MetricResult, evaluate
from anisoscope.records import Record
from anisoscope.stats.cloud import Cloud
from anisoscope.stats.collect import as_rows, batches_of, block_numbers, collect
from anisoscope.stats.rows import Rows, bare_rows

READ_ROWS = 8192  # of a file, at once
ROW_OPTIONS = (*names_of(VectorOptions), "sample", "seed", "errors", "out", "keep_blocks", "overwrite")


@accepts(*ROW_OPTIONS)
def measure_rows(
    rows: Any,
    metrics: Sequence[str] | None = None,
    *,
    site: str = "vectors",
    command: str | None = None,
    progress: OnProgress | None = None,
    **options: Any,
) -> list[Record]:
    """Measure a cloud of vectors: every metric, or those named, with error bars and nulls.

    Args:
        rows: An array (n, d), the path of a file of vectors, or what `open_vectors` returned.
        metrics: Metrics by name. Default: all.
        site: The name of the cloud in its records.
        command: The command line, for the run's own record.
        progress: Called with the number of rows since the last call.
        {options}

    Returns:
        One record per metric. With `out` the records and the pooled statistics also go to a run folder, from which
        `recompute` serves metrics that are requested later.

    >>> [round(r.value, 3) for r in measure_rows([[1.0, 0.0], [0.0, 1.0]], ["mean_cosine"], errors=False)]
    [0.0]
    """
    request = Request.of(**options, metrics=metrics)
    statistics, vectors, out = request.statistics, request.vectors, request.output.out
    if isinstance(rows, str | Path):
        by_name = vectors.documents if isinstance(vectors.documents, str) else None  # an array of the file
        rows = open_vectors(rows, tensor=vectors.tensor, column=vectors.column, documents=by_name)
    measurement = _RowMeasurement(rows, request, progress)
    if out is None:
        return [m.record for m in measurement.results(site, "")[1]]
    is_file = isinstance(rows, Vectors)
    data = rows.info if is_file else {"rows": len(as_rows(rows))}
    facts = {"kind": "vectors", "data": data, "unit": measurement.unit, "seed": statistics.seed}
    facts |= {"sample": measurement.sample, "complete": False, "settings": {"data": data, **request.settings()}}
    info = run_info(facts, measurement.metrics)
    overwrite = request.output.overwrite
    with open_run(out, info, command=command, overwrite=overwrite, resumable=is_file) as run:
        if run.info.get("complete"):
            return list(run.records())
        if not run.is_empty:
            run.rewind(0)
        cloud, measured = measurement.results(site, run.name)
        save_cloud(run, cloud, site=site, blocks=request.output.keep_blocks)
        save_measured(run, measured)
        run.update_info(complete=True)
    return [m.record for m in measured]


class _RowMeasurement:
    """One pass or two over rows, and the metrics of their cloud."""

    def __init__(self, rows: Any, request: Request, progress: OnProgress | None) -> None:
        self.request = request
        self.sample = request.statistics.sample or VECTOR_SAMPLE
        documents = None if isinstance(request.vectors.documents, str) else request.vectors.documents
        self._batches, self._document = _source(rows, documents, request.statistics.seed, progress)
        known = {"documents"} if self._document is not None else set()
        self.metrics = choose_metrics(request.statistics.metrics, known)
        self.unit = "documents" if known else "rows"

    def results(self, site: str, run: str) -> tuple[Cloud, list[MetricResult]]:
        """Read the rows and evaluate the metrics."""
        statistics = self.request.statistics
        names = collected_statistics(self.metrics, documented=self._document is not None)
        cloud = collect(self._batches, names, sample=self.sample, precise=self.request.vectors.precise)
        errors: Any = "fast" if statistics.errors and statistics.metrics is None else statistics.errors
        return cloud, evaluate(cloud, self.metrics, errors=errors, site=site, run=run, unit=self.unit)


def row_results(vectors: Vectors, metrics: Sequence[str] | None = None) -> list[MetricResult]:
    """Measure an open file of vectors as `measure_rows` does, and return the replicates as well."""
    return _RowMeasurement(vectors, Request.of(metrics=metrics), None).results("vectors", "")[1]


def _source(
    rows: Any, documents: Any, seed: int, progress: OnProgress | None
) -> tuple[Callable[[], Iterator[Rows]], Tensor | None]:
    """A function that reads the rows from the start, and their documents."""
    if isinstance(rows, Vectors):
        known = rows.documents if documents is None else documents
        document = None if known is None else torch.as_tensor(known)
        block = block_numbers(rows.n, document)
        return lambda: _with_progress(_file_batches(rows, document, block, seed), progress), document
    x = as_rows(rows)
    document = None if documents is None else torch.as_tensor(documents)
    block_numbers(len(x), document)
    return lambda: _with_progress(batches_of(x, document, seed=seed), progress), document


def _file_batches(source: Vectors, document: Tensor | None, block: Tensor, seed: int) -> Iterator[Rows]:
    first = 0
    for x in source.batches(READ_ROWS):
        part = slice(first, first + len(x))
        documents = None if document is None else document[part]
        yield bare_rows(x, first=first, document=documents, block=block[part], seed=seed)
        first += len(x)


def _with_progress(batches: Iterator[Rows], progress: OnProgress | None) -> Iterator[Rows]:
    for rows in batches:
        yield rows
        if progress is not None:
            progress(len(rows.tokens))
