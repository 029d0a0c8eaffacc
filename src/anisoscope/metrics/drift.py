"""Drift: the same tokens compared with a reference (an earlier step, another layer or another model)."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from anisoscope.metrics.metric import Undefined, Value, metric
from anisoscope.stats.knn import nearest
from anisoscope.stats.pairs import Axes, Paired, PairedAxes, PairedHeads, PairedKernels, centred_rows, hsic

RANKS = (1, 8, 32)  # dimensions of the compared subspaces
NEIGHBOURS = 10
_STRIP = 1024  # rows whose distances to all rows are computed at once
_TIE = 1e-12


@metric(
    PairedAxes, low=-1, high=1, keeps={"scale"}, paper="godey2024", requires={"reference"}, bars=False,
    notable="low",
)  # fmt: skip
def mean_direction_drift(pair: PairedAxes) -> Value:
    """Cosine between the mean row and the mean row of the same tokens at the reference: 1 if it has not turned."""
    _require_same_width(pair)
    now, then = pair.now.moments, pair.then.moments
    return _cosine(now.mean, then.mean.to(now.mean.device), now.n)


@metric(
    PairedAxes, low=-math.inf, high=math.inf, keeps=set(), paper="anisoscope", requires={"reference"}, bars=False,
    headline={"axis": 1, "of": "mean"},
)  # fmt: skip
def trajectory(pair: PairedAxes) -> Iterator[Value]:
    """Where the mean row is on two axes fixed at the reference, in units of the reference's RMS row length.

    Axis 1 is the direction of the mean at the reference. Axis 2 is the principal axis at the reference that keeps the
    most variance λ(1 − cos²) without axis 1, made orthogonal to axis 1; its largest coordinate is positive. The unit is
    √(mean ‖x‖²) of the reference's rows. So the path starts at (‖mean‖/RMS, 0), and a distance of 1 is one row length.
    """
    _require_same_width(pair)
    first, second = _fixed_axes(pair.then)
    moments, now = pair.then.moments, pair.now.moments
    unit = math.sqrt(float(moments.scatter.diagonal().sum() / moments.n + moments.mean.square().sum()))
    for number, axis in ((1, first), (2, second)):
        value = float(now.mean @ axis.to(now.mean.device)) / unit
        yield Value(value, variant={"axis": number, "of": "mean"}, n=now.n)


def _fixed_axes(then: Axes) -> tuple[Tensor, Tensor]:
    """Return two orthonormal axes (d,) that depend on the reference alone."""
    mean, vectors = then.moments.mean, then.vectors
    length = float(mean.norm())
    if not length > 0:
        raise Undefined("the mean at the reference is zero and has no direction", "choose another reference")
    first = mean / length
    cosines = first @ vectors  # (d,)
    left = then.values * (1 - cosines.square())
    best = int(left.argmax())
    if not float(left[best]) > 1e-12 * float(then.values[0]):  # less is rounding
        raise Undefined("the rows at the reference vary along their mean only", "choose another reference")
    second = vectors[:, best] - cosines[best] * first
    second = second - (second @ first) * first  # again: the first time leaves rounding if the two are nearly parallel
    second = second / second.norm()
    return first, second * second[second.abs().argmax()].sign()


@metric(
    PairedAxes, low=0, high=math.pi / 2, keeps={"scale", "shift"}, paper="bjorck1973", requires={"reference"},
    bars=False,
    notable="high", headline={"angle": "average"},
)  # fmt: skip
def subspace_angle(pair: PairedAxes) -> Iterator[Value]:
    """Angles in radians between the top k principal directions and those at the reference; index is k.

    With σ the singular values of UᵀV: the largest angle is arccos(min σ) and the average one arccos √(mean σ²), which
    is arccos √(k/d) for random subspaces. 0 if the subspace has not turned, π/2 if it is entirely new.
    """
    _require_same_width(pair)
    now, then = pair.now, pair.then
    most = min(now.rank, then.rank)
    if not most:
        raise Undefined("the rows of one of the two clouds do not vary", "give at least two different rows")
    n, width = now.moments.n, now.moments.dim
    for k in RANKS:
        if k > min(most, width // 2 or 1):
            break
        product = now.vectors[:, :k].T @ then.vectors[:, :k].to(now.vectors.device)  # (k, k)
        overlap = torch.linalg.svdvals(product).clamp(max=1.0)  # (k,) descending
        average = math.acos(min(1.0, math.sqrt(float(overlap.square().mean()))))
        level = math.acos(math.sqrt(k / width))
        yield Value(math.acos(float(overlap[-1])), index=k, variant={"angle": "largest"}, n=n)
        yield Value(average, index=k, variant={"angle": "average"}, n=n, null=level)


@metric(
    PairedKernels, low=-1, high=1, keeps={"rotation", "scale", "shift"}, paper="kornblith2019", requires={"reference"},
    bars=False,
    notable="low", row_effect="none",
)  # fmt: skip
def cka(pair: PairedKernels) -> Value:
    """Linear centred kernel alignment (CKA) with the reference, debiased: 1 for a rotation, 0 for unrelated rows.

    HSIC(K, L)/√(HSIC(K, K)·HSIC(L, L)) with the unbiased estimator of HSIC. So unrelated rows give 0 on average even if
    there are fewer rows than dimensions. Computed in feature space, with one d × d product instead of two n × n ones.
    """
    n = len(pair.now)
    if n < 4:
        raise Undefined(f"{n} rows are in both clouds", "four are needed")
    own = hsic(pair.now, pair.now) * pair.own
    if not own > 0:
        raise Undefined("the rows of one of the two clouds do not vary", "give different rows")
    return Value(max(-1.0, min(1.0, hsic(pair.now, pair.then) / math.sqrt(own))), n=n, null=0.0)


@metric(
    Paired, low=0, high=1, keeps={"rotation", "scale", "shift"}, paper="anisoscope", requires={"reference"}, bars=False,
    notable="low",
)  # fmt: skip
def neighbour_overlap(pair: Paired) -> Value:
    """Average share of a row's ten nearest rows that are among its ten nearest at the reference; index is ten.

    Unrelated rows give k/(n − 1).
    """
    n, k = len(pair.now), NEIGHBOURS
    if n <= 2 * k:
        raise Undefined(f"{n} rows are in both clouds", f"more than {2 * k} are needed")
    now, then = nearest(pair.now, k).index, nearest(pair.then, k).index  # (n, k) each
    shared = (now[:, :, None] == then[:, None, :]).any(2).double().mean()
    return Value(float(shared), index=k, n=n, null=k / (n - 1))


@metric(
    Paired, low=0, high=2, keeps={"rotation", "scale", "shift"}, paper="glielmo2022", requires={"reference"},
    bars=False,
    notable="high", headline={"from": "now"},
)  # fmt: skip
def information_imbalance(pair: Paired) -> Iterator[Value]:
    """How badly the nearest rows now predict the nearest rows at the reference, and the other way round.

    `from=now` is 2/n times the average rank, by distance at the reference, of each row's nearest row now;
    `from=reference` swaps the two. 2/n if all nearest rows agree (0 in the limit), 1 if the two are unrelated. If only
    one of them is small, that side has all the information of the other and more.
    """
    n = len(pair.now)
    if n < 3:
        raise Undefined(f"{n} rows are in both clouds", "three are needed")
    for name, first, second in (("now", pair.now, pair.then), ("reference", pair.then, pair.now)):
        rank = _rank_of(second, nearest(first, 1).index[:, 0])
        yield Value(min(2.0, 2 * rank / n), variant={"from": name}, n=n, null=1.0)


@metric(
    PairedHeads, low=-1, high=1, keeps=set(), paper="godey2024", requires={"heads", "reference"}, bars=False,
    notable="low",
)  # fmt: skip
def q_direction_drift(heads: PairedHeads) -> Iterator[Value]:
    """Cosine between a head's mean query and its mean query at the reference; index is the head."""
    yield from _turned(heads.now.q, heads.then.q, int(heads.now.tokens))


