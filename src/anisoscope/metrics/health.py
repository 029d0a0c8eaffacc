"""Early signs of trouble in training: neurons and entries that outgrow the others, and a mean that drowns the rest."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from anisoscope.metrics.metric import Undefined, Value, metric
from anisoscope.metrics.spectra import variance_of
from anisoscope.stats.entries import Entries
from anisoscope.stats.moments import Moments
from anisoscope.stats.sample import Sample

_INF = math.inf
_ENTRY_ROWS = 512  # sampled rows whose entries give the median entry
_HALF_NORMAL = 0.6744897501960817  # median of |z|, z standard normal


@metric(
    Moments, low=1, high=_INF, keeps={"permutation", "scale"}, paper="he2024",
    knows={"sphere": (1, 0.02), "outlier dimension": (12, 1.5)},
    null=lambda iso, _: iso.dim * (iso.rows + 2) / (iso.rows * iso.dim + 2),
    notable="high", row_effect="null",
)  # fmt: skip
def feature_kurtosis(moments: Moments) -> float:
    """How unequal the neurons are: 1 if all have the same mean square, d if a single one carries everything.

    mean(s⁴)/mean(s²)² over the d neurons, with s² the mean square of a neuron over rows. Growing values come before
    outlier features, which low precision cannot represent. n independent Gaussian rows give d(n + 2)/(nd + 2).
    """
    square = (moments.scatter.diagonal() / max(moments.n, 1)).clamp(min=0) + moments.mean.square()  # (d,)
    mean = float(square.mean())
    if not mean > 0:
        raise Undefined("all rows are zero", "check the captured site")
    return max(1.0, float((square / mean).square().mean()))


@metric(
    Entries, Sample, low=0, high=_INF, keeps={"permutation"}, paper="sun2024", bars=False,
    knows={}, notable="high", headline={"in": "medians"},
)  # fmt: skip
def entry_max(entries: Entries, sample: Sample) -> Iterator[Value]:
    """Largest magnitude of all entries.

    `in=units` is the magnitude itself, `in=medians` is divided by the median magnitude of the entries (of up to 512
    sampled rows). The null of the second is that of as many Gaussian entries. Massive activations have more than 100
    in units and 1000 in medians. There is no error bar: the maximum is that of exactly these rows, and grows with their
    number.
    """
    largest = float(entries.largest)
    yield Value(largest, variant={"in": "units"})
    median = float(sample.x[:_ENTRY_ROWS].double().abs().median()) if len(sample.x) else 0.0
    if not median > 0:
        yield Value(None, variant={"in": "medians"}, note="the median entry is zero")
        return
    yield Value(largest / median, variant={"in": "medians"}, null=_largest_normal(entries.n) / _HALF_NORMAL)


@metric(
    Moments, low=0, high=_INF, keeps={"rotation", "scale"}, paper="anisoscope",
    knows={"one direction": (2, 0.005), "sphere": (0, 0.05)},
    null=lambda iso, _: 1 / math.sqrt(max(iso.rows - 1, 1)),
    notable="high", row_effect="null",
)  # fmt: skip
def mean_over_spread(moments: Moments) -> float:
    """Length of the mean row in units of the rows' spread about it.

    γ = ‖mean‖/√(mean ‖x − mean‖²) = r/√(1 − r²) with r the `relative_drift`. Unlike r it has no ceiling: 1 if mean and
    spread are equal, 10 if the mean hides everything else.
    """
    spread = float(variance_of(moments)) / moments.n
    return float(moments.mean.norm()) / math.sqrt(spread)


def _largest_normal(n: int) -> float:
    """Return the median of the largest magnitude of n standard normal numbers."""
    tail = -math.expm1(-math.log(2) / max(n, 1)) / 2  # 1 − 2^(−1/n), on both sides
    return float(-torch.special.ndtri(torch.tensor(tail, dtype=torch.float64)))
