"""Intrinsic dimension: the number of directions in which one can move without leaving the cloud.

All estimators use the keyed sample, after removing exact copies of rows (the note counts them). All of them saturate: a
true 50 gives about 32 from 2,048 rows. So compare only numbers of equal n, which the record holds.

Neighbouring rows share distances even if they are in different blocks, so error bars from blocks alone would be a third
too small. `_stretch` corrects for what neighbours in other blocks have in common.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
from scipy.optimize import brentq
from torch import Tensor

from anisoscope.metrics.metric import Undefined, Value, metric
from anisoscope.stats.neighbours import LOCAL_SHARE, LocalDimensions, Neighbours, TwoNeighbours

_INF = math.inf
_KEEPS = {"rotation", "scale", "shift"}
_MLE_NEIGHBOURS = 20
_KEPT = 0.9  # share of the ratios that the slope is fitted to
_PUBLISHED_SHARE = 0.2
_NEAR = 0.05  # half width of the first search interval for ln d
_INNER, _OUTER = 4, 0.5  # with more than 4 neighbours, pairs count half: the outer ones share little


@metric(
    TwoNeighbours, low=0, high=_INF, keeps=_KEEPS, paper="facco2017",
    knows={"line": (1, 0.1), "plane": (3, 0.3), "swiss roll": (2, 0.2), "curved": (4, 0.5), "duplicates": (3, 0.3)},
    notable="low", headline={"neighbours": "all"},
)  # fmt: skip
def two_nn(two: TwoNeighbours) -> Iterator[Value]:
    """Intrinsic dimension from the ratio of the distances to the second and the first neighbour.

    Slope through the origin of −ln(1 − F(μ)) on ln μ, with μ = r2/r1, over the lowest 90 % of μ. `neighbours=all` uses
    all rows. If documents are known, `neighbours=other documents` ignores neighbours in a row's own document:
    neighbouring tokens are close for that reason alone, which lowers the dimension.
    """
    yield from _both(two.neighbours, _slope)


@metric(
    TwoNeighbours, low=0, high=_INF, keeps=_KEEPS, paper="facco2017",
    knows={"line": (1, 0.1), "plane": (3, 0.3), "swiss roll": (2, 0.2), "curved": (4, 0.5), "duplicates": (3, 0.3)},
    notable="low", headline={"neighbours": "all"},
)  # fmt: skip
def two_nn_ml(two: TwoNeighbours) -> Iterator[Value]:
    """Intrinsic dimension by maximum likelihood from the ratios that `two_nn` uses.

    (n − 1)/Σ ln μ. Variants as in `two_nn`.
    """
    yield from _both(two.neighbours, _likeliest)


@metric(
    TwoNeighbours, low=0, high=_INF, keeps=_KEEPS, paper="razzhigaev2023", knows={"plane": (3, 0.4)},
    notable="low",
)  # fmt: skip
def two_nn_paper(two: TwoNeighbours) -> Value:
    """Intrinsic dimension as computed in `The Shape of Learning`: to compare with that paper only.

    The slope over the lowest 20 % of μ, without removing copies of rows: 10 % of duplicates turn a true 10 into about
    17.
    """
    neighbours = two.neighbours
    distance, copies = neighbours.distance, neighbours.copies
    _enough(neighbours)
    nearest_is_double = copies[neighbours.index[:, 0]] > 1
    second = torch.where(nearest_is_double, distance[:, 0], distance[:, 1])
    alone = copies[neighbours.row] == 1  # a row with a copy has r1 = 0 and no ratio
    total = int(copies[neighbours.row].sum())
    log_mu = (second / distance[:, 0]).log()[alone].sort().values
    share = torch.arange(1, len(log_mu) + 1, dtype=torch.float64) / total
    keep = share <= _PUBLISHED_SHARE
    return _value(neighbours, _through_origin(log_mu[keep], -torch.log1p(-share[keep])), n=total)


@metric(
    Neighbours, low=0, high=_INF, keeps=_KEEPS, paper="denti2022",
    notable="low",
)  # fmt: skip
def gride(neighbours: Neighbours) -> Iterator[Value]:
    """Intrinsic dimension by scale, from the ratio of the distances to neighbours 2k and k; index is k.

    Maximum likelihood of d from r_2k/r_k for k = 1, 2, 4, … Noise and near copies distort small k, curvature distorts
    large k. A plateau between them is the dimension.
    """
    _enough(neighbours)
    k = 1
    while 2 * k <= neighbours.distance.shape[1]:
        log_mu = (neighbours.distance[:, 2 * k - 1] / neighbours.distance[:, k - 1]).log()
        dimension = _gride(log_mu, k)
        stretch = _stretch(neighbours, _gride_terms(log_mu, k, dimension), neighbours.index[:, : 2 * k])
        yield _value(neighbours, dimension, index=k, stretch=stretch)
        k *= 2


@metric(
    Neighbours, low=0, high=_INF, keeps=_KEEPS, paper="levina2005",
    knows={"line": (1, 0.1), "plane": (3, 0.3), "swiss roll": (2, 0.2)},
    notable="low",
)  # fmt: skip
def mle_dimension(neighbours: Neighbours) -> Value:
    """Intrinsic dimension by maximum likelihood from the distances to the 20 nearest neighbours.

    (k − 1)/Σ_j ln(r_k/r_j) with k = 20, as a harmonic mean over rows.
    """
    _enough(neighbours)
    k = min(_MLE_NEIGHBOURS, neighbours.distance.shape[1])
    near = neighbours.distance[:, :k]
    logs = (near[:, -1:] / near[:, :-1]).log().sum(1)  # (n,)
    if k < 3 or float(logs.mean()) <= 0:
        raise Undefined("all neighbours are at one distance", "give at least 4 rows in general position")
    stretch = _stretch(neighbours, logs, neighbours.index[:, :k])
    return _value(neighbours, (k - 1) / float(logs.mean()), variant={"k": k}, stretch=stretch)


@metric(
    LocalDimensions, low=0, high=_INF, keeps=_KEEPS, paper="fukunaga1971",
    knows={"line": 1, "plane": (3, 0.2), "swiss roll": (2, 0.3)},
    notable="low",
)  # fmt: skip
def local_pca_dimension(local: LocalDimensions) -> Value:
    """Average number of directions that hold 95 % of the variance among a row's nearest neighbours.

    Computed for 256 rows with 32 neighbours each; n is the number of rows among which neighbours are searched. The
    value cannot exceed the number of neighbours, so a large value is a lower bound.
    """
    if len(local.count) < 3:
        raise Undefined(f"{len(local.count)} different rows are not enough", "give at least 20")
    variant = {"k": local.listed, "share": LOCAL_SHARE}
    return Value(float(local.count.double().mean()), variant=variant, n=local.searched)


def _both(neighbours: Neighbours, estimate: Callable[[Tensor], float]) -> Iterator[Value]:
    """Apply an estimate to the sorted ln μ of all neighbours, and of neighbours in other documents."""
    _enough(neighbours)
    log_mu = (neighbours.distance[:, 1] / neighbours.distance[:, 0]).log()
    stretch = _stretch(neighbours, log_mu, neighbours.index[:, :2])
    yield _value(neighbours, estimate(log_mu.sort().values), variant={"neighbours": "all"}, stretch=stretch)
    complete = neighbours.other.isfinite().all(1)
    if not neighbours.other.shape[1] or int(complete.sum()) < 3:
        return
    other = neighbours.other[complete]
    log_mu = (other[:, 1] / other[:, 0]).log()
    own = float(neighbours.same_document.double().mean())
    yield _value(
        neighbours,
        estimate(log_mu.sort().values),
        variant={"neighbours": "other documents"},
        n=int(complete.sum()),
        note=f"{100 * own:.0f} % of rows have their nearest neighbour in their own document",
        stretch=_stretch(neighbours, log_mu, neighbours.other_index) if bool(complete.all()) else 1.0,
    )


def _stretch(neighbours: Neighbours, each: Tensor, near: Tensor) -> float:
    """Return the factor for the error bar of a mean over rows that share distances with neighbours in other blocks.

    With ψ the terms of the rows about their mean, leaving out blocks accounts for Σ_b (Σ_{i∈b} ψ_i)². This adds the
    products ψ_i·ψ_j of rows i and their neighbours j (`near`, (n, k) indices) in other blocks.
    """
    if len(neighbours.row) < len(neighbours.x):
        return 1.0  # a replicate: its error bar is not used
    psi = each - each.mean()
    block = neighbours.block
    number, which = block.unique(return_inverse=True)
    if len(number) < 2:
        return 1.0
    sums = torch.zeros(len(number), dtype=torch.float64).index_add_(0, which, psi)
    seen = float(sums @ sums) * len(number) / (len(number) - 1)
    shared = float((psi[:, None] * psi[near])[block[near] != block[:, None]].sum())
    weight = 1.0 if near.shape[1] <= _INNER else _OUTER
    return math.sqrt(1 + weight * max(shared, 0.0) / seen) if seen > 0 else 1.0


def _slope(log_mu: Tensor) -> float:
    n = len(log_mu)
    keep = max(2, int(_KEPT * n))
    heights = -torch.log1p(-torch.arange(1, keep + 1, dtype=torch.float64) / n) if keep < n else None
    if heights is None:
        raise Undefined(f"{n} different rows are not enough", "give at least 20")
    return _through_origin(log_mu[:keep], heights)


def _through_origin(x: Tensor, y: Tensor) -> float:
    square = float(x @ x)
    if square <= 0:
        raise Undefined("first and second neighbours are equally far", "the rows lie on a grid; add noise or jitter")
    return float(x @ y) / square


def _likeliest(log_mu: Tensor) -> float:
    total = float(log_mu.sum())
    if total <= 0:
        raise Undefined("first and second neighbours are equally far", "the rows lie on a grid; add noise or jitter")
    return (len(log_mu) - 1) / total


def _gride(log_mu: Tensor, k: int) -> float:
    """Return the maximum-likelihood d from ratios of neighbours 2k and k: the root of the score, searched on log d.

    score(d) = n/d + (k − 1) Σ ln μ/(1 − μ^−d) − (2k − 1) Σ ln μ decreases in d. The first guess is the d for which the
    mean of ln μ has its expected value (1/k + … + 1/(2k − 1))/d. Because x/(1 − e^−x) is convex, the root is not below
    that of equal ratios, which is within 3 % of the guess. Because it is at most 1 + x, the root is not above n/Σ ln μ.
    """
    n, total = len(log_mu), float(log_mu.sum())
    if total <= 0:
        raise Undefined(f"neighbours {k} and {2 * k} are equally far", "the rows lie on a grid; add noise or jitter")
    if k == 1:
        return (n - 1) / total

    def score(log_d: float) -> float:
        d = math.exp(log_d)
        return n / d + float(_gride_terms(log_mu, k, d).sum())

    guess = math.log(sum(1 / j for j in range(k, 2 * k)) * n / total)
    low, high = guess - _NEAR, guess + _NEAR
    if score(high) >= 0:
        high = math.log(n / total) + _NEAR
    return math.exp(float(brentq(score, low, high, xtol=1e-15, rtol=1e-15)))


def _gride_terms(log_mu: Tensor, k: int, d: float) -> Tensor:
    """Return the contribution of each row to the score at d, (n,)."""
    inner = torch.where(log_mu > 0, log_mu / -torch.expm1(-d * log_mu.clamp(min=1e-300)), 1 / d)
    return (k - 1) * inner - (2 * k - 1) * log_mu


def copies_note(neighbours: Neighbours) -> str | None:
    """How many copies of rows were removed before the search; None if there were none."""
    copies = int(neighbours.copies.sum()) - len(neighbours.copies)
    return f"{copies:,} duplicate row{'s' * (copies > 1)} removed" if copies else None


def _enough(neighbours: Neighbours) -> None:
    if neighbours.distance.shape[1] < 2 or len(neighbours.distance) < 3:
        raise Undefined(f"{len(neighbours.distance)} different rows are not enough", "give at least 20")


def _value(
    neighbours: Neighbours, value: float, *, n: int | None = None, note: str | None = None, **where: object
) -> Value:
    notes = [text for text in (copies_note(neighbours), note) if text]
    return Value(value, n=len(neighbours.distance) if n is None else n, note="; ".join(notes) or None, **where)  # type: ignore[arg-type]
