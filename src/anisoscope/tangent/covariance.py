"""Nulls of covariance: do gradients simply have more energy where activations vary more?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from anisoscope.tangent.basis import Basis
from anisoscope.tangent.null import EMBEDDING, HIDDEN, WEIGHT_OUT, NullLevel, null
from anisoscope.tangent.permutation import permutation_p
from anisoscope.tangent.random_subspaces import haar
from anisoscope.tangent.site_bases import SiteBases

SLOPE_DRAWS = 999
MATCHED_DRAWS = 4
_FLOOR = 1e-9  # axes with less than this share of the largest variance are rounding


@dataclass(frozen=True)
class TransferSlope:
    """The slope β: gradient energy along an axis grows as variance^β. 0: no relation; 1: as the covariance."""

    beta: float
    p: float  # probability of at least this slope if axes were interchangeable
    curve: Tensor  # (axes, 2) log variance, log energy


@null("gradients do not follow the activations' variance", (HIDDEN, WEIGHT_OUT, EMBEDDING), decides=True)
def transfer_slope(energies: Tensor, variance: Tensor, *, seed: int = 0, draws: int = SLOPE_DRAWS) -> TransferSlope:
    """Regress log v_jᵀSv_j on log λ_j over principal axes v_j.

    The axes come from the fit tokens, λ and the energies from other documents. Without a relation the axes are oriented
    at random towards the gradients, hence interchangeable: permuting them gives an exact p-value.

    Args:
        energies: Gradient energy along each axis, (d,).
        variance: Variance of the activations along each axis, (d,).
        seed: The seed of the permutations.
        draws: Their number.

    >>> variance = torch.tensor([8.0, 4.0, 2.0, 1.0])
    >>> round(transfer_slope(variance.square(), variance).beta, 6)
    2.0
    """
    used = (variance > _FLOOR * variance.max()) & (energies > 0)
    x, y = variance[used].double().log(), energies[used].double().log()
    x0, y0 = x - x.mean(), y - y.mean()
    square = x0.square().sum().clamp(min=1e-300)
    draw = torch.Generator().manual_seed(seed)
    shuffled = y0[torch.rand(draws, len(y0), generator=draw).argsort(1)] @ x0 / square  # (draws,)
    beta = float(y0 @ x0 / square)
    return TransferSlope(beta, permutation_p(beta, shuffled), torch.stack((x, y), 1))


@null(
    "any subspace of the leading axes that captures as much variance would do",
    (HIDDEN, WEIGHT_OUT, EMBEDDING),
    decides=True,
)
def variance_matched(second: Tensor, bases: Sequence[Basis], fitted: SiteBases, seed: int = 0) -> list[NullLevel]:
    """Random subspaces of the top m axes, in closed form, with m such that they capture the basis' variance on average.

    The basis is first projected into those axes, so that it is one of these subspaces if there is no relation. A basis
    that *is* the leading axes has nothing to compare with.
    """
    out = []
    for basis in bases:
        m = _matching_axes(basis, fitted)
        top = fitted.axes[:, :m]  # (d, m)
        inside = torch.linalg.qr(top.T @ basis.q)[0]  # (m, r) the basis within the top axes
        if m <= basis.effective:
            out.append(NullLevel(None, note="captures as much variance as any subspace can: nothing to compare with"))
            continue
        restricted = top.T @ second @ top  # (m, m)
        share = float(restricted.diagonal().sum() / second.diagonal().sum())
        law = haar(restricted, basis.effective)
        energy = float((inside * (restricted @ inside)).sum() / restricted.diagonal().sum())
        out.append(NullLevel(law.mean * share, law.p_value(energy), note=f"top {m} axes"))
    return out


@null("the next band of axes", (HIDDEN, WEIGHT_OUT, EMBEDDING), decides=False)
def next_band(fitted: SiteBases, basis: Basis) -> Basis | None:
    """Principal axes r + 1 to 2r; None if there are fewer. A coin flip without a relation, so it never decides."""
    r = basis.effective
    return Basis(fitted.axes[:, r : 2 * r], "next band", basis.rank, r) if 2 * r <= basis.dim else None


@null("random subspaces with the activations' covariance", (HIDDEN, WEIGHT_OUT, EMBEDDING), decides=False)
def matched_covariance(second: Tensor, bases: Sequence[Basis], fitted: SiteBases, seed: int = 0) -> list[NullLevel]:
    """orth(C^½ Z), the mean of a few draws. It overlaps the basis itself, which caps the ratio: it never decides."""
    draw = torch.Generator().manual_seed(seed)
    axes = fitted.axes.float()
    rotated = axes.T @ (second / second.diagonal().sum()).float() @ axes  # (d, d) in principal axes
    spread = fitted.variance.sqrt()[:, None].float()  # (d, 1)
    out = []
    for basis in bases:
        q = torch.linalg.qr(spread * torch.randn(MATCHED_DRAWS, basis.dim, basis.effective, generator=draw))[0]
        out.append(NullLevel(float((q * (rotated @ q)).sum((1, 2)).mean())))
    return out


def _matching_axes(basis: Basis, fitted: SiteBases) -> int:
    """The number m of leading axes whose random r-subspaces capture the basis' variance: r/m·Σ_{j≤m} λ_j."""
    r = basis.effective
    captured = float((fitted.variance[:, None] * (fitted.axes.T @ basis.q).square()).sum())
    m = torch.arange(1, basis.dim + 1, dtype=torch.float64)
    expected = r / m * fitted.variance.cumsum(0)  # falls with m
    return max(r, int((expected[r - 1 :] >= captured).sum()) + r - 1)