@metric(
    PairedHeads, low=-1, high=1, keeps=set(), paper="godey2024", requires={"heads", "reference"}, bars=False,
    notable="low",
)  # fmt: skip
def k_direction_drift(heads: PairedHeads) -> Iterator[Value]:
    """Cosine between a head's mean key and its mean key at the reference; index is the key head."""
    yield from _turned(heads.now.k, heads.then.k, int(heads.now.tokens))


def _rank_of(x: Tensor, other: Tensor) -> float:
    """Return the average rank of row other[i] among the rows nearest to row i, from 1; ties get their middle rank."""
    y = centred_rows(x)  # (n, d)
    square, total = y.square().sum(1), 0.0
    other = other.to(y.device)
    for first in range(0, len(y), _STRIP):
        own = torch.arange(first, min(first + _STRIP, len(y)), device=y.device)
        distance = square - 2 * y[own] @ y.T  # (strip, n), without the row's own square
        limit = distance.gather(1, other[own, None])  # (strip, 1)
        slack = _TIE * (square[own] + square[other[own]] + square.mean())[:, None]  # rounding of equal distances
        is_other = (torch.arange(len(y), device=y.device) != own[:, None]).double()
        closer = ((distance < limit - slack) * is_other).sum()
        equal = (((distance - limit).abs() <= slack) * is_other).sum()
        total += float(closer + (equal + len(own)) / 2)
    return total / len(y)


def _turned(now: Tensor, then: Tensor, n: int) -> Iterator[Value]:
    if now.shape != then.shape:
        raise Undefined(
            f"heads are {tuple(now.shape)} now, {tuple(then.shape)} at the reference", "compare models of one shape"
        )
    for head, (a, b) in enumerate(zip(now, then, strict=True)):
        yield _cosine(a, b, n, head)


def _cosine(a: Tensor, b: Tensor, n: int, index: int | None = None) -> Value:
    length = float(a.norm() * b.norm())
    if not length > 0:
        return Value(None, index=index, n=n, note="a mean is zero and has no direction")
    return Value(max(-1.0, min(1.0, float(a @ b) / length)), index=index, n=n)


def _require_same_width(pair: PairedAxes) -> None:
    now, then = pair.now.moments, pair.then.moments
    if not now.n or not then.n:
        raise Undefined("one of the two clouds has no rows", "measure the same tokens")
    if now.dim != then.dim:
        raise Undefined(
            f"rows are {now.dim} wide now, {then.dim} at the reference",
            "compare layers of one width, or use cka or neighbour_overlap",
        )
