"""Statistical inference on plain numbers: standard errors, quantiles, rank correlations, many tests at once.

Every package takes these from here, so that the same numbers always give the same error bar. The module needs numpy
and scipy but not torch; `scipy.stats` takes a second to import and is loaded on first use.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import stdtr, stdtrit


def jackknife(whole: float, replicates: Sequence[float], sizes: Sequence[int] | None = None) -> float:
    """Standard error of a value from its replicates, each computed without one block.

    Blocks of different sizes use the delete-m_j jackknife (Busing, Meijer and van der Leeden 1999). With n = Σm_j,
    h_j = n/m_j, B blocks and θ̃ = B·θ − Σ(1 − m_j/n)·θ_(j):

        error² = 1/B · Σ (h_j·θ − (h_j − 1)·θ_(j) − θ̃)² / (h_j − 1)

    For blocks of one size this is the ordinary error² = (B − 1)/B · Σ(θ_(j) − mean)².

    Args:
        whole: The value θ of all blocks together.
        replicates: The value θ_(j) without block j, for every block.
        sizes: Number of rows m_j in each block, all positive. None if all blocks have the same size.

    Returns:
        One standard error.

    Raises:
        ValueError: There are fewer than two blocks, or `sizes` and `replicates` differ in length.

    >>> jackknife(2.0, [2.5, 2.0, 1.5], [1, 1, 1])  # the mean of 1, 2, 3: its standard error is 1/√3
    0.5773502691896257
    """
    blocks = len(replicates)
    if blocks < 2:
        raise ValueError(f"A jackknife needs at least two blocks, not {blocks}.")
    if sizes is None:
        centre = fmean(replicates)
        return math.sqrt((blocks - 1) / blocks * sum((r - centre) ** 2 for r in replicates))
    n = sum(sizes)
    centre = blocks * whole - sum((1 - m / n) * r for m, r in zip(sizes, replicates, strict=True))
    spread = 0.0
    for m, replicate in zip(sizes, replicates, strict=True):
        less = (n - m) / m  # h − 1, without cancellation if one block holds nearly all rows
        spread += ((less + 1) * whole - less * replicate - centre) ** 2 / less
    return math.sqrt(spread / blocks)


def t_quantile(probability: float, degrees: float) -> float:
    """Quantile of Student's t distribution.

    Args:
        probability: Probability below the quantile: 0.975 for a two-sided 95 % interval.
        degrees: Degrees of freedom: the number of blocks minus one for a jackknife. `math.inf` is the normal
            distribution.

    >>> round(t_quantile(0.975, 15), 3), round(t_quantile(0.975, math.inf), 3)
    (2.131, 1.96)
    """
    return float(stdtrit(degrees, probability))


def spearman(a: ArrayLike, b: ArrayLike) -> float:
    """Spearman's rank correlation; tied values share their mean rank.

    Returns:
        The correlation, or 0 if one of the two does not vary.

    >>> round(spearman([1, 2, 3], [1.0, 3.0, 2.0]), 6)
    0.5
    """
    from scipy.stats import spearmanr

    x, y = np.asarray(a, dtype=float), np.asarray(b, dtype=float)
    if len(x) < 2 or (x == x[0]).all() or (y == y[0]).all():
        return 0.0
    return float(spearmanr(x, y).statistic)


def spearman_p(a: ArrayLike, b: ArrayLike) -> float:
    """Two-sided p-value of Spearman's rank correlation by Student's t with n − 2 degrees of freedom.

    It assumes independent pairs. Neighbouring layers are not independent: use it only to repeat a published test.

    Returns:
        The p-value; 1 for fewer than three pairs.

    >>> round(spearman_p([1, 2, 3, 4], [1, 2, 4, 3]), 6)
    0.2
    """
    n, rho = len(np.asarray(a)), spearman(a, b)
    if n < 3:
        return 1.0
    if abs(rho) >= 1 - 1e-12:
        return 0.0
    return float(2 * stdtr(n - 2, -abs(rho) * ((n - 2) / (1 - rho**2)) ** 0.5))


def false_discovery(p: Sequence[float]) -> list[float]:
    """Benjamini–Hochberg q-values: the smallest false discovery rate at which each test would be called.

    q_i is the minimum over j ≥ i of p_(j)·m/j, with m p-values in increasing order.

    Args:
        p: The p-values of one family of tests.

    Returns:
        The q-values, in the order of `p`.

    >>> [round(q, 6) for q in false_discovery([0.01, 0.04, 0.03])]
    [0.03, 0.04, 0.04]
    """
    from scipy.stats import false_discovery_control

    return [float(q) for q in false_discovery_control(p)] if len(p) else []


def bell(profile: Sequence[float]) -> float:
    """Height of a bell over the layers: mean of the middle third minus the higher mean of the two end sixths.

    Args:
        profile: One value per layer, in the order of the layers.

    >>> round(bell([0.1, 0.2, 0.6, 0.8, 0.3, 0.2]), 6)
    0.5
    """
    n = len(profile)
    third, sixth = n // 3, max(1, n // 6)
    return fmean(profile[third : n - third]) - max(fmean(profile[:sixth]), fmean(profile[-sixth:]))
