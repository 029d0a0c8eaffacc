"""What a measurement would cost, estimated from one batch and a few timed products before anything is written."""

from __future__ import annotations

import json
import mmap
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from anisoscope.data.inputs import device_of, first_item, peek
from anisoscope.errors import InputError
from anisoscope.hooks import find_layout
from anisoscope.measurement.engine import Engine
from anisoscope.measurement.holdings import Holdings, holdings_of, return_freed_memory
from anisoscope.measurement.measure_model import MEASURE_OPTIONS
from anisoscope.measurement.model_data import open_for, read_data
from anisoscope.measurement.request import Request, accepts
from anisoscope.measurement.resume import SAVED_EVERY
from anisoscope.measurement.run_output import KEPT, run_info, small_statistics
from anisoscope.measurement.site_statistics import EvaluationOptions, SiteResult
from anisoscope.models.open import Opened
from anisoscope.records import SUMMED_KINDS, Replicates
from anisoscope.stats.cloud import Cloud, Stats, to_arrays
from anisoscope.stats.collect import BLOCKS
from anisoscope.stats.knn import nearest
from anisoscope.stats.moments import Moments
from anisoscope.stats.neighbours import LISTED
from anisoscope.stats.rows import bare_rows
from anisoscope.stats.scratch import bytes_of
from anisoscope.store.record_lines import record_values, replicate_line, to_line

_POLICIES = 2
_TABLE = 56  # bytes that a kept row takes besides its numbers: its columns and its priority
_LIBRARIES = 400 << 20  # bytes of torch and transformers, if the system does not report them
_REST = 1.6  # total evaluation time over that of searches and spectra: 1.3 to 1.7 at widths from 256 to 1280


@dataclass(frozen=True)
class Cost:
    """What a measurement would take.

    Attributes:
        sites: Number of sites.
        width: Width of the residual stream, or of the widest site if it is not measured.
        tokens: Number of tokens; None for all of the data.
        tokens_per_second: Speed of the pass, including statistics.
        pass_seconds: Time of the pass; None if the number of tokens is not known.
        evaluation_seconds: Time of the evaluation.
        memory: Bytes of memory besides the parameters of the model, including the libraries.
        scratch: Bytes of scratch files, which are deleted at the end.
        folder: Bytes of the run folder at the end; 0 without one.
    """

    sites: int
    width: int
    tokens: int | None
    tokens_per_second: float
    pass_seconds: float | None
    evaluation_seconds: float
    memory: int
    scratch: int
    folder: int


@accepts(*MEASURE_OPTIONS)
def estimate_cost(model: str | Path | Opened, **options: Any) -> Cost:
    """Estimate what `measure` with the same arguments would cost: run one batch, evaluate one site, time a spectrum.

    Args:
        model: A folder, a hub id, or what `open_model` returned.
        {options}

    Raises:
        InputError: There is no data to read.
    """
    request = Request.of(**options)
    statistics = request.statistics
    if request.source() is None:
        raise InputError("a cost is estimated for data; measuring weights alone takes seconds")
    opened = open_for(model, request)
    module = opened.model
    libraries = _other_bytes(module)
    first, batches = peek(read_data(opened, request))
    layout = find_layout(module, first_item(first, device_of(module)))
    engine = Engine(module, layout, request.having(batch_tokens=None), expected=statistics.tokens)
    began = time.perf_counter()
    engine.run([first])
    rate = engine.tokens / (time.perf_counter() - began)
    tokens, holdings = _holdings(engine, request, batches)
    seconds = None if tokens is None else tokens / rate
    width = _stream_width(engine)
    rows = holdings.rows
    x = torch.randn(min(rows, 1024), width)
    searching = _seconds(lambda: nearest(x, min(LISTED, len(x) - 1))) * (rows / len(x)) ** 2
    spectrum = _seconds(lambda: _spectra(x))
    clouds = sum(shape.clouds for shape in holdings.shapes)
    replicates = BLOCKS + 1 if statistics.errors else 1
    one_site = _REST * (searching + _POLICIES * replicates * spectrum)
    return Cost(
        sites=len(engine.sites),
        width=width,
        tokens=statistics.tokens,
        tokens_per_second=rate,
        pass_seconds=seconds,
        evaluation_seconds=clouds * one_site,
        memory=libraries + holdings.memory + max(holdings.evaluation, _activations(engine)),
        scratch=holdings.scratch + _unfinished(request, holdings, seconds),
        folder=0 if request.output.out is None else _folder_bytes(engine, request, holdings),
    )


