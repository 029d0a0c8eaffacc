"""Whether a number is a property of the model or of the sample: metrics against n, batch size and shuffling."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from anisoscope.data.inputs import device_of, first_item, peek
from anisoscope.data.vectors import Vectors, open_vectors
from anisoscope.errors import InputError
from anisoscope.hooks import find_layout
from anisoscope.measurement.engine import Engine, known_facts
from anisoscope.measurement.measure_rows import READ_ROWS, measure_rows
from anisoscope.measurement.model_data import open_for, read_data
from anisoscope.measurement.recorded_model import (
    RecordedModel,
    RecordedWindow,
    record_windows,
    recorded_batches,
    recorded_sites,
)
from anisoscope.measurement.request import MODEL_SAMPLE, VECTOR_SAMPLE, Request
from anisoscope.measurement.run_output import choose_metrics, open_run, require_usable, run_info
from anisoscope.measurement.sample_plan import SampleDesign, Units, batch_units, first_units, shuffled_units
from anisoscope.measurement.site_statistics import EvaluationOptions
from anisoscope.metrics import Metric
from anisoscope.metrics.evaluate import MetricResult, records_and_replicates
from anisoscope.models.open import Opened
from anisoscope.records import Record
from anisoscope.store.run import Run, record_key

OnStage = Callable[[str, int], None]  # called with what is being done and how many units of work it has
OnProgress = Callable[[int], None]  # called with the number of units of work since the last call


@dataclass(frozen=True)
class Listeners:
    """Whom to inform while samples are measured."""

    stage: OnStage = lambda _what, _units: None
    progress: OnProgress = lambda _more: None


def model_sensitivity(
    source: str | Path, request: Request, design: SampleDesign, *, listeners: Listeners, command: str | None = None
) -> Run:
    """Measure samples of one text; the model runs over it once.

    Args:
        source: A text model: a folder, a hub id.
        request: Its text, sites, metrics and output. Without sites, the middle of the residual stream is measured.
        design: Which samples to compare.
        listeners: Called while it runs.
        command: The command line, for the run's own record.

    Returns:
        A run. Its records without `n`, `batch` or `shuffle` in the variant are those that `measure` gives for the
        largest n.

    Raises:
        InputError: The request cannot be met; the message says what to change.
        StoreError: `out` holds a run of another request.
    """
    if request.data.text is None:
        raise InputError("Samples are drawn from a text. Give one: --text FILE.")
    out, overwrite = request.output.out, request.output.overwrite
    request = request.having(tokens=design.most)
    settings = {"data": request.data_name(), **request.settings(), **_settings(design)}
    require_usable(out, {"model": None, **settings}, overwrite=overwrite, later=("model",))
    opened = open_for(source, request)
    facts = {
        "kind": "sensitivity",
        "model": opened.info,
        "data": {"source": request.data_name(), "window": request.data.window},
        "sample": request.statistics.sample or MODEL_SAMPLE,
        "settings": {"model": [opened.info[key] for key in ("source", "revision", "digest")], **settings},
    }
    return _written(facts, request, design, lambda: _text_pool(opened, request, listeners), listeners, command)


def vector_sensitivity(
    source: str | Path, request: Request, design: SampleDesign, *, listeners: Listeners, command: str | None = None
) -> Run:
    """Measure samples of the rows of a file; the arguments and the result are those of `model_sensitivity`."""
    options = request.vectors
    vectors = open_vectors(source, tensor=options.tensor, column=options.column, documents=options.documents)
    facts = {
        "kind": "sensitivity",
        "data": vectors.info,
        "sample": request.statistics.sample or VECTOR_SAMPLE,
        "settings": {"data": vectors.info, **request.settings(), **_settings(design)},
    }
    return _written(facts, request, design, lambda: _row_pool(vectors, request, design), listeners, command)


def _settings(design: SampleDesign) -> dict[str, Any]:
    sizes = {"tokens": design.tokens, "batch_tokens": design.batch_tokens}
    return {**{name: None if x is None else list(x) for name, x in sizes.items()}, "shuffles": design.shuffles}


# --- what samples are drawn from -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Pool:
    """Units that samples consist of: windows of a text, or rows of a file."""

    document: Units  # of each unit
    rows: Units  # of each unit
    unit: str  # what a document is
    metrics: Sequence[Metric]
    measured: Callable[[Units, bool], list[MetricResult]]  # results of some units, with or without error bars


def _text_pool(opened: Opened, request: Request, listeners: Listeners) -> _Pool:
    """Run the model over the text and keep its tensors."""
    if opened.modality != "text":
        raise InputError(f"{opened.info['source']} takes {opened.modality}. Give a text model, or a file of vectors.")
    listeners.stage("tokens", request.statistics.tokens or 0)
    first, batches = peek(read_data(opened, request))
    layout = find_layout(opened.model, first_item(first, device_of(opened.model)))
    sites = recorded_sites(layout, request.sites.sites)
    windows = record_windows(opened.model, layout, sites, batches, listeners.progress)
    request = request.having(sites=[str(site) for site in sites], batch_tokens=None)
    model, unit = RecordedModel(layout), first.unit

    def measured(units: Units, errors: bool) -> list[MetricResult]:
        return _engine_results(model, request, [windows[unit] for unit in units], unit, errors=errors)

    document, rows = (np.array([getattr(window, name) for window in windows]) for name in ("document", "tokens"))
    return _Pool(document, rows, unit, choose_metrics(request.statistics.metrics, known_facts(sites)), measured)


def _engine_results(
    model: RecordedModel, request: Request, windows: Sequence[RecordedWindow], unit: str, *, errors: bool
) -> list[MetricResult]:
    """What `measure` gives for these windows."""
    engine = Engine(model, model.layout, request, expected=sum(window.tokens for window in windows))
    engine.run(recorded_batches(windows, request.data.batch, unit))
    results = engine.results(EvaluationOptions(errors=errors))
    return [measured for result in results for measured in result.measured]


def _row_pool(vectors: Vectors, request: Request, design: SampleDesign) -> _Pool:
    """Read the first rows of a file."""
    parts, read = [], 0
    for part in vectors.batches(READ_ROWS):
        parts.append(part[: design.most - read])
        read += len(parts[-1])
        if read >= design.most:
            break
    x = torch.cat(parts)  # (n, d)
    known = None if vectors.documents is None else np.asarray(vectors.documents)[:read]
    document = np.arange(read) if known is None else _numbered(known)
    statistics = request.statistics
    options: dict[str, Any] = {"sample": statistics.sample, "seed": statistics.seed, "precise": request.vectors.precise}

    def measured(units: Units, errors: bool) -> list[MetricResult]:
        documents = None if known is None else _numbered(document[units])
        run = measure_rows(x[units], statistics.metrics, errors=errors, documents=documents, **options)
        replicates = run.replicates()
        return [MetricResult(record, tuple(replicates.get(record_key(record), ()))) for record in run.records()]

    metrics = choose_metrics(statistics.metrics, set() if known is None else {"documents"})
    return _Pool(document, np.ones(read, dtype=np.int64), "rows" if known is None else "documents", metrics, measured)


def _numbered(document: Units) -> Units:
    """Documents numbered in their order; one whose rows are not contiguous counts as several."""
    return np.cumsum(np.diff(document, prepend=document[0]) != 0)


# --- samples -------------------------------------------------------------------------------------------------------


def _written(
    facts: dict[str, Any],
    request: Request,
    design: SampleDesign,
    pool_of: Callable[[], _Pool],
    listeners: Listeners,
    command: str | None,
) -> Run:
    """Open the run, and measure all samples unless it is complete."""
    output, seed = request.output, request.statistics.seed
    require_usable(output.out, facts["settings"], overwrite=output.overwrite)
    if output.out is not None and not output.overwrite and (Path(output.out) / "run.json").is_file():
        finished = Run.open(output.out)
        if finished.info.get("complete"):
            return finished
    pool = pool_of()  # before the folder is created: a request that fails must not block the next one
    total, natural = int(pool.rows.sum()), shuffled_units(pool.document, 0, seed)
    sizes, batch_sizes = design.sizes(total), design.batch_sizes(total)
    batch_sizes = [size for size in batch_sizes if _holds_batches(pool, natural, size, design)]
    info = run_info({**facts, "seed": seed, "unit": pool.unit, "complete": False}, pool.metrics)
    with open_run(output.out, info, command=command, overwrite=output.overwrite) as run:
        if not run.is_empty:
            run.rewind(0)  # the process was interrupted between two samples
        run.update_info(data={"tokens": total})
        listeners.stage("samples", (len(sizes) + len(batch_sizes)) * (1 + design.shuffles))
        for shuffle in range(design.shuffles + 1):
            order = shuffled_units(pool.document, shuffle, seed)
            for results in _samples(pool, order, sizes, batch_sizes, errors=shuffle == 0 and request.statistics.errors):
                extra = {"shuffle": shuffle} if shuffle else {}
                labelled = [_labelled(each, run.name, extra) for each in results]
                run.append(*records_and_replicates(labelled))
                listeners.progress(1)
        run.update_info(sensitivity={"n": sizes, "batches": batch_sizes, "shuffles": design.shuffles}, complete=True)
    return run


def _holds_batches(pool: _Pool, order: Units, size: int, design: SampleDesign) -> bool:
    """Whether whole units give two batches of this size; a size that was requested must."""
    if len(batch_units(order, pool.rows, size)) > 1:
        return True
    if design.batch_tokens is None:
        return False
    raise InputError(
        f"Whole windows give fewer than two batches of {size:,} tokens. Use smaller --batch-tokens, or larger --tokens."
    )


def _samples(
    pool: _Pool, order: Units, sizes: Sequence[int], batch_sizes: Sequence[int], *, errors: bool
) -> Iterator[list[MetricResult]]:
    """Measure the first n rows for each n, the largest first, then the batches of each size."""
    for size in reversed(sizes):
        largest = {} if size == sizes[-1] else {"n": size}
        results = pool.measured(first_units(order, pool.rows, size), errors)
        yield [_labelled(each, "", largest) for each in results]
    for size in batch_sizes:
        batches = [pool.measured(units, False) for units in batch_units(order, pool.rows, size)]
        yield _over_batches([[each.record for each in results] for results in batches], size)


def _over_batches(batches: Sequence[Sequence[Record]], size: int) -> list[MetricResult]:
    """Mean (with its standard error) and deviation of each number over batches, for numbers that all of them have."""
    values: dict[Any, list[float]] = {}
    for record in (record for records in batches for record in records):
        if record.value is not None:
            values.setdefault(record_key(record), []).append(record.value)
    results, k = [], len(batches)
    for record in batches[0]:
        listed = values.get(record_key(record), [])
        if len(listed) < max(2, k):
            continue
        deviation = statistics.stdev(listed)
        for of, value, error in (
            ("mean", statistics.fmean(listed), deviation / math.sqrt(k)),
            ("std", deviation, None),
        ):
            kind = None if error is None else f"spread-{k}-batches"
            variant = {**record.variant, "over": "batches", "of batches": of, "batch": size}
            spread = replace(
                record, value=value, error=error, error_kind=kind, null=None, n=size, note=None, variant=variant
            )
            results.append(MetricResult(spread))
    return results


def _labelled(result: MetricResult, run: str, extra: dict[str, Any]) -> MetricResult:
    record = result.record
    return replace(result, record=replace(record, run=run, variant={**record.variant, **extra}))
