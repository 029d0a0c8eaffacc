"""Shapes of curves that papers describe, each as one number: range, rise and fall, parallel drift, lateness."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

Curve = Sequence[float]
HeadValues = Mapping[tuple[int, int], float]  # a value by (layer, head)


def span(profile: Curve) -> float:
    """Highest minus lowest value: 0 for a flat profile."""
    return max(profile) - min(profile)


def peak(curve: Curve) -> int:
    """Index of the highest value; the first one if there are several."""
    return max(range(len(curve)), key=lambda index: curve[index])


def rise(curve: Curve, top: int) -> float:
    """Value at index `top` minus the first value."""
    return curve[top] - curve[0]


def fall(curve: Curve, top: int) -> float:
    """Value at index `top` minus the last value."""
    return curve[top] - curve[-1]


def half_time(steps: Sequence[int], curve: Curve) -> float:
    """Share of training after which half of the total change has happened; linear between the steps.

    If the curve crosses the half several times, the first crossing counts. A curve that does not change gives 0.

    >>> round(half_time([0, 50, 100], [0.0, 0.1, 1.0]), 4)
    0.7222
    """
    half = (curve[0] + curve[-1]) / 2
    up = 1.0 if curve[-1] >= curve[0] else -1.0
    for index in range(1, len(steps)):
        before, after = curve[index - 1], curve[index]
        if up * after >= up * half:
            part = 0.0 if after == before else (half - before) / (after - before)
            return (steps[index - 1] + max(0.0, part) * (steps[index] - steps[index - 1])) / steps[-1]
    raise AssertionError("the last value is beyond half of the way to it")


def share(flags: Sequence[bool]) -> float:
    """Share of flags that are true."""
    return sum(flags) / len(flags)


def parallel_drift(cosine: Sequence[HeadValues], entropy: Sequence[HeadValues]) -> list[bool]:
    """For each head: whether |cos(q̄, k̄)| has grown and entropy has fallen from the first to the last measurement."""
    heads = cosine[0].keys() & entropy[0].keys()
    return [abs(cosine[-1][h]) > abs(cosine[0][h]) and entropy[-1][h] < entropy[0][h] for h in sorted(heads)]


def slope(x: Sequence[float], y: Sequence[float]) -> float:
    """Least-squares slope of y on x.

    >>> round(slope([0, 1, 2], [1.0, 3.0, 5.0]), 6)
    2.0
    """
    return partial_slope(y, x)


def partial_slope(y: Sequence[float], x: Sequence[float], *held: Sequence[float]) -> float:
    """Slope of y on x with the other columns held fixed: the first coefficient of a linear regression."""
    ones = np.ones(len(y))
    design: Any = np.column_stack([x, ones, *held])
    return float(np.linalg.lstsq(design, np.asarray(y, dtype=float), rcond=None)[0][0])