def _holdings(engine: Engine, request: Request, batches: Any) -> tuple[int | None, Holdings]:
    """The number of tokens, if it is known, and what the sites hold at the end of the pass."""
    limit = request.statistics.tokens
    known = limit is not None and request.data.text is not None  # reading text takes little time without the model
    tokens, blocks = engine.count(batches, limit) if known else (limit, 2 * BLOCKS)
    return tokens, holdings_of(engine, request, tokens, blocks)


def _unfinished(request: Request, holdings: Holdings, seconds: float | None) -> int:
    """Bytes of the unfinished pass in the run folder, if the pass takes so long that it is saved."""
    if request.output.out is None or (seconds is not None and seconds < SAVED_EVERY):
        return 0
    return holdings.unfinished


def _other_bytes(module: nn.Module) -> int:
    """Bytes that this process takes besides the parameters of the model: mostly libraries."""
    return_freed_memory()  # opening a model may take twice its size
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return _LIBRARIES
    return max(0, pages * mmap.PAGESIZE - bytes_of(p for p in module.parameters() if p.device.type == "cpu"))


def _stream_width(engine: Engine) -> int:
    stream = [shape.width for site, shape in engine.shapes.items() if site.kind in ("embed", "resid", "final")]
    return max(stream or [shape.width for shape in engine.shapes.values()] or [1])


def _activations(engine: Engine) -> int:
    """Bytes that the model takes for one batch: some ten tensors of the widest activation."""
    widest = max((shape.clouds * shape.width * shape.number for shape in engine.shapes.values()), default=0)
    return 10 * 4 * engine.tokens * widest


def _folder_bytes(engine: Engine, request: Request, holdings: Holdings) -> int:
    """Bytes of records, replicates, statistics and run.json, from the results of one site of each kind."""
    sites, total = engine.collected_sites, 0
    heads = sum(site.kind in SUMMED_KINDS for site in engine.sites)
    for result in engine.one_of_each(EvaluationOptions(errors=False)):
        times = heads if result.site.kind in SUMMED_KINDS else sites - heads
        total += times * _line_bytes(result, min(holdings.blocks, BLOCKS) if request.statistics.errors else 0)
        if result.site.kind not in SUMMED_KINDS:
            total += times * sum(_kept_bytes(cloud, request, sites, holdings.rows) for cloud in result.clouds.values())
    return total + len(json.dumps(run_info({}, engine.metrics), indent=2))


def _line_bytes(result: SiteResult, blocks: int) -> int:
    """Bytes of the lines of a site's records and replicates."""
    total = 0
    for measured in result.measured:
        values = record_values(measured.record, "run")
        total += len(to_line(values))
        if blocks >= 4 and measured.record.value is not None:
            total += len(replicate_line(values, Replicates([1 / 3] * blocks, [1000] * blocks)))
    return total


def _kept_bytes(cloud: Cloud, request: Request, sites: int, rows: int) -> int:
    """Bytes of the statistics of a cloud that its run keeps, with as many rows as the sample will have."""
    stats: Stats = cloud.stats if request.output.keep_statistics else small_statistics(cloud, KEPT // (2 * sites))
    arrays = to_arrays(stats)
    sample = {name: x for name, x in arrays.items() if name in ("Sample/x", "Sample/table")}
    grown = sum(bytes_of([x]) * (rows / max(1, len(x)) - 1) for x in sample.values())
    return bytes_of(arrays.values()) + max(0, round(grown))


def _spectra(x: Tensor) -> None:
    """The spectra that one replicate needs."""
    moments = Moments.of(bare_rows(x))
    _ = moments.eigenvalues, moments.eigenvalues_uncentred


def _seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began
