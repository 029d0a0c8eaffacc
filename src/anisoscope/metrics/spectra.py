"""How the variance is distributed over ranks: effective rank, stable rank, power law, shares."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from anisoscope.metrics.metric import Undefined, Value, metric
from anisoscope.stats.moments import Moments

_INF = math.inf
_SHARES = {"90 %": 0.90, "99 %": 0.99}
_ROUNDING = 1e-12  # of a share of the variance
_TAIL = 8  # eigenvalues that a tail has at least
_FLAT = 1e-9  # eigenvalues whose logarithms differ by less are equal
_FLOOR = 1e-14  # eigenvalues below this share of the largest are rounding


@metric(
    Moments, low=1, high=_INF, keeps={"rotation", "scale", "shift"}, paper="roy2007",
    knows={"line": 1, "sphere": (16, 0.1), "plane": (3, 0.03)},
    null=lambda iso, v: _entropy_rank(iso.eigenvalues.sqrt() if v.variant["of"] != "eigenvalues" else iso.eigenvalues),
    isotropic="high", headline={"of": "singular values"}, null_rows=4,
)  # fmt: skip
def effective_rank(moments: Moments) -> Iterator[Value]:
    """Number of equally strong directions with the same spectral entropy, of centred rows.

    exp(H(p)) with p = σ/Σσ (`of=singular values`, as published) or p = λ/Σλ (`of=eigenvalues`): d for a sphere.
    """
    eigenvalues = _spectrum(moments.eigenvalues)
    yield Value(_entropy_rank(eigenvalues.sqrt()), variant={"of": "singular values"})
    yield Value(_entropy_rank(eigenvalues), variant={"of": "eigenvalues"})


@metric(
    Moments, low=1, high=_INF, keeps={"rotation", "scale"}, paper="garrido2023",
    knows={"one direction": (1, 1e-6), "sphere": (16, 0.1)}, null=lambda iso, _: _entropy_rank(iso.eigenvalues.sqrt()),
    isotropic="high", null_rows=4,
)  # fmt: skip
def rankme(moments: Moments) -> float:
    """Effective rank of uncentred rows.

    exp(H(σ/Σσ)) of the rows without subtracting their mean: RankMe of self-supervised learning.
    """
    return _entropy_rank(_spectrum(moments.eigenvalues_uncentred).sqrt())


@metric(
    Moments, low=1, high=_INF, keeps={"rotation", "scale"}, paper="rudelson2007",
    knows={"one direction": 1, "sphere": (14.2, 0.4)}, null=lambda iso, _: 1 / iso.top_share,
    isotropic="high", row_effect="null",
)  # fmt: skip
def stable_rank(moments: Moments) -> float:
    """Squared Frobenius norm divided by squared spectral norm, of uncentred rows.

    ‖X‖²/σ1²: a lower bound of the rank that noise hardly changes.
    """
    eigenvalues = _spectrum(moments.eigenvalues_uncentred)
    return float(eigenvalues.sum() / eigenvalues[0])


@metric(
    Moments, low=-_INF, high=_INF, keeps={"rotation", "scale", "shift"}, paper="stringer2019",
    knows={"power law": (1, 0.05)}, null=lambda iso, _: _power_law(iso.eigenvalues)[0],
    notable="high", null_rows=10,
)  # fmt: skip
def power_law_alpha(moments: Moments) -> Value:
    """Exponent α of the spectrum's decay λ_j ∝ j^−α.

    Least squares of log λ_j on log j over ranks 1 to min(n − 1, d)/2, weighted by 1/j so that every octave has the same
    weight. The variant holds the range.
    """
    eigenvalues = _spectrum(moments.eigenvalues)
    alpha, last = _power_law(eigenvalues[: min(moments.n - 1, moments.dim)])
    return Value(alpha, variant={"ranks": f"1-{last}"})


@metric(
    Moments, low=1, high=_INF, keeps={"rotation", "scale", "shift"}, paper="martin2021",
    null=lambda iso, _: _tail_exponent(iso.eigenvalues)[0],
    notable="low", null_rows=10,
)  # fmt: skip
def tail_alpha(moments: Moments) -> Value:
    """Exponent α of the density of large eigenvalues, p(λ) ∝ λ^−α: small if the spectrum has a heavy tail.

    The maximum likelihood 1 + k/Σ ln(λ_j/λ_k) over the k largest eigenvalues, with the k of at least 8 that a power law
    describes best (smallest Kolmogorov–Smirnov distance). `power_law_alpha` fits the same spectrum the other way round,
    by the decay over ranks: λ_j ∝ j^−a is p(λ) ∝ λ^−(1 + 1/a), so α = 1 + 1/a where both fit. It describes the first
    half of all ranks, while this one chooses its range. The note holds k.
    """
    eigenvalues = _spectrum(moments.eigenvalues)[: min(moments.n - 1, moments.dim)]
    alpha, k = _tail_exponent(eigenvalues)
    return Value(alpha, note=f"from the {k:,} largest eigenvalues")


@metric(
    Moments, low=1, high=_INF, keeps={"rotation", "scale", "shift"}, paper="jolliffe2002", bars=False,
    knows={"line": 1, "plane": 3}, null=lambda iso, v: float(_dimensions_for(iso.eigenvalues, v.variant["share"])),
    notable="low", headline={"share": "90 %"}, null_rows=4,
)  # fmt: skip
def dimensions_for(moments: Moments) -> Iterator[Value]:
    """Number of principal directions that carry 90 % and 99 % of the variance.

    The smallest k with Σ_{j≤k} λ_j ≥ share·Σλ. A whole number, so there is no error bar.
    """
    eigenvalues = _spectrum(moments.eigenvalues)
    for share in _SHARES:
        yield Value(float(_dimensions_for(eigenvalues, share)), variant={"share": share})


@metric(
    Moments, low=0, high=1, keeps={"rotation", "scale", "shift"}, paper="razzhigaev2023",
    null=lambda iso, v: float(iso.eigenvalues[: v.index].sum()),
    notable="high", null_rows=4,
)  # fmt: skip
def top_share(moments: Moments) -> Iterator[Value]:
    """Share of the variance in the k strongest directions; index is k.

    Σ_{j≤k} λ_j/Σλ for k = 1, 2, 4, …
    """
    shares = (_spectrum(moments.eigenvalues) / moments.eigenvalues.sum()).cumsum(0)
    for k in _octaves(moments.dim):
        yield Value(min(1.0, float(shares[k - 1])), index=k)


@metric(
    Moments, low=0, high=1, keeps={"rotation", "scale", "shift"}, paper="razzhigaev2023",
    null=lambda iso, v: float(iso.eigenvalues[(v.index or 1) - 1]),
    null_rows=4,
)  # fmt: skip
def spectrum(moments: Moments) -> Iterator[Value]:
    """Share of the variance in the direction of rank j; index is j (log-spaced).

    λ_j/Σλ. Ranks that n rows cannot fill (j ≥ n) give 0.
    """
    shares = _spectrum(moments.eigenvalues) / moments.eigenvalues.sum()
    for rank in _log_spaced(moments.dim):
        yield Value(float(shares[rank - 1]), index=rank)


@metric(
    Moments, low=1, high=_INF, keeps={"rotation", "scale", "shift"}, paper="anisoscope",
    knows={"power law": (2, 0.2)},
    null=lambda iso, _: float(iso.eigenvalues[(iso.dim - 1) // 2] / iso.eigenvalues[-1].clamp(min=1e-300)),
    notable="high", null_rows=10,
)  # fmt: skip
def tail_condition(moments: Moments) -> float:
    """Condition number of the lower half of the spectrum: the median eigenvalue divided by the smallest.

    Large if the last directions are almost empty. It has no value if they are empty (n ≤ d, or rank deficient rows).
    """
    eigenvalues = _spectrum(moments.eigenvalues)
    smallest = float(eigenvalues[-1])
    if moments.n <= moments.dim or smallest <= _FLOOR * float(eigenvalues[0]):
        raise Undefined("the smallest eigenvalue is zero", f"give more than {moments.dim} rows of full rank")
    return float(eigenvalues[(moments.dim - 1) // 2]) / smallest


def _spectrum(eigenvalues: Tensor) -> Tensor:
    if float(eigenvalues.sum()) <= 0:
        raise Undefined("the rows do not vary", "give at least two different rows")
    return torch.where(eigenvalues > _FLOOR * eigenvalues[0], eigenvalues, 0.0)


def _entropy_rank(weights: Tensor) -> float:
    p = weights / weights.sum()
    return math.exp(float(-torch.xlogy(p, p).sum()))


def _power_law(eigenvalues: Tensor) -> tuple[float, int]:
    last = len(eigenvalues) // 2
    if last < 4:
        raise Undefined(f"{len(eigenvalues)} eigenvalues are too few for a fit", "give at least 9 rows and dimensions")
    rank = torch.arange(1, last + 1, dtype=torch.float64)
    positive = eigenvalues[:last].cpu() > 0
    x, y, w = rank[positive].log(), eigenvalues[:last].cpu()[positive].log(), 1 / rank[positive]
    if len(x) < 4:
        raise Undefined("fewer than 4 directions vary", "a power law needs more")
    x, y = x - (w @ x) / w.sum(), y - (w @ y) / w.sum()
    return float(-((w * x) @ y) / ((w * x) @ x)), last


def _dimensions_for(eigenvalues: Tensor, share: str) -> int:
    reached = eigenvalues.cumsum(0) / eigenvalues.sum()
    return min(int((reached < _SHARES[share] - _ROUNDING).sum()) + 1, len(eigenvalues))


def _tail_exponent(eigenvalues: Tensor) -> tuple[float, int]:
    """Return the exponent of the density of the k largest eigenvalues, and the k that fits best."""
    logs = eigenvalues[eigenvalues > 0].cpu().double().log()  # descending
    if len(logs) < _TAIL:
        raise Undefined(f"{len(logs)} directions vary", f"a tail needs at least {_TAIL}")
    best = (math.inf, math.inf, 0)  # distance, exponent, k
    for k in sorted({round(_TAIL * (len(logs) / _TAIL) ** (i / 63)) for i in range(64)}):
        above = logs[:k] - logs[k - 1]  # (k,) descending, the last is 0
        mean = float(above.mean())
        if mean <= _FLAT:
            continue
        below = -torch.expm1(-above.flip(0) / mean)  # the law's share below each eigenvalue, ascending
        steps = torch.arange(k + 1, dtype=torch.float64) / k
        distance = float(torch.maximum((below - steps[:-1]).abs(), (below - steps[1:]).abs()).max())
        best = min(best, (distance, 1 + 1 / mean, k))
    if not best[2]:
        raise Undefined("the eigenvalues are all equal", "a sphere has no tail")
    return best[1], best[2]


def _octaves(d: int) -> list[int]:
    return [2**j for j in range(d.bit_length()) if 2**j <= d]


def _log_spaced(d: int, points: int = 24) -> list[int]:
    """Ranks 1 … d, each at most once, evenly spaced on a log axis."""
    return sorted({round(d ** (j / (points - 1))) for j in range(points)}) if d > 1 else [1]


def variance_of(moments: Moments) -> Tensor:
    """Return the trace of the scatter.

    Raises:
        Undefined: The rows do not vary.
    """
    trace = moments.trace
    rounding = 1e-24 * moments.n * (moments.mean @ moments.mean)  # float64 sums leave this much of a constant column
    if moments.n < 2 or trace <= rounding:
        raise Undefined(f"the {moments.n} rows do not vary", "give at least two different rows")
    return trace


def top_share_of(spectrum: Tensor) -> float:
    """Return the share of the first number in the sum.

    Raises:
        Undefined: The sum is zero.
    """
    total = float(spectrum.sum())
    if total <= 0:
        raise Undefined("the rows do not vary", "give at least two different rows")
    return float(spectrum[0]) / total
