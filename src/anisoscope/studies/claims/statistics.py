"""The shapes that papers see in curves, each as one number: a bell, a rise and fall, parallel drift, lateness."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

import numpy as np
from scipy.special import stdtr

Curve = Sequence[float]


def bell(profile: Curve) -> float:
    """How far the middle third of the layers stands above the higher of the two end sixths.

    >>> round(bell([0.1, 0.2, 0.6, 0.8, 0.3, 0.2]), 6)
    0.5
    """
    n = len(profile)
    third, sixth = n // 3, max(1, n // 6)
    return fmean(profile[third : n - third]) - max(fmean(profile[:sixth]), fmean(profile[-sixth:]))


def span(profile: Curve) -> float:
    """Highest less lowest: how far from flat."""
    return max(profile) - min(profile)


def peak(curve: Curve) -> int:
    """The place of the highest value, the first of several."""
    return max(range(len(curve)), key=lambda place: curve[place])


def rise(curve: Curve, top: int) -> float:
    """How much higher the curve is at `top` than at its beginning."""
    return curve[top] - curve[0]


def fall(curve: Curve, top: int) -> float:
    """How much higher the curve is at `top` than at its end."""
    return curve[top] - curve[-1]


def half_time(steps: Sequence[int], curve: Curve) -> float:
    """The share of training after which half of the whole change has come about; linear between the steps.

    Where the curve crosses half more than once the first crossing counts. A curve that does not change is at 0.

    >>> round(half_time([0, 50, 100], [0.0, 0.1, 1.0]), 4)
    0.7222
    """
    half = (curve[0] + curve[-1]) / 2
    up = 1.0 if curve[-1] >= curve[0] else -1.0
    for place in range(1, len(steps)):
        before, after = curve[place - 1], curve[place]
        if up * after >= up * half:
            part = 0.0 if after == before else (half - before) / (after - before)
            return (steps[place - 1] + max(0.0, part) * (steps[place] - steps[place - 1])) / steps[-1]
    raise AssertionError("the last value is beyond half of the way to it")


def share(flags: Sequence[bool]) -> float:
    """The share of flags that are set."""
    return sum(flags) / len(flags)


Heads = Mapping[tuple[int, int], float]  # a value by (layer, head)


def parallel_drift(cosine: Sequence[Heads], entropy: Sequence[Heads]) -> list[bool]:
    """Of every head: whether |cos(q̄, k̄)| has grown while entropy has fallen, from the first look to the last."""
    heads = cosine[0].keys() & entropy[0].keys()
    return [abs(cosine[-1][h]) > abs(cosine[0][h]) and entropy[-1][h] < entropy[0][h] for h in sorted(heads)]


def spearman(x: Sequence[float], y: Sequence[float]) -> float:
    """Correlation of ranks, ties sharing theirs; 0 where one of the two does not vary.

    >>> spearman([1, 2, 3], [1.0, 3.0, 2.0])
    0.5
    """
    a, b = _ranks(x), _ranks(y)
    if a.std() == 0 or b.std() == 0:
        return 0.0
    return float(np.corrcoef(a, b)[0, 1])


def _ranks(x: Sequence[float]) -> Any:
    _, place, count = np.unique(np.asarray(x, dtype=float), return_inverse=True, return_counts=True)
    return (count.cumsum() - (count - 1) / 2)[place]


def spearman_p(x: Sequence[float], y: Sequence[float]) -> float:
    """The two-sided p-value of a rank correlation by Student's t, as published; neighbouring layers are no samples."""
    n, rho = len(x), spearman(x, y)
    if n < 3:
        return 1.0
    if abs(rho) >= 1 - 1e-12:
        return 0.0
    return float(2 * stdtr(n - 2, -abs(rho) * ((n - 2) / (1 - rho**2)) ** 0.5))


def slope(x: Sequence[float], y: Sequence[float]) -> float:
    """Least-squares slope of y on x.

    >>> round(slope([0, 1, 2], [1.0, 3.0, 5.0]), 6)
    2.0
    """
    return partial_slope(y, x)


def partial_slope(y: Sequence[float], x: Sequence[float], *held: Sequence[float]) -> float:
    """Slope of y on x where the other columns are held fixed: the first coefficient of a linear regression."""
    ones = np.ones(len(y))
    design: Any = np.column_stack([x, ones, *held])
    return float(np.linalg.lstsq(design, np.asarray(y, dtype=float), rcond=None)[0][0])
