"""A few rows or dimensions that dominate: outlier dimensions, massive tokens, and the anisotropy without them."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from anisoscope.metrics.metric import Undefined, Value, metric
from anisoscope.metrics.nulls import Isotropic, null_of
from anisoscope.metrics.spectra import top_share_of, variance_of
from anisoscope.stats.derived import Peeled
from anisoscope.stats.moments import Moments
from anisoscope.stats.row_norms import Norms
from anisoscope.stats.sample import Extremes, Sample

MASSIVE = 5.0  # a token is massive if its norm exceeds this many medians
OUTLIER = 5.0  # a dimension is an outlier if its rms exceeds this many medians of the dimensions' rms
_FEW_ROWS = 4  # a cloud worth fewer independent rows than this is a few massive rows
_ENTRY_ROWS = 512  # sampled rows whose entries give the median entry
_SMALL = 256  # up to this width all eigenvalues cost less than an iteration for one
_NO_EXCESS = 0.25  # an excess below this share of the null is noise
_INF = math.inf


@metric(
    Moments, low=0, high=_INF, keeps={"permutation", "scale"}, paper="timkey2021",
    knows={"sphere": 0, "outlier dimension": 1},
    notable="high", row_effect="none",
)  # fmt: skip
def outlier_dimensions(moments: Moments) -> Value:
    """Number of outlier dimensions: those whose rms exceeds five times the median rms of the dimensions.

    The note lists the largest of them.
    """
    rms = (moments.second.diagonal() / moments.n).clamp(min=0).sqrt()
    outsized = (rms > OUTLIER * rms.median()).nonzero()[:, 0]
    largest = outsized[rms[outsized].argsort(descending=True)][:8].tolist()
    note = f"dimensions {', '.join(map(str, largest))}" if largest else None
    return Value(float(len(outsized)), note=note)


@metric(
    Norms, Extremes, Sample, low=0, high=_INF, keeps={"permutation"}, paper="sun2024",
    knows={"sphere": 0, "massive row": 1},
    notable="high", headline={"rule": "norm"}, version=2,
)  # fmt: skip
def massive_tokens(norms: Norms, extremes: Extremes, sample: Sample) -> Iterator[Value]:
    """Number of massive rows.

    `rule=norm` counts rows whose norm exceeds five medians of the norms (from a histogram, within 1 %). `rule=entry`
    counts rows with an absolute entry above both 100 and 1000 medians of the absolute entries (from the keyed sample).
    """
    held = extremes.x.double()
    lengths = held.norm(dim=1)
    # tiny and huge rows are beyond the histogram
    median = norms.median if norms.median_is_inside else float(sample.x.double().norm(dim=1).median())
    by_norm = int((lengths > MASSIVE * median).sum())
    entry = float(sample.x[:_ENTRY_ROWS].float().abs().median())
    by_entry = int((held.abs().amax(1, keepdim=True) > max(100.0, 1000 * entry)).sum()) if len(held) else 0
    full = extremes.overflowed or len(held) == extremes.size
    for rule, count in (("norm", by_norm), ("entry", by_entry)):
        note = f"a lower bound: only {count:,} rows are kept" if full and count == len(held) else None
        yield Value(float(count), variant={"rule": rule}, note=note)


@metric(
    Peeled, low=0, high=1, keeps={"rotation", "scale"}, paper="anisoscope", bars=False,
    notable="high", version=2,
)  # fmt: skip
def removal_curve(peeled: Peeled) -> Iterator[Value]:
    """Spectral anisotropy without the k rows of largest norm; index is k.

    k = 0, 1, 2, 4, … The curve is flat for smooth clouds and drops steeply if a few tokens cause the anisotropy. The
    null is that of the remaining rows. Tokens of a model are ordered by the largest ratio of their norm to the median
    of their batch, at this layer or an earlier one, because the final norm makes all norms similar.
    """
    for k in _removals(peeled):
        moments, extremes = peeled.without_largest(k)
        null = null_of(moments, extremes).top_share
        yield Value(_top_eigenvalue_share(moments), index=k, n=moments.n, null=null)


@metric(
    Peeled, low=0, high=1, keeps={"rotation", "scale"}, paper="anisoscope", knows={"massive row": 1 / 4096},
    bars=False,
    notable="low", version=2,
)  # fmt: skip
def tokens_to_halve(peeled: Peeled) -> Value:
    """Share of rows, largest norms first, to remove until the excess of spectral anisotropy over its null is halved.

    One massive row in a thousand gives 0.001. There is no value if there is no excess, or if removing all kept rows
    does not halve it. The null accounts for the rows' lengths, so unequal lengths in random directions are no excess.
    If fewer than four rows outweigh all others, the null is that of the other rows. The order is that of
    `removal_curve`.
    """
    whole, extremes = peeled.without_largest(0)
    few = null_of(whole).rows < _FEW_ROWS
    others = null_of(peeled.bulk).top_share if few and peeled.bulk.n > 1 else None

    def share_and_null(moments: Moments, extremes: Extremes) -> tuple[float, float]:
        return _top_eigenvalue_share(moments), null_of(moments, extremes).top_share if others is None else others

    def excess(k: int) -> float:
        share, null = share_and_null(*peeled.without_largest(k))
        return share - null

    share, null = share_and_null(whole, extremes)
    start, most = share - null, _removals(peeled)[-1]
    if start <= _NO_EXCESS * null:
        return Value(None, note="there is no excess over the null to halve")
    if excess(most) > start / 2:
        return Value(None, note=_not_halved(most, peeled.n))
    low, high = 0, most
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if excess(middle) > start / 2 else (low, middle)
    return Value(high / peeled.n, n=peeled.n)


@metric(
    Moments, low=0, high=1, keeps={"permutation", "scale", "shift"}, paper="anisoscope",
    knows={"outlier dimension": (1, 0.01)},
    notable="high",
)  # fmt: skip
def top_coordinate(moments: Moments) -> Value:
    """Largest squared entry of the top eigenvector: 1 if a single coordinate carries the anisotropy.

    The note names the coordinate.
    """
    variance_of(moments)
    top = moments.top_axis.square()
    return Value(float(top.max()), note=f"coordinate {int(top.argmax())}")


@metric(
    Sample, low=0, high=1, keeps={"rotation", "scale", "shift"}, paper="tyler1987", slow=True,
    knows={"sphere": (1 / 16, 0.01)},
    isotropic="low", row_effect="null",
)  # fmt: skip
def tyler_share(sample: Sample) -> Value:
    """Share of the top direction in Tyler's shape matrix, which does not depend on the lengths of rows.

    The fixed point of V ∝ Σ yyᵀ/(yᵀV⁻¹y), with y the rows about their geometric median. A single massive row does not
    change it, while a true top share of 0.9 stays 0.9.
    """
    y = sample.x.double()
    y = y - _geometric_median(y)
    length = y.norm(dim=1)
    y = y[length > 0] / length[length > 0, None]
    n, d = y.shape
    if n < 2 * d:
        raise Undefined(f"{n} rows with a direction in {d} dimensions", f"give at least {2 * d} rows")
    return Value(top_share_of(torch.linalg.eigvalsh(_tyler(y)).flip(0)), n=n, null=Isotropic(d, n).top_share)


def _not_halved(most: int, n: int) -> str:
    return f"more than {100 * most / n:.2g} % of the rows: removing the {most:,} largest does not halve it"


def _geometric_median(x: Tensor) -> Tensor:
    """Return the point with the smallest sum of distances to the rows, by Weiszfeld's iteration, (n, d) -> (d,)."""
    centre = x.mean(0)
    for _ in range(50):
        distance = (x - centre).norm(dim=1)  # (n,)
        least = 1e-12 * min(1.0, float(distance.mean()) or 1.0)  # of a row at the centre itself, also of tiny rows
        weight = 1 / distance.clamp(min=least)
        centre = (weight @ x) / weight.sum()
    return centre


