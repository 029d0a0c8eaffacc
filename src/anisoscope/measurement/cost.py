"""What a measurement would cost, estimated from one batch and a few timed products before anything is written."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from anisoscope.capture import find_layout
from anisoscope.data.inputs import device_of, first_item, peek
from anisoscope.errors import InputError
from anisoscope.measurement.engine import Engine
from anisoscope.measurement.measure_model import MEASURE_OPTIONS, open_for, read_data
from anisoscope.measurement.request import MODEL_SAMPLE, Request, accepts
from anisoscope.models.open import Opened
from anisoscope.stats.collect import BLOCKS
from anisoscope.stats.knn import nearest
from anisoscope.stats.moments import Moments
from anisoscope.stats.neighbours import LISTED
from anisoscope.stats.rows import bare_rows

_EXTREMES = 256  # rows of largest norm per site
_POLICIES = 2
_REST = 1.6  # total evaluation time over that of searches and spectra: 1.3 to 1.7 at widths from 256 to 1280


@dataclass(frozen=True)
class Cost:
    """Sites, tokens, and estimates: seconds of the pass and of the evaluation, bytes of memory and of scratch disk."""

    sites: int
    width: int
    tokens: int | None
    tokens_per_second: float
    pass_seconds: float | None
    evaluation_seconds: float
    memory: int
    scratch: int


@accepts(*MEASURE_OPTIONS)
def estimate_cost(model: str | Path | Opened, **options: Any) -> Cost:
    """Estimate what `measure` with the same arguments would cost: run one batch, time one search and one spectrum.

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
    assert opened is not None
    module = opened.model
    first, _ = peek(read_data(opened, request))
    layout = find_layout(module, first_item(first, device_of(module)))
    engine = Engine(module, layout, request.having(batch_tokens=None), expected=statistics.tokens)
    began = time.perf_counter()
    engine.run([first])
    rate = engine.tokens / (time.perf_counter() - began)
    width = _width(module)
    sample = statistics.sample or MODEL_SAMPLE
    rows = min(sample, statistics.tokens or sample)
    x = torch.randn(min(rows, 1024), width)
    searching = _seconds(lambda: nearest(x, min(LISTED, len(x) - 1))) * (rows / len(x)) ** 2
    spectrum = _seconds(lambda: _spectra(x))
    clouds = [site for site in engine.sites if site.kind != "pattern"]
    replicates = BLOCKS + 1 if statistics.errors else 1
    one_site = _REST * (searching + _POLICIES * replicates * spectrum)
    return Cost(
        sites=len(engine.sites),
        width=width,
        tokens=statistics.tokens,
        tokens_per_second=rate,
        pass_seconds=None if statistics.tokens is None else statistics.tokens / rate,
        evaluation_seconds=len(clouds) * one_site,
        memory=len(clouds) * _memory(width, rows),
        scratch=len(clouds) * 2 * BLOCKS * 2 * width * width * 8 if 2 * width * width > 1 << 20 else 0,
    )


def _memory(width: int, rows: int) -> int:
    """Bytes that a site holds while data is read: two scatters, the sample, the rows of largest norm."""
    return 2 * width * width * 8 + (rows + _EXTREMES) * width * 4


def _spectra(x: Tensor) -> None:
    """The spectra that one replicate needs."""
    moments = Moments.of(bare_rows(x))
    _ = moments.eigenvalues, moments.eigenvalues_uncentred


def _width(module: nn.Module) -> int:
    config = getattr(module, "config", None)
    return int(getattr(config, "hidden_size", None) or max(p.shape[-1] for p in module.parameters()))


def _seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began
