"""Bias at small n: the average of each score on a known population, with its null and the population's value."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product

import numpy as np

from anisoscope import measure_rows
from benchmarks.accuracy.coverage import Array, entropy_rank, named

DIM = 64
SIZES = (64, 256, 1024, 4096, 16384)
POPULATIONS = ("isotropic", "power law")
_DRAWS = 8192  # rows over all draws of one size; at least two draws
SCORES = (
    *("mean_cosine", "relative_drift", "spectral_anisotropy", "singular_anisotropy", "participation_ratio"),
    *("participation_ratio_unbiased", "isoscore", "isoscore_star", "effective_rank", "stable_rank", "power_law_alpha"),
    *("two_nn", "two_nn_ml", "mle_dimension"),
)


@dataclass(frozen=True)
class Read:
    """The average of a score over draws of n independent rows, and of the recorded null."""

    population: str
    n: int
    number: str
    value: float
    null: float | None
    truth: float


def cases(quick: bool) -> list[tuple[str, int]]:
    return list(product(POPULATIONS, SIZES[:2] if quick else SIZES))


def read(population: str, n: int, quick: bool) -> list[Read]:
    """Return all scores of one population at one size."""
    draws = 2 if quick else max(2, min(16, _DRAWS // n))
    scale = np.sqrt(variances(population))
    values: dict[str, list[tuple[float, float | None]]] = {}
    for draw in range(draws):
        x = np.random.default_rng((n, draw)).standard_normal((n, DIM)) * scale
        for record in measure_rows(x, list(SCORES), errors=False):
            if record.value is not None:
                name = " ".join(named(record.metric, record.index, record.variant))
                values.setdefault(name.partition(" ranks=")[0], []).append((record.value, record.null))
    known = truth(population)
    out = []
    for name, pairs in values.items():
        nulls = [null for _, null in pairs if null is not None]
        null = statistics.fmean(nulls) if nulls else None
        out.append(Read(population, n, name, statistics.fmean(v for v, _ in pairs), null, known[name]))
    return out


def variances(population: str) -> Array:
    """Return the eigenvalues of the population's covariance, (d,)."""
    return np.ones(DIM) if population == "isotropic" else 1 / np.arange(1, DIM + 1)


def truth(population: str) -> Mapping[str, float]:
    """Return the scores of the population itself, whose rows fill all dimensions."""
    values = variances(population)
    total = values.sum()
    ratio = float(total**2 / (values**2).sum())
    shrunk = 0.8 * values + 0.2 * total / DIM
    return {
        "mean_cosine": 0.0,
        "relative_drift": 0.0,
        "spectral_anisotropy": float(values[0] / total),
        "singular_anisotropy": float(1 / np.sqrt(values).sum()),
        "participation_ratio": ratio,
        "participation_ratio_unbiased": ratio,
        "isoscore": (ratio - 1) / (DIM - 1),
        "isoscore_star zeta=0.2": float((shrunk.sum() ** 2 / (shrunk**2).sum() - 1) / (DIM - 1)),
        "effective_rank of=singular values": entropy_rank(np.sqrt(values)),
        "effective_rank of=eigenvalues": entropy_rank(values),
        "stable_rank": float(total / values[0]),
        "power_law_alpha": 0.0 if population == "isotropic" else 1.0,
        "two_nn neighbours=all": float(DIM),
        "two_nn_ml neighbours=all": float(DIM),
        "mle_dimension k=20": float(DIM),
    }
