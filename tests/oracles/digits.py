"""The same numbers with 50 digits (mpmath), for small clouds, to check the float64 oracle."""

from __future__ import annotations

import mpmath  # type: ignore[import-untyped]
import numpy as np

from tests.oracles.cloud import ALONE, Array, Numbers


def numbers(x: Array, digits: int = 50) -> dict[str, Numbers]:
    """Cosine, drift and spectral numbers of rows (n, d), d small."""
    with mpmath.workdps(digits):
        n, d = x.shape
        rows = [[mpmath.mpf(float(v)) for v in row] for row in x]
        mean = [mpmath.fsum(row[j] for row in rows) / n for j in range(d)]
        norm = [mpmath.sqrt(mpmath.fsum(v * v for v in row)) for row in rows]
        unit = [mpmath.fsum(row[j] / size for row, size in zip(rows, norm, strict=True)) for j in range(d)]
        cosine = (mpmath.fsum(v * v for v in unit) - n) / (n * (n - 1))
        centred = [[row[j] - mean[j] for j in range(d)] for row in rows]
        values, raw = (_eigenvalues(each) for each in (centred, rows))
        total, length = mpmath.fsum(values), mpmath.sqrt(mpmath.fsum(v * v for v in mean))
        ratio = total**2 / mpmath.fsum(v * v for v in values)
        out = {
            "mean_cosine": {ALONE: cosine},
            "drift_norm": {ALONE: length},
            "relative_drift": {ALONE: length / mpmath.sqrt(mpmath.fsum(v * v for v in norm) / n)},
            "spectral_anisotropy": {ALONE: max(values) / total},
            "spectral_anisotropy_uncentred": {ALONE: max(raw) / mpmath.fsum(raw)},
            "participation_ratio": {ALONE: ratio},
            "isoscore": {ALONE: (ratio - 1) / (d - 1)},
            "stable_rank": {ALONE: mpmath.fsum(raw) / max(raw)},
            "rankme": {ALONE: _entropy_rank([mpmath.sqrt(v) for v in raw])},
            "effective_rank": {
                (None, ("of", "singular values")): _entropy_rank([mpmath.sqrt(v) for v in values]),
                (None, ("of", "eigenvalues")): _entropy_rank(values),
            },
        }
        return {name: {key: float(value) for key, value in each.items()} for name, each in out.items()}


def _eigenvalues(rows: list[list[mpmath.mpf]]) -> list[mpmath.mpf]:
    x = mpmath.matrix(rows)
    return [mpmath.re(v) for v in mpmath.eigsy(x.T * x, eigvals_only=True)]


def _entropy_rank(weights: list[mpmath.mpf]) -> mpmath.mpf:
    total = mpmath.fsum(weights)
    return mpmath.exp(-mpmath.fsum(w / total * mpmath.log(w / total) for w in weights))


def apart(x: Array, found: dict[str, Numbers]) -> float:
    """Return the largest relative error of numbers, compared with 50 digits (absolute error for the cosine)."""
    gaps = [
        abs(found[name][key] - true) / (1.0 if name == "mean_cosine" else abs(true))
        for name, answers in numbers(x).items()
        for key, true in answers.items()
    ]
    return float(np.max(gaps))
