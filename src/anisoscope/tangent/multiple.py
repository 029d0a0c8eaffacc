"""Many tests at once: permutation p-values that are never zero, and the false discovery rate."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor


def permutation_p(value: float, draws: Tensor) -> float:
    """(1 + number of draws at least as large) / (1 + draws): valid at any number of draws.

    >>> import torch
    >>> permutation_p(2.0, torch.tensor([0.0, 1.0, 3.0]))
    0.5
    """
    slack = 1e-12 * max(abs(value), float(draws.abs().max()) if len(draws) else 0.0)  # equal up to rounding counts
    return (1 + int((draws >= value - slack).sum())) / (1 + len(draws))


def benjamini_hochberg(p: Sequence[float]) -> list[float]:
    """q-values: the smallest false discovery rate at which each test would be called, min over j ≥ i of p_j·m/j.

    >>> benjamini_hochberg([0.01, 0.04, 0.03])
    [0.03, 0.04, 0.04]
    """
    m = len(p)
    order = sorted(range(m), key=lambda i: p[i])
    q = [0.0] * m
    lowest = 1.0
    for place in range(m, 0, -1):
        i = order[place - 1]
        lowest = min(lowest, p[i] * m / place)
        q[i] = lowest
    return q
