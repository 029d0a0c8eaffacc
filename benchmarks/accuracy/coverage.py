"""Coverage of the error bars: how often a 95 % interval contains the true value, over data sets of dependent tokens.

Tokens of a document share a mean and are autocorrelated, so that a document of 32 tokens is worth a few independent
ones. The interval is that of the record: value ± t·error with blocks − 1 degrees of freedom.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from anisoscope import measure_rows
from anisoscope.report.interval import t_factor

Array = NDArray[np.float64]
DOCUMENTS, LENGTH, DIM = 64, 32, 32
AR, SHARED = (
    0.9,
    0.2,
)  # correlation of successive tokens, and the share of variance that a document's tokens have in common
DATA_SETS = 300
_BUILT_IN = ("mean_cosine", "mean_cosine_across_documents", "relative_drift", "drift_norm")
SPECTRAL = ("spectral_anisotropy", "participation_ratio", "participation_ratio_unbiased", "isoscore", "effective_rank")
NEIGHBOURS = ("two_nn", "two_nn_ml", "gride", "mle_dimension")


@dataclass(frozen=True)
class World:
    """A population of documents: how to draw one data set, what is measured, and the true values."""

    name: str
    draw: Callable[[np.random.Generator], Array]  # (DOCUMENTS·LENGTH, d)
    metrics: tuple[str, ...]
    truth: Callable[[], Mapping[str, float]]


@dataclass(frozen=True)
class Covered:
    """One quantity over all data sets of a world."""

    world: str
    number: str  # metric, with index and variant
    truth: float
    mean: float  # over data sets
    spread: float  # standard deviation over data sets
    error: float  # the recorded standard error, root mean square over data sets
    coverage: float  # share of intervals that contain the true value
    coverage_of_mean: float  # share that contains the mean over data sets, so without the bias
    sets: int


def correlated(draw: np.random.Generator, d: int) -> Array:
    """Return standard normal coordinates of tokens, dependent within documents, (tokens, d)."""
    noise = draw.standard_normal((LENGTH, DOCUMENTS, d))
    for t in range(1, LENGTH):
        noise[t] = AR * noise[t - 1] + math.sqrt(1 - AR**2) * noise[t]
    shared = draw.standard_normal((1, DOCUMENTS, d))
    y = math.sqrt(1 - SHARED) * noise + math.sqrt(SHARED) * shared
    return np.ascontiguousarray(y.transpose(1, 0, 2)).reshape(-1, d)


def variances(kind: str) -> Array:
    """Return the eigenvalues of the population's covariance."""
    if kind == "isotropic":
        return np.ones(DIM)
    falling = 1 / np.arange(1, DIM + 1) ** 0.5
    falling[0] = 0.5 * falling[1:].sum()  # a third of the variance, far ahead of the second
    return falling


def _mean() -> Array:
    direction = np.random.default_rng(5).standard_normal(DIM)
    return direction / np.linalg.norm(direction)


def _vectors(kind: str, drift: float) -> World:
    values = variances(kind)
    mean = drift * math.sqrt(values.sum()) * _mean()

    def draw(random: np.random.Generator) -> Array:
        return correlated(random, DIM) * np.sqrt(values) + mean

    def truth() -> Mapping[str, float]:
        total = values.sum()
        ratio = total**2 / (values**2).sum()
        lengths = math.sqrt(drift**2 / (1 + drift**2))
        cosine = _population_cosine(values, mean)
        return {
            "mean_cosine": cosine,
            "mean_cosine_across_documents": cosine,
            "drift_norm": drift * math.sqrt(total),
            "relative_drift": lengths,
            "spectral_anisotropy": float(values.max() / total),
            "participation_ratio": float(ratio),
            "participation_ratio_unbiased": float(ratio),
            "isoscore": float((ratio - 1) / (DIM - 1)),
            "effective_rank of=singular values": entropy_rank(np.sqrt(values)),
            "effective_rank of=eigenvalues": entropy_rank(values),
        }

    return World(f"{kind}, mean {drift:g} × spread", draw, (*_BUILT_IN, *SPECTRAL), truth)


def entropy_rank(weights: Array) -> float:
    p = weights / weights.sum()
    return float(np.exp(-(p * np.log(p)).sum()))


