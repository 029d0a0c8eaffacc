"""Shares of a spectrum, with the one check they all need."""

from __future__ import annotations

from torch import Tensor

from anisoscope.metrics.metric import Undefined
from anisoscope.stats.moments import Moments


def variance_of(moments: Moments) -> Tensor:
    """tr S, where the rows vary at all."""
    trace = moments.trace
    # what is left of a constant column after float64 sums is rounding, not variance
    rounding = 1e-24 * moments.n * (moments.mean @ moments.mean)
    if moments.n < 2 or trace <= rounding:
        raise Undefined(f"the {moments.n} rows do not vary", "give at least two different rows")
    return trace


def top_share_of(spectrum: Tensor) -> float:
    """The first number's share of the sum."""
    total = float(spectrum.sum())
    if total <= 0:
        raise Undefined("the rows do not vary", "give at least two different rows")
    return float(spectrum[0]) / total
