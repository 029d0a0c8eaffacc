"""Measuring vectors: arrays in memory and files on disk; and applying a remedy to them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from anisoscope.data.vectors import Vectors, open_vectors, write_npy
from anisoscope.measurement.engine import OnProgress
from anisoscope.measurement.request import VECTOR_SAMPLE, Request, VectorOptions, accepts, names_of
from anisoscope.measurement.run_output import choose_metrics, open_run, run_info, save_cloud, save_measured
from anisoscope.metrics.evaluate import evaluate
from anisoscope.records import Record
from anisoscope.remedies import Remedy, fit_remedy
from anisoscope.stats.collect import as_rows, batches_of, block_numbers, collect, with_documents
from anisoscope.stats.moments import Moments
from anisoscope.stats.rows import Rows, bare_rows

_ROWS = 8192  # of a file, read at once
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
    by_name = vectors.documents if isinstance(vectors.documents, str) else None  # an array of the file
    if isinstance(rows, str | Path):
        rows = open_vectors(rows, tensor=vectors.tensor, column=vectors.column, documents=by_name)
    sample = statistics.sample or VECTOR_SAMPLE
    documents = vectors.documents if by_name is None else None
    batches, document = _source(rows, documents, statistics.seed, progress)
    chosen = choose_metrics(metrics, {"documents"} if document is not None else set())
    names = with_documents(set().union(*(m.sources for m in chosen)) | {"Directions", "Moments"}, document)
    unit = "rows" if document is None else "documents"

    def measured_as(run: str) -> tuple[Any, list[Any]]:
        cloud = collect(batches, names, sample=sample, precise=vectors.precise)
        labels: dict[str, Any] = {"site": site, "run": run, "unit": unit}
        errors: Any = "fast" if statistics.errors and metrics is None else statistics.errors
        return cloud, evaluate(cloud, chosen, errors=errors, **labels)

    if out is None:
        return [m.record for m in measured_as("")[1]]
    is_file = isinstance(rows, Vectors)
    data = rows.info if is_file else {"rows": len(as_rows(rows))}
    facts = {"kind": "vectors", "data": data, "unit": unit, "seed": statistics.seed, "sample": sample}
    info = run_info({**facts, "complete": False, "settings": {"data": data, **request.settings()}}, chosen)
    overwrite = request.output.overwrite
    with open_run(out, info, command=command, overwrite=overwrite, resumable=is_file) as run:
        if run.info.get("complete"):
            return list(run.records())
        if not run.is_empty:
            run.rewind(0)
        cloud, measured = measured_as(run.name)
        save_cloud(run, cloud, site=site, blocks=request.output.keep_blocks)
        save_measured(run, measured)
        run.update_info(complete=True)
    return [m.record for m in measured]


def transform_rows(
    source: Vectors,
    out: str | Path,
    *,
    centre: bool = False,
    remove_top: int = 0,
    whiten: bool = False,
    shrinkage: float | None = None,
    progress: OnProgress | None = None,
) -> Remedy:
    """Fit a remedy on vectors in one pass and write the transformed vectors in a second.

    Returns:
        The fitted remedy.
    """
    batches, _ = _source(source, None, 0, progress)
    cloud = collect(batches, {"Moments"})
    remedy = fit_remedy(cloud.get(Moments), centre=centre, remove_top=remove_top, whiten=whiten, shrinkage=shrinkage)
    with write_npy(out, source.n, source.d) as write:
        for rows in batches():
            write(remedy(rows.x).float())
    return remedy


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
    for x in source.batches(_ROWS):
        part = slice(first, first + len(x))
        documents = None if document is None else document[part]
        yield bare_rows(x, first=first, document=documents, block=block[part], seed=seed)
        first += len(x)


def _with_progress(batches: Iterator[Rows], progress: OnProgress | None) -> Iterator[Rows]:
    for rows in batches:
        yield rows
        if progress is not None:
            progress(len(rows.tokens))