def _tyler(y: Tensor) -> Tensor:
    """Return Tyler's shape matrix of unit rows, with trace 1, (n, d) -> (d, d)."""
    d = y.shape[1]
    shape = y.T @ y / len(y)
    for _ in range(100):
        factor, failed = torch.linalg.cholesky_ex(shape)
        if failed:
            raise Undefined("the rows fill fewer dimensions than they have", "project them on their span first")
        weight = torch.linalg.solve_triangular(factor, y.T, upper=False).square().sum(0)  # (n,) yᵀV⁻¹y
        new = (y / weight[:, None]).T @ y
        new = new / new.diagonal().sum()
        moved = (new - shape).norm() / new.norm()
        shape = new
        if moved < 1e-6 * math.sqrt(d):
            break
    return shape


def _top_eigenvalue_share(moments: Moments) -> float:
    """Return λ1/Σλ by Lanczos: the curve needs one eigenvalue of many matrices."""
    return float(_largest_eigenvalue(moments.scatter) / variance_of(moments))


def _largest_eigenvalue(matrix: Tensor) -> Tensor:
    """Return λ1 of a positive matrix to 1e-12, by Lanczos with full reorthogonalisation from a fixed start."""
    d = len(matrix)
    if d <= _SMALL:
        return torch.linalg.eigvalsh(matrix)[-1]
    start = torch.randn(d, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(matrix.device)
    basis = [start / start.norm()]
    diagonal: list[Tensor] = []
    side: list[Tensor] = []
    last = matrix.new_zeros(())
    for step in range(d):
        image = matrix @ basis[-1]
        diagonal.append(image @ basis[-1])
        known = torch.stack(basis)
        image = image - known.T @ (known @ image)
        image = image - known.T @ (known @ image)
        length = image.norm()
        if step % 8 == 7 or step == d - 1 or length <= 1e-14 * diagonal[0].abs():
            small = torch.diag(torch.stack(diagonal))
            if side:
                small += torch.diag(torch.stack(side), 1) + torch.diag(torch.stack(side), -1)
            top = torch.linalg.eigvalsh(small)[-1]
            if length <= 1e-14 * diagonal[0].abs() or (top - last).abs() <= 1e-12 * top:
                return top
            last = top
        side.append(length)
        basis.append(image / length)
    return last


def _removals(peeled: Peeled) -> list[int]:
    """Return 0, 1, 2, 4, … up to half of the kept rows (leaving out a block may remove some) and of all rows."""
    most = min(peeled.extremes.size // 2, peeled.held, peeled.n // 2)
    return [0, *(2**j for j in range(most.bit_length()) if 2**j <= most)]
