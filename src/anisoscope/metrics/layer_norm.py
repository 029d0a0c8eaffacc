"""Gain and bias of a normalisation layer: each row is one entry."""

from __future__ import annotations

import math
from collections.abc import Iterator

from anisoscope.metrics.metric import Value, metric
from anisoscope.stats.moments import Moments

_INF = math.inf


@metric(
    Moments, low=-_INF, high=_INF, keeps=set(), paper="machina2024", requires={"norm"}, bars=False,
    row_effect="none", headline={"of": "mean"},
)  # fmt: skip
def norm_gain(entries: Moments) -> Iterator[Value]:
    """Mean and standard deviation of the gain γ of a normalisation layer: 1 and 0 before training."""
    yield from _mean_and_deviation(entries)


@metric(
    Moments, low=-_INF, high=_INF, keeps=set(), paper="machina2024", requires={"norm"}, bars=False,
    row_effect="none", headline={"of": "mean"},
)  # fmt: skip
def norm_bias(entries: Moments) -> Iterator[Value]:
    """Mean and standard deviation of the bias β of a normalisation layer: 0 and 0 before training."""
    yield from _mean_and_deviation(entries)


def _mean_and_deviation(entries: Moments) -> Iterator[Value]:
    yield Value(float(entries.mean[0]), variant={"of": "mean"})
    yield Value(math.sqrt(max(0.0, float(entries.trace) / entries.n)), variant={"of": "deviation"})
