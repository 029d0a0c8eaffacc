"""Measuring and remedying vectors: arrays in memory, files on disk."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from anisoscope.data.vectors import Vectors, open_vectors, write_npy
from anisoscope.measurement.run_output import choose_metrics, run_info, save_cloud, save_measured
from anisoscope.metrics.evaluate import evaluate
from anisoscope.records import Record
from anisoscope.remedies import Remedy, fit_remedy
from anisoscope.stats.collect import as_rows, batches_of, block_numbers, collect, with_documents
from anisoscope.stats.moments import Moments
from anisoscope.stats.rows import Rows, bare_rows
from anisoscope.store.run import Run

SAMPLE = 8192  # rows kept for metrics that need rows: neighbours, clusters, words
Progress = Callable[[int], None]  # told how many more rows have gone by


def measure_rows(
    rows: Any,
    metrics: Sequence[str] | None = None,
    *,
    documents: Any = None,
    sample: int = SAMPLE,
    seed: int = 0,
    precise: bool = False,
    errors: bool = True,
    site: str = "vectors",
    out: str | Path | None = None,
    keep_blocks: bool = False,
    command: str | None = None,
    progress: Progress | None = None,
) -> list[Record]:
    """Every metric (or those named) of a cloud of vectors, with error bars and nulls.

    `rows` is an array (n, d), the path of a file of vectors, or what `open_vectors` opened; `documents` gives each
    row's document, so that error bars and nulls know which rows belong together. With `out` the records, the pooled
    statistics and, with `keep_blocks`, those of each block go to a run folder, from which `recompute` serves metrics
    asked for later.

    >>> [round(r.value, 3) for r in measure_rows([[1.0, 0.0], [0.0, 1.0]], ["mean_cosine"], errors=False)]
    [0.0]
    """
    if isinstance(rows, str | Path):
        rows = open_vectors(rows)
    look, document = _source(rows, documents, seed, progress)
    chosen = choose_metrics(metrics, {"documents"} if document is not None else set())
    names = with_documents(set().union(*(m.sources for m in chosen)) | {"Directions", "Moments"}, document)
    cloud = collect(look, names, sample=sample, precise=precise)
    unit = "rows" if document is None else "documents"
    measured = evaluate(
        cloud, chosen, site=site, run=_run_name(out), unit=unit, errors=errors, slow_errors=metrics is not None
    )
    if out is not None:
        info = {
            "kind": "vectors",
            "data": rows.info if isinstance(rows, Vectors) else {"rows": cloud.n},
            "unit": unit,
            "seed": seed,
            "sample": sample,
        }
        with Run.create(out, run_info(info, chosen), command=command) as run:
            save_cloud(run, cloud, site=site, blocks=keep_blocks)
            save_measured(run, measured)
    return [m.record for m in measured]


def _source(
    rows: Any, documents: Any, seed: int, progress: Progress | None
) -> tuple[Callable[[], Iterator[Rows]], Tensor | None]:
    """How to look at the rows (as often as needed), and their documents."""
    if isinstance(rows, Vectors):
        known = rows.documents if documents is None else documents
        document = None if known is None else torch.as_tensor(known)
        block = block_numbers(rows.n, document)
        return lambda: _told(_file_batches(rows, document, block, seed), progress), document
    x = as_rows(rows)
    document = None if documents is None else torch.as_tensor(documents)
    block_numbers(len(x), document)
    return lambda: _told(batches_of(x, document, seed=seed), progress), document


def _file_batches(source: Vectors, document: Tensor | None, block: Tensor, seed: int) -> Iterator[Rows]:
    first = 0
    for x in source.batches(8192):
        there = slice(first, first + len(x))
        yield bare_rows(
            x, first=first, document=None if document is None else document[there], block=block[there], seed=seed
        )
        first += len(x)


def _told(batches: Iterator[Rows], progress: Progress | None) -> Iterator[Rows]:
    for rows in batches:
        yield rows
        if progress is not None:
            progress(len(rows.tokens))


def _run_name(out: str | Path | None) -> str:
    return "" if out is None else Path(out).name


def transform_rows(
    source: Vectors,
    out: str | Path,
    *,
    centre: bool = False,
    remove_top: int = 0,
    whiten: bool = False,
    shrinkage: float | None = None,
    progress: Progress | None = None,
) -> Remedy:
    """Fits a remedy on vectors in one pass and writes the remedied vectors in a second."""
    look, _ = _source(source, None, 0, progress)
    cloud = collect(look, {"Moments"})
    remedy = fit_remedy(cloud.get(Moments), centre=centre, remove_top=remove_top, whiten=whiten, shrinkage=shrinkage)
    with write_npy(out, source.n, source.d) as write:
        for rows in look():
            write(remedy(rows.x).float())
    return remedy
