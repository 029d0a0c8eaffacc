"""Neighbours the slow way: every pair by direct differences in float64, in plain numpy."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def nearest_distances(x: Array, k: int, group: NDArray[np.int64] | None = None) -> Array:
    """(n, k) distances to the nearest other rows, ascending; inf where fewer than k rows may be met."""
    result = np.full((len(x), k), np.inf)
    unit = max(float(np.abs(x).max()), 1e-300)  # so that squares of extreme entries stay finite
    for i, row in enumerate(x):
        allowed = np.arange(len(x)) != i if group is None else group != group[i]
        distance = np.sort(pair_distances(x[allowed], row, unit))[:k]
        result[i, : len(distance)] = distance
    return result


def pair_distances(a: Array, b: Array, unit: float) -> Array:
    """‖a − b‖ over the last axis, with differences measured in `unit` while they are squared."""
    result: Array = np.sqrt((((a - b) / unit) ** 2).sum(axis=-1)) * unit
    return result


def first_occurrences(x: Array) -> list[int]:
    """The rows that equal none before them, by comparing all pairs."""
    first: list[int] = []
    for i, row in enumerate(x):
        if not any(np.array_equal(row, x[j]) for j in first):
            first.append(i)
    return first
