"""Nulls of orientation: random subspaces that do not depend on the activations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from scipy.special import betainc, gammaincc
from torch import Tensor

from anisoscope.errors import InputError
from anisoscope.tangent.basis import Basis
from anisoscope.tangent.energy import energy
from anisoscope.tangent.null import EMBEDDING, HIDDEN, WEIGHT_OUT, NullLevel, null
from anisoscope.tangent.permutation import permutation_p
from anisoscope.tangent.site_bases import SiteBases

NORMAL_DRAWS = 20  # as published
_SYMMETRIC = 1e-3  # a skewness below this counts as none
_ENOUGH = 1.02  # tolerated ratio of the true skewness to that of the Beta distribution
_ROUNDING = 1e-24  # variances below this are rounding


@dataclass(frozen=True)
class Haar:
    """The distribution of the energy of a uniformly random subspace.

    Mean, variance and skewness are exact; alpha and beta are the Beta distribution of the first two. It is exact for
    gradients on one line, but not skewed enough for most others: its far tail is several times too light. A p-value is
    then the larger of the Beta distribution's and that of the gamma distribution with all three moments.
    """

    mean: float
    variance: float
    alpha: float
    beta: float
    skew: float = 0.0

    def p_value(self, energy: float) -> float:
        """The probability that a random subspace captures at least this energy."""
        if self.variance <= 0:  # isotropic gradients: every subspace captures r/d
            return 1.0
        p = float(betainc(self.beta, self.alpha, min(max(1 - energy, 0.0), 1.0)))
        a, b = self.alpha, self.beta
        skew_of_beta = 2 * (b - a) * (a + b + 1) ** 0.5 / ((a + b + 2) * (a * b) ** 0.5)
        if self.skew > max(_ENOUGH * skew_of_beta, _SYMMETRIC):
            shape = 4 / self.skew**2
            above = (energy - self.mean) / (self.variance**0.5 * self.skew / 2)
            p = max(p, float(gammaincc(shape, max(0.0, shape + above))))
        return p


@dataclass(frozen=True)
class Unevenness:
    """All that the energy of a random subspace depends on: tr S₀² and tr S₀³ with S₀ = S/tr S − I/d."""

    dim: int
    square: float
    cube: float

    @classmethod
    def of(cls, second: Tensor) -> Unevenness:
        d, s = len(second), second.double()
        total = float(s.diagonal().sum())
        if not total > 0:
            raise InputError("The gradients are all zero. Check that the loss depends on this site.")
        uneven = s / total - torch.eye(d, dtype=s.dtype, device=s.device) / d  # zero for a sphere
        return cls(d, float(uneven.square().sum()), float((uneven * (uneven @ uneven)).sum()))

    def haar(self, rank: int) -> Haar:
        """The distribution of the energy in a random subspace of this dimension; see `haar`."""
        d = self.dim
        if not 0 < rank < d:
            raise InputError(
                f"A random subspace of {rank} in {d} dimensions has nothing to vary. Use a rank between 1 and {d - 1}."
            )
        mean = rank / d
        variance = 2 * rank * (d - rank) / (d * (d - 1) * (d + 2)) * self.square
        if variance <= _ROUNDING:
            return Haar(mean, 0.0, 0.0, 0.0)
        spread = mean * (1 - mean) / variance - 1
        skew = 0.0
        if d > 2:
            share = 8 * rank * (d - rank) * (d - 2 * rank) / (d * (d - 1) * (d - 2) * (d + 2) * (d + 4))
            skew = share * self.cube / variance**1.5
        return Haar(mean, variance, mean * spread, (1 - mean) * spread, skew)


def haar(second: Tensor, rank: int) -> Haar:
    """The distribution of the energy of S = GᵀG in a Haar-random subspace of dimension r.

    Mean m = r/d, variance v = [2r(d − r)/(d(d − 1)(d + 2))]·tr S₀², Beta(mν, (1 − m)ν) with ν = m(1 − m)/v − 1; the
    third central moment is 8r(d − r)(d − 2r)/(d(d − 1)(d − 2)(d + 2)(d + 4))·tr S₀³, with S₀ = S/tr S − I/d.

    Args:
        second: S, (d, d).
        rank: The dimension r of the subspace.

    Raises:
        InputError: If all gradients are zero, or the rank is not between 1 and d − 1.

    >>> null = haar(torch.diag(torch.tensor([1.0, 0.0, 0.0, 0.0])), 2)
    >>> null.mean, round(null.alpha, 6), round(null.beta, 6)
    (0.5, 1.0, 1.0)
    """
    return Unevenness.of(second).haar(rank)


@null("the bases point anywhere: uniformly random subspaces", (HIDDEN, WEIGHT_OUT, EMBEDDING), decides=True)
def orientation(second: Tensor, bases: Sequence[Basis], fitted: SiteBases, seed: int = 0) -> list[NullLevel]:
    """Haar-random subspaces of the same dimension, in closed form."""
    unevenness = Unevenness.of(second)
    laws = [unevenness.haar(basis.effective) for basis in bases]
    return [NullLevel(law.mean, law.p_value(energy(second, b))) for law, b in zip(laws, bases, strict=True)]


@null("as published: random subspaces orthogonal to the basis", decides=False)
def normal_control(second: Tensor, bases: Sequence[Basis], fitted: SiteBases, seed: int = 0) -> list[NullLevel]:
    """The published control, 20 draws: its level is (1 − E)·r/(d − r) on average, a transform of the energy E itself.

    The p-value is the published one. It is not calibrated unless r is a small share of d (at r = d/2 the level is
    1 − E exactly, so that any E above one half would be called significant). Hence it does not decide.
    """
    draw = torch.Generator().manual_seed(seed)
    values, vectors = torch.linalg.eigh((second / second.diagonal().sum()).double())
    out = []
    for basis in bases:
        r, d = basis.effective, basis.dim
        if 2 * r > d:
            out.append(NullLevel(None, note=f"no {r} dimensions are left outside {r} of {d}"))
            continue
        inside = vectors.T @ basis.q.double()  # (d, r) in the axes of S
        z = torch.randn(NORMAL_DRAWS, d, r, generator=draw).double()
        drawn = span_energies(z - inside @ (inside.T @ z), values)
        out.append(NullLevel(float(drawn.mean()), permutation_p(energy(second, basis), drawn)))
    return out


def span_energies(z: Tensor, values: Tensor) -> Tensor:
    """The energy of the spans of columns z (draws, d, r) in the axes of S: tr (zᵀz)⁻¹zᵀΛz / tr Λ.

    The condition of zᵀz is the square of that of z. If the span fills the space that is left, it exceeds what float32
    can hold, so z is float64.
    """
    inside = torch.linalg.solve(z.mT @ z, z.mT @ (values[:, None] * z))  # (draws, r, r)
    return inside.diagonal(dim1=1, dim2=2).sum(1) / values.sum()
