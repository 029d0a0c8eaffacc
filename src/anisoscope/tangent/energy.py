"""Gradient energy: the share of the gradients' squared length inside a basis, with its error."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from anisoscope.errors import InputError
from anisoscope.stats.inference import jackknife
from anisoscope.tangent.basis import Basis

FEWEST_BLOCKS = 4


def energy(second: Tensor, basis: Basis) -> float:
    """The share of the gradients' squared length inside a basis: tr(QᵀSQ)/tr S.

    Args:
        second: S = GᵀG of the gradients G, (d, d).
        basis: The basis Q.

    Raises:
        InputError: If all gradients are zero.

    >>> import torch
    >>> from anisoscope.tangent.basis import orthonormal
    >>> energy(torch.diag(torch.tensor([3.0, 1.0])), orthonormal(torch.tensor([[1.0], [0.0]]), "mine"))
    0.75
    """
    s = second.double()
    total = float(s.diagonal().sum())
    if not total > 0:
        raise InputError("The gradients are all zero. Check that the loss depends on this site.")
    q = basis.q.to(s.device)
    return float((q * (s @ q)).sum()) / total


def chance(basis: Basis) -> float:
    """The mean energy of a random subspace of the same dimension: r/d."""
    return basis.effective / basis.dim


@dataclass(frozen=True)
class Energies:
    """Energies over blocks of documents: of all blocks together, and without each block."""

    value: Tensor  # (2, bases) plain and unit rows
    without: Tensor  # (2, B, bases)
    sizes: tuple[int, ...]  # rows of each block

    def error(self, rows: int, basis: int) -> float | None:
        """One standard error of a value, by jackknife over blocks; None for too few blocks."""
        return jackknife_error(float(self.value[rows, basis]), self.without[rows, :, basis], self.sizes)


def shares(part: Tensor, whole: Tensor, count: Tensor) -> Energies:
    """Σ part / Σ whole over the blocks (2, B, …) that have rows, and the same without each block."""
    used = (count > 0).nonzero()[:, 0]
    part, whole = part[:, used], whole[:, used]
    all_part, all_whole = part.sum(1, keepdim=True), whole.sum(1, keepdim=True)
    without = (all_part - part) / (all_whole - whole).clamp(min=1e-300)
    value = (all_part / all_whole.clamp(min=1e-300))[:, 0]
    return Energies(value, without, tuple(count[used].tolist()))


def jackknife_error(value: float, without: Tensor, sizes: tuple[int, ...]) -> float | None:
    """One standard error from replicates without each block (B,); None for fewer than four blocks."""
    return jackknife(value, without.tolist(), sizes) if len(sizes) >= FEWEST_BLOCKS else None