def _population_cosine(values: Array, mean: Array) -> float:
    """Return ‖E u‖², the mean cosine of two independent tokens, from four million of them (± 1e-5)."""
    random = np.random.default_rng(7)
    total = np.zeros(DIM)
    for _ in range(64):
        x = random.standard_normal((1 << 15, DIM)) * np.sqrt(values)
        for sign in (1, -1):  # antithetic pairs: odd terms of the noise cancel
            y = mean + sign * x
            total += (y / np.linalg.norm(y, axis=1, keepdims=True)).sum(0)
    n = 64 * 2 * (1 << 15)
    return float(total @ total / n**2)


def _torus(step: float | None) -> World:
    """A flat torus of dimension 2 in 4 of 8 dimensions, evenly filled by documents, each in its own region.

    With `step` a document is a random walk; without it, its tokens are scattered about the document's centre.
    """
    frame = np.linalg.qr(np.random.default_rng(3).standard_normal((8, 8)))[0][:4]

    def draw(random: np.random.Generator) -> Array:
        centre = random.random((DOCUMENTS, 1, 2))
        noise = random.standard_normal((DOCUMENTS, LENGTH, 2))
        position = centre + (0.15 * noise if step is None else step * noise.cumsum(1))
        angle = 2 * math.pi * position.reshape(-1, 2)
        return np.concatenate((np.cos(angle), np.sin(angle)), 1) @ frame

    how = "topics that overlap" if step is None else "walks"
    return World(f"torus, {how}", draw, NEIGHBOURS, lambda: _dimensions(2))


def _sphere() -> World:
    """The sphere of dimension 5, in 12 dimensions; tokens scatter about a random point per document."""
    frame = np.linalg.qr(np.random.default_rng(4).standard_normal((12, 12)))[0][:6]

    def draw(random: np.random.Generator) -> Array:
        centre = random.standard_normal((DOCUMENTS, 1, 6))
        centre /= np.linalg.norm(centre, axis=2, keepdims=True)
        x = (centre + 0.3 * random.standard_normal((DOCUMENTS, LENGTH, 6))).reshape(-1, 6)
        return (x / np.linalg.norm(x, axis=1, keepdims=True)) @ frame

    return World("sphere of dimension 5, topics", draw, NEIGHBOURS, lambda: _dimensions(5))


def _flat() -> World:
    """Gaussian tokens of 3 dimensions in 16, dense at the centre; each document is an autoregression."""
    frame = np.linalg.qr(np.random.default_rng(6).standard_normal((16, 16)))[0][:3]
    return World(
        "3 dimensions, autoregression", lambda random: correlated(random, 3) @ frame, NEIGHBOURS, lambda: _dimensions(3)
    )


def _dimensions(true: float) -> Mapping[str, float]:
    """Return the true value for every estimator."""
    return {
        **{f"{name} neighbours={which}": true for name in NEIGHBOURS[:2] for which in ("all", "other documents")},
        **{f"gride {k}": true for k in (1, 2, 4, 8, 16)},
        "mle_dimension k=20": true,
    }


def worlds() -> list[World]:
    """List the worlds. The last two were added after the error bars were final: nothing was tuned on them."""
    return [_vectors("separated", 1.0), _vectors("isotropic", 0.0), _torus(None), _torus(0.02), _sphere(), _flat()]


def cover(world: World, sets: int, seed: int = 0) -> list[Covered]:
    """Measure `sets` data sets of a world and count the intervals that contain the true value."""
    document = torch.arange(DOCUMENTS).repeat_interleave(LENGTH)
    found: dict[str, list[tuple[float, float, float]]] = {}
    for which in range(sets):
        x = world.draw(np.random.default_rng((seed, which)))
        for record in measure_rows(x, list(world.metrics), documents=document, sample=len(x)):
            if record.value is None or record.error is None:
                continue
            name = " ".join(named(record.metric, record.index, record.variant))
            found.setdefault(name, []).append((record.value, record.error, t_factor(record.error_kind)))
    truth = world.truth()
    return [_covered(world.name, name, truth[name], found[name]) for name in truth if name in found]


def named(metric: str, index: int | None, variant: Mapping[str, object]) -> Iterator[str]:
    yield metric
    if index is not None:
        yield str(index)
    yield from (f"{key}={value}" for key, value in variant.items())


def _covered(world: str, name: str, truth: float, found: list[tuple[float, float, float]]) -> Covered:
    values = [value for value, _, _ in found]
    mean = statistics.fmean(values)

    def held(centre: float) -> float:
        return statistics.fmean(abs(value - centre) <= t * error for value, error, t in found)

    error = math.sqrt(statistics.fmean(error**2 for _, error, _ in found))
    return Covered(world, name, truth, mean, statistics.stdev(values), error, held(truth), held(mean), len(found))
