"""How much of the gradients' anisotropy lies in a basis: IsoScore* before and after removing the basis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from anisoscope.metrics.isotropy import ZETA, isoscore_of
from anisoscope.tangent.basis import Basis

DRAWS = 4  # in some hundred dimensions random subspaces hardly differ
_FARTHEST, _HALVINGS = 1e3, 24


@dataclass(frozen=True)
class CovarianceSplit:
    """The parts of tr Σ² as shares, exactly: tangent ‖PᵀΣPᵀ‖², mixed 2‖PᵀΣPᴺ‖², normal ‖PᴺΣPᴺ‖²."""

    tangent: float
    mixed: float
    normal: float


def split(covariance: Tensor, basis: Basis) -> CovarianceSplit:
    """Split the squared covariance (d, d) of gradients into the parts inside a basis, across, and outside.

    >>> from anisoscope.tangent.basis import orthonormal
    >>> split(torch.diag(torch.tensor([3.0, 1.0, 1.0, 1.0])), orthonormal(torch.eye(4)[:, :1], "mine"))
    CovarianceSplit(tangent=0.75, mixed=0.0, normal=0.25)
    """
    c = covariance.double()
    cq = c @ basis.q  # (d, r)
    inside = basis.q.T @ cq  # (r, r)
    whole = float(c.square().sum())
    tangent = float(inside.square().sum()) / whole
    mixed = 2 * (float(cq.square().sum()) / whole - tangent)
    return CovarianceSplit(tangent, mixed, 1 - tangent - mixed)


def isoscore_star(covariance: Tensor) -> float:
    """IsoScore* of gradients with the ζ of the metric `isoscore_star`, from their covariance (d, d)."""
    c = covariance.double()
    return isoscore_of(float(c.diagonal().sum() ** 2 / c.square().sum()), len(c), ZETA)


def removal_gains(covariance: Tensor, bases: Sequence[Basis]) -> Tensor:
    """ΔIsoScore* of removing each basis: how much more isotropic the gradients become.

    A basis is projected out after shrinking; shrinking afterwards would fill the hole again. In the ambient dimension
    the score is (PR − 1)/(d − 1), with the ceiling (d − r − 1)/(d − 1) without r directions. The reduced score divides
    by d − r − 1.

    Returns:
        The gains (bases, 2): ambient and reduced.
    """
    c = _shrunk(covariance)
    d, trace, square = len(c), c.diagonal().sum(), c.square().sum()
    before = (trace**2 / square - 1) / (d - 1)
    out = []
    products = (c @ torch.cat([basis.q for basis in bases], 1)).split([basis.effective for basis in bases], 1)
    for basis, cq in zip(bases, products, strict=True):
        inside = basis.q.T @ cq  # (r, r)
        ratio = (trace - inside.diagonal().sum()) ** 2 / (square - 2 * cq.square().sum() + inside.square().sum())
        out.append(torch.stack([(ratio - 1) / (left - 1) - before for left in (d, d - basis.effective)]))
    return torch.stack(out)


def _shrunk(covariance: Tensor) -> Tensor:
    c = covariance.double()
    return (1 - ZETA) * c + ZETA * c.diagonal().mean() * torch.eye(len(c), dtype=c.dtype)


@dataclass(frozen=True)
class RemovalControl:
    """Random subspaces of the same dimension: mean ΔIsoScore* of removing them, and the energy they capture."""

    ambient: float
    reduced: float
    energy: float


def removal_controls(covariance: Tensor, bases: Sequence[Basis], *, seed: int = 0) -> list[dict[str, RemovalControl]]:
    """The controls of each basis by name: `normal_control`, orthogonal to it, and `equal_energy`.

    A subspace of equal energy is a random one, tilted towards the gradients' leading or last directions until it has
    the energy of the basis. What a basis removes beyond it is not due to its energy.
    """
    whole = covariance.diagonal().sum()
    values, vectors = torch.linalg.eigh((covariance / whole).float())  # single precision is enough for a level
    values = values.clamp(min=0)  # (d,) ascending
    draw = torch.Generator().manual_seed(seed)
    out = []
    for basis in bases:
        d, r = basis.dim, basis.effective
        inside = vectors.T @ basis.q.float()  # (d, r) the basis in the axes of the covariance
        energy = float(values @ inside.square().sum(1) / values.sum())
        z = torch.randn(DRAWS, d, r, generator=draw)
        controls = {"equal_energy": _gains(_tilted(z, values, energy), values)}
        if 2 * r <= d:
            controls["normal_control"] = _gains(_overlaps(z - inside @ (inside.T @ z), values), values)
        out.append(controls)
    return out


def _overlaps(z: Tensor, values: Tensor) -> Tensor:
    """zᵀz, zᵀΛz and zᵀΛ²z of subspaces with columns z: all that removing them depends on, (3, draws, r, r)."""
    return torch.stack([z.mT @ (values[:, None] ** power * z) for power in range(3)])


def _tilted(z: Tensor, values: Tensor, energy: float) -> Tensor:
    """The overlaps of z + t·E_r, with t such that each subspace has this energy; E_r are r leading or last axes."""
    r = z.shape[2]
    start = _overlaps(z, values)
    richer = _captured(start, values) < energy  # (draws,) which of them must gain energy
    axes = torch.where(richer[:, None], torch.arange(len(values) - r, len(values)), torch.arange(r))  # (draws, r)
    rows = z.gather(1, axes[:, :, None].expand(-1, -1, r))  # (draws, r, r) the part of z along those axes
    powers = torch.stack([values[axes] ** power for power in range(3)])  # (3, draws, r)
    mixed = powers[..., None] * rows
    mixed = mixed + mixed.mT
    pure = torch.diag_embed(powers)
    low, high = torch.zeros_like(start[0, :, 0, 0]), torch.full_like(start[0, :, 0, 0], _FARTHEST)  # (draws,) each
    for _ in range(_HALVINGS):
        t = ((low + high) / 2)[:, None, None]
        captured = _captured(start + t * mixed + t.square() * pure, values)
        far = (captured > energy) == richer
        low, high = torch.where(far, low, t.flatten()), torch.where(far, t.flatten(), high)
    return start + t * mixed + t.square() * pure


def _captured(overlaps: Tensor, values: Tensor) -> Tensor:
    """The energy of each subspace: tr (zᵀz)⁻¹zᵀΛz / tr Λ, (draws,)."""
    return torch.linalg.solve(overlaps[0], overlaps[1]).diagonal(dim1=1, dim2=2).sum(1) / values.sum()


def _gains(overlaps: Tensor, values: Tensor) -> RemovalControl:
    """Mean ΔIsoScore* of removing subspaces with these overlaps, from traces of r × r matrices."""
    d, r, level = len(values), overlaps.shape[-1], float(values.mean())
    keep, fill = 1 - ZETA, ZETA * level
    zero, one, two = overlaps
    shrunk = keep * one + fill * zero
    again = keep**2 * two + 2 * keep * fill * one + fill**2 * zero
    inner = torch.linalg.solve(zero, shrunk)  # (draws, r, r)
    taken = inner.diagonal(dim1=1, dim2=2).sum(1)
    across = torch.linalg.solve(zero, again).diagonal(dim1=1, dim2=2).sum(1)
    inside = (inner * inner.mT).sum((1, 2))
    whole = keep * values + fill
    ratio = (whole.sum() - taken).square() / (whole.square().sum() - 2 * across + inside)
    before = float((whole.sum() ** 2 / whole.square().sum() - 1) / (d - 1))
    return RemovalControl(
        ambient=float(((ratio - 1) / (d - 1)).mean()) - before,
        reduced=float(((ratio - 1) / (d - r - 1)).mean()) - before,
        energy=float(_captured(overlaps, values).mean()),
    )
