"""How much of the gradients lies inside a basis."""

from __future__ import annotations

from torch import Tensor

from anisoscope.errors import InputError
from anisoscope.tangent.basis import Basis


def energy(second: Tensor, basis: Basis) -> float:
    """The share of the gradients' squared length inside a basis: tr(QᵀSQ)/tr S with S = GᵀG.

    >>> import torch
    >>> from anisoscope.tangent.basis import orthonormal
    >>> energy(torch.diag(torch.tensor([3.0, 1.0])), orthonormal(torch.tensor([[1.0], [0.0]]), "mine"))
    0.75
    """
    s = second.double()
    total = float(s.diagonal().sum())
    if not total > 0:
        raise InputError("the gradients are all zero; expected some that are not: does the loss depend on this site?")
    q = basis.q.to(s.device)
    return float((q * (s @ q)).sum()) / total


def chance(basis: Basis) -> float:
    """What a random subspace of the same dimension captures: r/d."""
    return basis.effective / basis.dim
