"""Slow twins of the metrics in plain numpy: all pairs, full SVDs, explicit loops, no code shared with the package."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def mean_cosine(x: Array) -> float:
    x = x[np.linalg.norm(x, axis=1) > 0]
    n = len(x)
    total = 0.0
    for i in range(n):
        for j in range(n):
            if i != j:
                total += float(x[i] @ x[j] / (np.linalg.norm(x[i]) * np.linalg.norm(x[j])))
    return total / (n * (n - 1))


def mean_cosine_centred(x: Array) -> float:
    return mean_cosine(x - x.mean(0))


def mean_cosine_across_documents(x: Array, document: Array) -> float:
    found = [
        float(x[i] @ x[j] / (np.linalg.norm(x[i]) * np.linalg.norm(x[j])))
        for i in range(len(x))
        for j in range(len(x))
        if document[i] != document[j]
    ]
    return float(np.mean(found))


def drift_norm(x: Array) -> float:
    return float(np.linalg.norm(x.mean(0)))


def relative_drift(x: Array) -> float:
    return float(np.linalg.norm(x.mean(0)) / np.sqrt((x**2).sum(1).mean()))


def _singular(x: Array, centre: bool) -> Array:
    return np.linalg.svd(x - x.mean(0) if centre else x, compute_uv=False)


def spectral_anisotropy(x: Array) -> float:
    s = _singular(x, True)
    return float(s[0] ** 2 / (s**2).sum())


def spectral_anisotropy_uncentred(x: Array) -> float:
    s = _singular(x, False)
    return float(s[0] ** 2 / (s**2).sum())


def singular_anisotropy(x: Array) -> float:
    s = _singular(x, False)
    return float(s[0] / s.sum())


def participation_ratio(x: Array) -> float:
    values = _singular(x, True) ** 2
    return float(values.sum() ** 2 / (values**2).sum())


def isoscore(x: Array) -> float:
    """The published algorithm step by step: PCA, variances normalised to length √d, distance to the all-ones vector."""
    d = x.shape[1]
    variances = np.var((x - x.mean(0)) @ np.linalg.svd(x - x.mean(0), full_matrices=True)[2].T, axis=0)
    normed = np.sqrt(d) * variances / np.linalg.norm(variances)
    defect = np.linalg.norm(normed - np.ones(d)) / np.sqrt(2 * (d - np.sqrt(d)))
    used = (d - defect**2 * (d - np.sqrt(d))) ** 2 / d**2
    return float((d * used - 1) / (d - 1))


def isoscore_star(x: Array, zeta: float = 0.2) -> float:
    c = np.cov(x.T, bias=True)
    d = len(c)
    shrunk = (1 - zeta) * c + zeta * np.trace(c) / d * np.eye(d)
    values = np.linalg.eigvalsh(shrunk)
    return float((values.sum() ** 2 / (values**2).sum() - 1) / (d - 1))


def partition_isotropy(x: Array) -> dict[str, float]:
    d = x.shape[1]
    axes = np.linalg.eigh(x.T @ x)[1]
    axes = axes * np.where(x.mean(0) @ axes < 0, -1.0, 1.0)
    out = {}
    for rows, w in (("raw", x), ("unit-rms", x * np.sqrt(d / (x**2).sum(1).mean()))):
        plus = np.array([np.exp(w @ axes[:, j]).sum() for j in range(d)])
        minus = np.array([np.exp(-w @ axes[:, j]).sum() for j in range(d)])
        both = np.concatenate((plus, minus))
        out[f"rows={rows}, signs=both"] = float(both.min() / both.max())
        out[f"rows={rows}, signs=mean"] = float(plus.min() / plus.max())
    return out


def cosine_contribution(x: Array) -> list[float]:
    u = x / np.linalg.norm(x, axis=1, keepdims=True)
    n = len(u)
    return [
        float(sum(u[i, k] * u[j, k] for i in range(n) for j in range(n) if i != j) / (n * (n - 1)))
        for k in range(x.shape[1])
    ]


def top_coordinate(x: Array) -> float:
    return float((np.linalg.svd(x - x.mean(0))[2][0] ** 2).max())


def removal_curve(x: Array, removed: int) -> float:
    keep = np.argsort(np.linalg.norm(x, axis=1), kind="stable")[: len(x) - removed]
    return spectral_anisotropy(x[keep])


def participation_ratio_unbiased(x: Array, block: Array) -> float:
    y = x - x.mean(0)
    top = bottom = 0.0
    scatters = [y[block == b].T @ y[block == b] for b in np.unique(block)]
    for i, a in enumerate(scatters):
        for j, b in enumerate(scatters):
            if i != j:
                top += float(np.trace(a) * np.trace(b))
                bottom += float((a * b).sum())
    return top / bottom


def effective_rank(x: Array, centre: bool = True) -> float:
    p = _singular(x, centre)
    p = p / p.sum()
    return float(np.exp(-(p * np.log(p)).sum()))


def stable_rank(x: Array) -> float:
    return float((x**2).sum() / np.linalg.norm(x, 2) ** 2)


def neighbour_distances(x: Array) -> Array:
    """Distances to all other rows, ascending, one row each."""
    return np.stack([np.sort(np.delete(np.linalg.norm(x - row, axis=1), i)) for i, row in enumerate(x)])


def two_nn(x: Array, share: float = 0.9) -> float:
    r = neighbour_distances(x)
    mu = np.sort(r[:, 1] / r[:, 0])
    n = len(mu)
    keep = int(share * n)
    a = np.log(mu[:keep])
    b = -np.log(1 - np.arange(1, keep + 1) / n)
    return float((a * b).sum() / (a * a).sum())


def two_nn_ml(x: Array) -> float:
    r = neighbour_distances(x)
    return float((len(x) - 1) / np.log(r[:, 1] / r[:, 0]).sum())


def gride(x: Array, k: int) -> float:
    """The likelihood of d for μ = r_2k/r_k, maximised on a fine grid."""
    r = neighbour_distances(x)
    mu = r[:, 2 * k - 1] / r[:, k - 1]
    grid = np.linspace(0.5, 40, 200_000)
    log = np.log(mu)
    best = grid[0], -np.inf
    for d in grid[:: max(1, len(grid) // 4000)]:
        value = len(mu) * np.log(d) + (k - 1) * np.log(np.expm1(d * log)).sum() - ((2 * k - 1) * d + 1) * log.sum()
        if value > best[1]:
            best = d, value
    return float(best[0])


def mle_dimension(x: Array, k: int = 20) -> float:
    r = neighbour_distances(x)[:, :k]
    inverse = [np.log(row[-1] / row[:-1]).sum() / (k - 1) for row in r]
    return float(1 / np.mean(inverse))


def tyler_share(x: Array, centre: Array) -> float:
    y = x - centre
    d = y.shape[1]
    v = np.eye(d)
    for _ in range(500):
        inverse = np.linalg.inv(v)
        v = sum(np.outer(row, row) / (row @ inverse @ row) for row in y)
        v = v / np.trace(v)
    return float(np.linalg.eigvalsh(v)[-1])


def null_of_rotated_documents(x: Array, document: Array, draws: int = 200, seed: int = 0) -> tuple[float, float]:
    """Mean participation ratio and top share when each document is rotated by itself, by simulation."""
    random = np.random.default_rng(seed)
    y = x - x.mean(0)
    d = y.shape[1]
    ratios, shares = [], []
    for _ in range(draws):
        scatter = np.zeros((d, d))
        for b in np.unique(document):
            turn = np.linalg.qr(random.standard_normal((d, d)))[0]
            part = y[document == b] @ turn
            scatter += part.T @ part
        values = np.linalg.eigvalsh(scatter)
        ratios.append(values.sum() ** 2 / (values**2).sum())
        shares.append(values[-1] / values.sum())
    return float(np.mean(ratios)), float(np.mean(shares))
