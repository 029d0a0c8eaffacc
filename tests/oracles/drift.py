"""Slow twins of what has moved: kernels as n × n matrices, neighbours by all distances."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def cka(x: Array, y: Array) -> float:
    """Linear CKA with the unbiased HSIC, from the kernels themselves."""

    def hsic(k: Array, m: Array) -> float:
        n = len(k)
        k, m = k - np.diag(np.diag(k)), m - np.diag(np.diag(m))
        one = np.ones(n)
        sums = (one @ k @ one) * (one @ m @ one) / ((n - 1) * (n - 2)) - 2 / (n - 2) * (one @ k @ m @ one)
        return float((np.trace(k @ m) + sums) / (n * (n - 3)))

    k, m = x @ x.T, y @ y.T
    return hsic(k, m) / float(np.sqrt(hsic(k, k) * hsic(m, m)))


def neighbour_overlap(x: Array, y: Array, k: int) -> float:
    def nearest(z: Array) -> list[set[int]]:
        away = ((z[:, None] - z[None]) ** 2).sum(-1)
        np.fill_diagonal(away, np.inf)
        return [set(row[:k].tolist()) for row in away.argsort(1)]

    return float(np.mean([len(a & b) / k for a, b in zip(nearest(x), nearest(y), strict=True)]))


def angles(x: Array, y: Array, k: int) -> Array:
    """Principal angles between the top-k principal subspaces, ascending."""
    a, b = (np.linalg.svd(z - z.mean(0), full_matrices=False)[2][:k].T for z in (x, y))
    return np.arccos(np.clip(np.linalg.svd(a.T @ b, compute_uv=False), -1, 1))


def trajectory(now: Array, then: Array) -> Array:
    """The mean of `now` on two axes of `then`, over the RMS row length of `then`; the sign of the second is open."""
    mean = then.mean(0)
    first = mean / np.linalg.norm(mean)
    values, vectors = np.linalg.eigh(np.cov(then.T))
    off = vectors - np.outer(first, first @ vectors)  # (d, d) each principal axis without the first axis
    best = int((values * (off**2).sum(0)).argmax())
    second = off[:, best] / np.linalg.norm(off[:, best])
    return np.array([now.mean(0) @ first, now.mean(0) @ second]) / np.sqrt((then**2).sum(1).mean())
