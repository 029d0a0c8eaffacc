"""The p-value of a permutation test."""

from __future__ import annotations

from torch import Tensor


def permutation_p(value: float, draws: Tensor) -> float:
    """(1 + number of draws at least as large as the value) / (1 + number of draws): valid for any number of draws.

    >>> import torch
    >>> permutation_p(2.0, torch.tensor([0.0, 1.0, 3.0]))
    0.5
    """
    # draws that equal the value up to rounding count as at least as large
    slack = 1e-12 * max(abs(value), float(draws.abs().max()) if len(draws) else 0.0)
    return (1 + int((draws >= value - slack).sum())) / (1 + len(draws))
