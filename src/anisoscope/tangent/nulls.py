"""Nulls of orientation: subspaces that know nothing of the activations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from scipy.special import betainc
from torch import Tensor

from anisoscope.errors import InputError
from anisoscope.tangent.basis import Basis
from anisoscope.tangent.facts import EMBEDDING, HIDDEN, WEIGHT_OUT, Level, null
from anisoscope.tangent.frame import Frame
from anisoscope.tangent.multiple import permutation_p

NORMAL_DRAWS = 20  # as published


@dataclass(frozen=True)
class Haar:
    """The energy of a uniformly random subspace: exact mean and variance, and the Beta law that has both."""

    mean: float
    variance: float
    alpha: float
    beta: float

    def p_value(self, energy: float) -> float:
        """The chance that a random subspace captures at least this energy."""
        if self.variance <= 0:  # isotropic gradients: every subspace captures r/d
            return 1.0
        return float(betainc(self.beta, self.alpha, min(max(1 - energy, 0.0), 1.0)))


def haar(second: Tensor, rank: int) -> Haar:
    """The energy S = GᵀG leaves in a Haar-random subspace of dimension r: Beta(mν, (1 − m)ν).

    m = r/d, v = [2r(d − r)/(d(d − 1)(d + 2))]·[tr S²/(tr S)² − 1/d], ν = m(1 − m)/v − 1; mean and variance are exact,
    and for gradients on one line so is the law.

    >>> null = haar(torch.diag(torch.tensor([1.0, 0.0, 0.0, 0.0])), 2)
    >>> null.mean, round(null.alpha, 6), round(null.beta, 6)
    (0.5, 1.0, 1.0)
    """
    d = len(second)
    if not 0 < rank < d:
        raise InputError(f"a random subspace of {rank} in {d} dimensions has nothing to vary; expected 0 < rank < {d}")
    s = second.double()
    total = float(s.diagonal().sum())
    if not total > 0:
        raise InputError("the gradients are all zero; expected some that are not: does the loss depend on this site?")
    concentration = float(s.square().sum()) / total**2  # tr S²/(tr S)²: 1/d for a sphere, 1 for a line
    mean = rank / d
    variance = 2 * rank * (d - rank) / (d * (d - 1) * (d + 2)) * max(concentration - 1 / d, 0.0)
    if variance <= 0:
        return Haar(mean, 0.0, 0.0, 0.0)
    spread = mean * (1 - mean) / variance - 1
    return Haar(mean, variance, mean * spread, (1 - mean) * spread)


@null("the bases point anywhere: uniformly random subspaces", (HIDDEN, WEIGHT_OUT, EMBEDDING), decides=True)
def orientation(second: Tensor, bases: Sequence[Basis], frame: Frame, seed: int = 0) -> list[Level]:
    """Haar-random subspaces of the same dimension, in closed form."""
    out = []
    for basis in bases:
        law = haar(second, basis.effective)
        out.append(Level(law.mean, law.p_value(float(_energy(second, basis)))))
    return out


@null("as published: random subspaces orthogonal to the basis", decides=False)
def normal_control(second: Tensor, bases: Sequence[Basis], frame: Frame, seed: int = 0) -> list[Level]:
    """The paper's control, 20 draws: its level is (1 − E)·r/(d − r) on average, a transform of the energy E itself.

    The p-value is the published one. It is not calibrated where r is no small share of d (at r = d/2 the level is
    1 − E exactly, so that any E above one half would be called), hence it does not decide.
    """
    draw = torch.Generator().manual_seed(seed)
    out = []
    for basis in bases:
        r, d = basis.effective, basis.dim
        if 2 * r > d:
            out.append(Level(None, note=f"no {r} dimensions are left beside {r} of {d}"))
            continue
        drawn = torch.stack([_energy(second, normal_subspace(basis, draw)) for _ in range(NORMAL_DRAWS)])
        out.append(Level(float(drawn.mean()), permutation_p(float(_energy(second, basis)), drawn)))
    return out


def normal_subspace(basis: Basis, draw: torch.Generator) -> Basis:
    """A random subspace of the basis' own dimension, orthogonal to it."""
    z = torch.randn(basis.dim, basis.effective, generator=draw, dtype=torch.float64)
    q = torch.linalg.qr(z - basis.q @ (basis.q.T @ z))[0]
    return Basis(q, "normal", basis.rank, basis.effective)


def _energy(second: Tensor, basis: Basis) -> Tensor:
    return (basis.q * (second @ basis.q)).sum() / second.diagonal().sum()
