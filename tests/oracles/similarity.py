"""Slow twin of the information imbalance, and of a permutation test over all pairs of layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Measure = Callable[[Array, Array], float]


def imbalance(x: Array, y: Array) -> float:
    """2/m times the mean rank in y of the nearest row in x."""
    ranks = []
    for i in range(len(x)):
        near, away = (((z - z[i]) ** 2).sum(1) for z in (x, y))
        near[i] = away[i] = np.inf
        ranks.append(1 + int((away < away[near.argmin()]).sum()))
    return 2 / len(x) * float(np.mean(ranks))


def permutation_p(a: Sequence[Array], b: Sequence[Array], orders: Sequence[Array], measure: Measure) -> Array:
    """Max-T p-values (A, B); `orders` are the permutations of the rows of b."""
    every = [np.arange(len(a[0])), *orders]
    values = np.array([[[measure(x, y[order]) for y in b] for x in a] for order in every])
    z = (values - values.mean(0)) / values.std(0)
    return np.asarray((z.max((1, 2))[:, None, None] >= z[0]).mean(0))
