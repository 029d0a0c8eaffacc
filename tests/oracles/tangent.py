"""Slow twins of the tangent test in plain numpy: what each number is by definition."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[np.float64]]


def principal_subspace(x: Array, rank: int) -> Array:
    """Orthonormal columns along which rows vary most about their mean."""
    return np.linalg.svd(x - x.mean(0), full_matrices=False)[2][:rank].T


def energy(g: Array, q: Array) -> float:
    """‖GQ‖²/‖G‖²."""
    return float(np.square(g @ q).sum() / np.square(g).sum())


def random_subspace(d: int, rank: int, draw: np.random.Generator) -> Array:
    return np.linalg.qr(draw.standard_normal((d, rank)))[0]


def semi_nmf_error(x: Array, rank: int, rounds: int, seed: int = 0) -> float:
    """‖X − ZD‖/‖X‖ by the multiplicative updates of Ding, Li and Jordan from a random start: slow and independent."""
    z = np.abs(np.random.default_rng(seed).standard_normal((len(x), rank)))
    for _ in range(rounds):
        d = np.linalg.lstsq(z, x, rcond=None)[0]  # (rank, d)
        cross, gram = x @ d.T, d @ d.T
        up = np.maximum(cross, 0) + z @ np.maximum(-gram, 0)
        down = np.maximum(-cross, 0) + z @ np.maximum(gram, 0)
        z = z * np.sqrt((up + 1e-12) / (down + 1e-12))
    d = np.linalg.lstsq(z, x, rcond=None)[0]
    return float(np.linalg.norm(x - z @ d) / np.linalg.norm(x))


def energy_without(g: Array, q: Array, block: Array) -> list[float]:
    """The energy of the rows that are left when each block is taken out."""
    return [energy(g[block != b], q) for b in np.unique(block)]


def signed_permutations(d: int, group: Array) -> list[Array]:
    """Every matrix that permutes coordinates within groups and flips signs; for a handful of coordinates."""
    from itertools import permutations

    orders = [p for p in permutations(range(d)) if all(group[i] == group[j] for i, j in enumerate(p))]
    out = []
    for order, signs in product(orders, product((-1.0, 1.0), repeat=d)):
        matrix = np.zeros((d, d))
        matrix[np.arange(d), order] = signs
        out.append(matrix)
    return out


def energy_matrix(g: Array, own: Array, bases: list[Array]) -> Array:
    """M_jk: the energy of cluster j's gradients in cluster k's basis."""
    return np.array([[energy(g[own == j], q) for q in bases] for j in range(len(bases))])


def weight_gradient(x: Array, delta: Array) -> Array:
    """Σ δ xᵀ, token by token."""
    return np.sum([np.outer(d, row) for row, d in zip(x, delta, strict=True)], axis=0)


def isoscore_star(c: Array, shrinkage: float, q: Array | None = None, *, reduced: bool = False) -> float:
    """(PR − 1)/(d − 1) of the shrunk covariance with a basis projected out, by eigenvalues."""
    d = len(c)
    c = (1 - shrinkage) * c + shrinkage * np.trace(c) / d * np.eye(d)
    left = d
    if q is not None:
        p = np.eye(d) - q @ q.T
        c = p @ c @ p
        left = d - q.shape[1]
    values = np.linalg.eigvalsh(c)
    ratio = values.sum() ** 2 / np.square(values).sum()
    return float((ratio - 1) / ((left if reduced else d) - 1))


def benjamini_hochberg(p: list[float]) -> list[float]:
    """The smallest level at which the step-up rule calls each test, tried over all levels that matter."""
    m = len(p)
    levels = sorted({v * m / k for v in p for k in range(1, m + 1)})
    out = []
    for value in p:
        for level in levels:
            passing = [k for k in range(1, m + 1) if sorted(p)[k - 1] <= k * level / m * (1 + 1e-12)]
            if passing and value <= sorted(p)[max(passing) - 1]:
                out.append(min(level, 1.0))
                break
        else:
            out.append(1.0)
    return out
