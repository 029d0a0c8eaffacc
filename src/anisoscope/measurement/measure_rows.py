"""Measuring vectors: arrays in memory, files on disk, and batches that arrive one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from anisoscope.data.vectors import Vectors, open_vectors
from anisoscope.errors import InputError
from anisoscope.measurement.engine import OnProgress
from anisoscope.measurement.request import VECTOR_SAMPLE, Request, VectorOptions, accepts, names_of
from anisoscope.measurement.row_engine import Batches, RowEngine, RowOptions
from anisoscope.measurement.row_stream import flat_rows
from anisoscope.measurement.run_output import choose_metrics, open_run, run_info, save_cloud
from anisoscope.metrics.evaluate import MetricResult, records_and_replicates
from anisoscope.stats.cloud import Cloud
from anisoscope.stats.collect import as_rows, block_numbers
from anisoscope.store.run import Run

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
) -> Run:
    """Measure a cloud of vectors: every metric, or those named, with error bars and nulls.

    Args:
        rows: An array (n, d): a tensor, an array, a data frame or nested lists; the path of a file of vectors, or what
            `open_vectors` returned; or an iterable of batches (n, d) or (batch, time, d), where every sequence counts
            as one document. Batches are read once, in constant memory; use `Geometry` if they come with masks.
        metrics: Metrics by name. Default: all.
        site: The name of the cloud in its records.
        command: The command line, for the run's own record.
        progress: Called with the number of rows since the last call.
        {options}

    Returns:
        A run with one record per number. Without `out` it lives in a temporary folder, as long as the returned object.
        With `out` the pooled statistics are kept too, from which `recompute` serves metrics that are requested later.

    Raises:
        InputError: The rows are not a matrix of numbers, or a metric does not exist.
        StoreError: `out` holds a run of another request.

    >>> [round(r.value, 3) for r in measure_rows([[1.0, 0.0], [0.0, 1.0]], ["mean_cosine"], errors=False)]
    [0.0]
    """
    request = Request.of(**options, metrics=metrics)
    vectors, out = request.vectors, request.output.out
    if isinstance(rows, str | Path):
        by_name = vectors.documents if isinstance(vectors.documents, str) else None  # an array of the file
        rows = open_vectors(rows, tensor=vectors.tensor, column=vectors.column, documents=by_name)
    source = _source_of(rows, None if isinstance(vectors.documents, str) else vectors.documents)
    engine = _engine_for(source, request)
    is_file = isinstance(rows, Vectors)
    data = rows.info if is_file else {"rows": source.n}
    facts = {"kind": "vectors", "data": data, "seed": engine.options.seed, "sample": engine.options.sample}
    facts |= {"complete": False, "settings": {"data": data, **request.settings()}}
    info, overwrite = run_info(facts, []), request.output.overwrite
    with open_run(out, info, command=command, overwrite=overwrite, resumable=is_file) as run:
        if run.info.get("complete"):
            return run
        if not run.is_empty:
            run.rewind(0)
        cloud = _collected(engine, source, progress)
        measured = engine.results(cloud, site=site, run=run.name)
        if out is not None:
            save_cloud(run, cloud, site=site, blocks=request.output.keep_blocks)
        run.update_info(**run_info({"unit": engine.stream.unit}, engine.metrics), data={"rows": engine.stream.rows})
        run.append(*records_and_replicates(measured))
        run.update_info(complete=True)
    return run


def row_results(vectors: Vectors, metrics: Sequence[str] | None = None) -> list[MetricResult]:
    """Measure an open file of vectors as `measure_rows` does, and return the replicates as well."""
    source = _source_of(vectors, None)
    engine = _engine_for(source, Request.of(metrics=metrics))
    return engine.results(_collected(engine, source, None), site="vectors", run="")


@dataclass(frozen=True)
class _RowSource:
    """Rows to measure: how they are read, their number if it is known, and whether they can be read again."""

    read: Callable[[RowEngine], Batches]
    n: int | None = None
    documented: bool | None = None  # None: known when the first batch comes
    again: bool = True


def _engine_for(source: _RowSource, request: Request) -> RowEngine:
    statistics = request.statistics
    metrics = statistics.metrics
    if metrics is not None:  # of batches it is not known yet whether they have documents
        metrics = choose_metrics(metrics, set() if source.documented is False else {"documents"})
    sample, precise = statistics.sample or VECTOR_SAMPLE, request.vectors.precise
    options = RowOptions(metrics, sample, statistics.seed, statistics.errors, precise, source.n)
    return RowEngine(options, twice=source.again)


def _collected(engine: RowEngine, source: _RowSource, progress: OnProgress | None) -> Cloud:
    """Read the rows, once or twice, and return their statistics."""

    def read() -> Iterator[tuple[Tensor, Tensor | None]]:
        for x, document in source.read(engine):
            yield x, document
            if progress is not None:
                progress(len(x))

    for x, document in read():
        engine.add(x, document)
    if not engine.stream.rows:
        raise InputError("The batches hold no rows. Give at least one batch with rows.")
    return engine.cloud(again=read if source.again else None)


def _source_of(rows: Any, documents: Any) -> _RowSource:
    if isinstance(rows, Vectors):
        known = rows.documents if documents is None else documents
        document = None if known is None else torch.as_tensor(known)
        block_numbers(rows.n, document)  # refuses documents that do not match
        return _RowSource(lambda _: _parts(rows.batches(READ_ROWS), document), rows.n, document is not None)
    if _are_batches(rows):
        if documents is not None:
            raise InputError("Batches come with documents of their own. Use Geometry: update(rows, documents=…).")
        return _RowSource(lambda engine: _flat(rows, engine), again=False)
    x = as_rows(rows)
    document = None if documents is None else torch.as_tensor(documents)
    block_numbers(len(x), document)
    return _RowSource(lambda _: _parts(x.split(READ_ROWS), document), len(x), document is not None)


def _are_batches(rows: Any) -> bool:
    """Whether this is an iterable of batches: an iterator, a loader, or a list of matrices."""
    if hasattr(rows, "__array__") or hasattr(rows, "select_dtypes") or not isinstance(rows, Iterable):
        return False
    if isinstance(rows, list | tuple):
        return bool(rows) and getattr(rows[0], "ndim", 0) in (2, 3)
    return True


def _flat(batches: Iterable[Any], engine: RowEngine) -> Iterator[tuple[Tensor, Tensor | None]]:
    for batch in batches:
        x, document = flat_rows(batch, None, None, engine.stream.next_sequence)
        if len(x):
            yield x, document


def _parts(batches: Iterable[Tensor], document: Tensor | None) -> Iterator[tuple[Tensor, Tensor | None]]:
    first = 0
    for x in batches:
        yield x, None if document is None else document[first : first + len(x)]
        first += len(x)
