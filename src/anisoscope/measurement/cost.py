"""What a measurement would cost, from one batch and a few timed products, before anything is written."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from anisoscope.capture import find_layout
from anisoscope.data.inputs import device_of, first_item, peek
from anisoscope.errors import InputError
from anisoscope.measurement.measure_model import Asked, open_for, read_data
from anisoscope.models.open import Opened
from anisoscope.stats.collect import BLOCKS
from anisoscope.stats.knn import nearest
from anisoscope.stats.moments import Moments
from anisoscope.stats.neighbours import LISTED
from anisoscope.stats.rows import bare_rows

_HELD = 256  # extremes a site
_POLICIES = 2
_REST = 1.6  # all of the evaluation over searches and spectra: 1.3 to 1.7 at widths from 256 to 1280


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


def estimate_cost(
    model: str | Path | Opened,
    *,
    text: Any = None,
    images: Any = None,
    audio: Any = None,
    window: int | None = None,
    batch: int = 8,
    opening: Mapping[str, Any] | None = None,
    reading: Mapping[str, Any] | None = None,
    **request: Any,
) -> Cost:
    """What `measure` with the same arguments would cost: one batch is run, one search and one spectrum timed."""
    asked = Asked(**request)
    sources = {"text": text, "image": images, "audio": audio}
    given = {kind: source for kind, source in sources.items() if source is not None}
    if not given:
        raise InputError("a cost is estimated for data; weights alone take seconds")
    opened = open_for(model, sources, head=asked.weights or asked.generate is not None, opening=opening or {})
    assert opened is not None
    module = opened.model
    first, _ = peek(read_data(opened, given, asked.tokens, window, batch, dict(reading or {})))
    layout = find_layout(module, first_item(first, device_of(module)))
    survey = asked.survey(module, layout, tokens=asked.tokens)
    began = time.perf_counter()
    survey.run([first], None)
    rate = survey.counted / (time.perf_counter() - began)
    width = _width(module)
    rows = min(asked.sample, asked.tokens or asked.sample)
    x = torch.randn(min(rows, 1024), width)
    searching = _seconds(lambda: nearest(x, min(LISTED, len(x) - 1))) * (rows / len(x)) ** 2
    spectrum = _seconds(lambda: _spectra(x))
    clouds = [site for site in survey.sites if site.kind != "pattern"]
    replicates = BLOCKS + 1 if asked.errors else 1
    one_site = _REST * (searching + _POLICIES * replicates * spectrum)
    return Cost(
        sites=len(survey.sites),
        width=width,
        tokens=asked.tokens,
        tokens_per_second=rate,
        pass_seconds=None if asked.tokens is None else asked.tokens / rate,
        evaluation_seconds=len(clouds) * one_site,
        memory=len(clouds) * _memory(width, rows),
        scratch=len(clouds) * 2 * BLOCKS * 2 * width * width * 8 if 2 * width * width > 1 << 20 else 0,
    )


def _memory(width: int, rows: int) -> int:
    """Bytes that a site holds while the data goes by: two scatters, the sample, the extremes."""
    return 2 * width * width * 8 + (rows + _HELD) * width * 4


def _spectra(x: Tensor) -> None:
    """What a replicate needs."""
    moments = Moments.of(bare_rows(x))
    _ = moments.eigenvalues, moments.eigenvalues_uncentred


def _width(module: nn.Module) -> int:
    config = getattr(module, "config", None)
    return int(getattr(config, "hidden_size", None) or max(p.shape[-1] for p in module.parameters()))


def _seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began
