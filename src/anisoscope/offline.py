"""The offline driver: what is there to be measured once, without a training loop."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from anisoscope import __version__
from anisoscope.errors import InputError, MetricError
from anisoscope.metrics import Metric, catalogue, find
from anisoscope.metrics.evaluate import Measured, evaluate
from anisoscope.models.vectors import Vectors, write_npy
from anisoscope.records import Record
from anisoscope.stats.blocks import Block, Cloud, from_arrays, to_arrays
from anisoscope.stats.cloud import as_rows, batches_of, block_numbers, collect, with_documents
from anisoscope.stats.moments import Moments
from anisoscope.stats.rows import Rows, bare_rows
from anisoscope.store import Run
from anisoscope.transform import Remedy, fit_remedy

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

    `rows` is an array (n, d) or vectors opened with `open_vectors`; `documents` gives each row's document, so that
    error bars and nulls know which rows belong together. With `out` the records, the pooled statistics and, with
    `keep_blocks`, those of each block go to a run folder, from which `recompute` serves metrics asked for later.

    >>> [round(r.value, 3) for r in measure_rows([[1.0, 0.0], [0.0, 1.0]], ["mean_cosine"], errors=False)]
    [0.0]
    """
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


def recompute(run: str | Path | Run, metrics: Sequence[str]) -> list[Record]:
    """Metrics of an old run from the statistics it keeps; the new records are added to it.

    Error bars need the statistics of the blocks (`keep_blocks`, `--keep-blocks`).
    """
    path = run.path if isinstance(run, Run) else Path(run)
    chosen = find(metrics)
    Run.open(path)  # a folder that is no run is refused before anything is written to it
    with Run.create(path, resume=True) as writer:
        addresses = writer.statistics()
        whole = [(step, site, tokens) for step, site, tokens, block in addresses if block is None]
        if not whole:
            raise InputError(f"run {writer.name} keeps no statistics; measure it again with --out")
        unit = str(writer.info.get("unit", "rows"))
        out: list[Measured] = []
        for step, site, tokens in whole:
            blocks = [b for s, at, t, b in addresses if (s, at, t) == (step, site, tokens) and b is not None]
            cloud = _stored_cloud(writer, step, site, tokens, blocks)
            for metric in chosen:
                missing = sorted(name for name in metric.sources if name not in cloud.stats)
                if missing:
                    needed = f"the run keeps no {', '.join(missing)} at {site}"
                    raise MetricError(metric.name, needed, "measure again with this metric")
            out += evaluate(
                cloud, chosen, site=site, run=writer.name, step=step, tokens=tokens, unit=unit, errors=bool(blocks)
            )
        writer.update_info(metrics={metric.name: metric.card() for metric in chosen})
        save_measured(writer, out)
    return [m.record for m in out]


def choose_metrics(names: Sequence[str] | None, known: set[str]) -> list[Metric]:
    """The metrics named, or all that rows with these facts (`documents`, `tokens`) can have."""
    if names is None:
        return [m for m in catalogue().values() if m.requires <= known]
    chosen = find(names)
    for metric in chosen:
        lacking = sorted(metric.requires - known)
        if lacking:
            raise MetricError(
                metric.name, f"the rows come without {' and '.join(lacking)}", "give them, or leave it out"
            )
    return chosen


def run_info(info: dict[str, Any], metrics: Iterable[Metric]) -> dict[str, Any]:
    """What a run says of itself: the given facts, the versions, the cards of its metrics."""
    versions = {"anisoscope": __version__, "torch": torch.__version__, "numpy": np.__version__}
    return {
        **info,
        "versions": {**versions, "python": platform.python_version()},
        "metrics": {metric.name: metric.card() for metric in metrics},
    }


def save_measured(run: Run, measured: Sequence[Measured]) -> None:
    run.append([m.record for m in measured], [m.replicates or None for m in measured])


def save_cloud(run: Run, cloud: Cloud, *, site: str, step: int = 0, tokens: str = "all", blocks: bool = False) -> None:
    """Keeps a cloud's pooled statistics, and those of its blocks where asked."""
    run.save_statistics(step, site, tokens, _numpy(to_arrays(cloud.stats)))
    for block in cloud.blocks if blocks else ():
        run.save_statistics(step, site, tokens, _numpy(to_arrays(block.load())), block=block.number)


def _stored_cloud(run: Run, step: int, site: str, tokens: str, blocks: Sequence[int]) -> Cloud:
    def load(block: int | None) -> dict[str, Any]:
        arrays = run.load_statistics(step, site, tokens, block)
        return from_arrays({name: torch.from_numpy(array) for name, array in arrays.items()})

    return Cloud(load(None), tuple(Block(number, load(number)) for number in blocks))


def _numpy(arrays: dict[str, Tensor]) -> dict[str, np.ndarray[Any, Any]]:
    """Tensors as numpy arrays; bfloat16, which numpy lacks, is widened."""
    return {name: (t.float() if t.dtype == torch.bfloat16 else t).numpy() for name, t in arrays.items()}


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
