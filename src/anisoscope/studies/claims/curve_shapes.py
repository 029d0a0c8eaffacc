"""Shapes of curves that papers describe, each as one number: range, rise and fall, parallel drift, lateness."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

import numpy as np

Curve = Sequence[float]
_PLATEAU = 0.1  # of the range: values this close to the highest belong to its plateau
HeadValues = Mapping[tuple[int, int], float]  # a value by (layer, head)


def span(profile: Curve) -> float:
    """Highest minus lowest value: 0 for a flat profile."""
    return max(profile) - min(profile)


def bell(profile: Curve) -> float:
    """Height of a bell over the states: mean of the middle third minus the higher one of the first and last state.

    >>> round(bell([0.1, 0.2, 0.6, 0.8, 0.3, 0.2]), 6)
    0.5
    """
    third = len(profile) // 3
    return fmean(profile[third : len(profile) - third]) - max(profile[0], profile[-1])


def peak_depth(profile: Curve) -> float:
    """Relative depth of the highest state: 0 is the first state, 1 the last. The middle of a plateau counts.

    >>> peak_depth([0.1, 0.9, 0.9, 0.9, 0.2])
    0.5
    """
    top = [index for index, value in enumerate(profile) if value >= max(profile) - _PLATEAU * span(profile)]
    return fmean(top) / (len(profile) - 1)


def peak(curve: Curve) -> int:
    """Index of the highest value; the first one if there are several."""
    return max(range(len(curve)), key=lambda index: curve[index])


def interior_peak(curve: Curve) -> int:
    """Index of the highest value that is neither the first nor the last; 0 if there are no others."""
    return 1 + peak(curve[1:-1]) if len(curve) > 2 else 0


def rise_and_fall(curves: Sequence[Curve]) -> list[tuple[float, float]]:
    """For each curve: peak minus first value and peak minus last value, at the interior peak of the other curves.

    The other curves choose the peak, so that noise of the curve itself cannot make one; a monotone curve gives one
    negative number.

    >>> [(round(a, 6), round(b, 6)) for a, b in rise_and_fall([[1.0, 3.0, 2.0], [1.0, 4.0, 2.0]])]
    [(2.0, 1.0), (3.0, 2.0)]
    """
    results = []
    for held, curve in enumerate(curves):
        others = [other for index, other in enumerate(curves) if index != held] or [curve]
        top = interior_peak([fmean(values) for values in zip(*others, strict=True)])
        results.append((curve[top] - curve[0], curve[top] - curve[-1]))
    return results


def fall_rise_fall(curves: Sequence[Curve]) -> list[tuple[float, float, float]]:
    """For each curve: first − trough, peak − trough and peak − last, at the turning points of the other curves.

    The trough and the later peak are the pair of interior points with the largest rise between them.

    >>> [tuple(round(x, 6) for x in each) for each in fall_rise_fall([[3.0, 1.0, 4.0, 2.0]] * 2)]
    [(2.0, 3.0, 2.0), (2.0, 3.0, 2.0)]
    """
    results = []
    for held, curve in enumerate(curves):
        others = [other for index, other in enumerate(curves) if index != held] or [curve]
        mean = [fmean(values) for values in zip(*others, strict=True)]
        inner = range(1, len(mean) - 1)
        pairs = [(low, high) for low in inner for high in inner if low < high]
        low, high = max(pairs, key=lambda pair: mean[pair[1]] - mean[pair[0]], default=(0, 0))
        results.append((curve[0] - curve[low], curve[high] - curve[low], curve[high] - curve[-1]))
    return results


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
