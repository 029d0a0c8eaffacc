"""Cosines of random, nearest and relevant pairs: the floor, the histogram and how far apart the kinds are."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from anisoscope.embedding_quality.means import FEWEST, MeanError
from anisoscope.stats.inference import jackknife

BINS = 40  # of the histogram, from −1 to 1
_PAIRS = 20_000
_BLOCKS = 32


def random_pairs(m: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return 20,000 random pairs of different numbers below m, or all ordered pairs' worth of draws if m is small."""
    draw = torch.Generator().manual_seed(seed)
    first = torch.randint(m, (_PAIRS,), generator=draw)
    step = torch.randint(1, m, (_PAIRS,), generator=draw)
    return first, (first + step) % m


def cosines(a: Tensor, b: Tensor) -> Tensor:
    """Return the cosine of each pair of rows, (p,) float64; 0 if one of them is zero.

    >>> cosines(torch.tensor([[1.0, 0.0]]), torch.tensor([[2.0, 0.0]])).tolist()
    [1.0]
    """
    a, b = a.double(), b.double()
    length = torch.linalg.vector_norm(a, dim=1) * torch.linalg.vector_norm(b, dim=1)
    return torch.where(length > 0, (a * b).sum(1) / length.clamp(min=1e-300), 0.0).clamp(-1.0, 1.0)


def histogram(values: Tensor) -> list[float]:
    """Return the share of cosines in each of 40 bins from −1 to 1."""
    counts = torch.histc(values.double(), bins=BINS, min=-1.0, max=1.0)
    return [round(float(share), 6) for share in counts / max(len(values), 1)]


def separation_of(pairs: Tensor, random: Tensor) -> tuple[MeanError, list[float]]:
    """Return how many standard deviations the mean cosine of pairs is above that of random pairs, and its replicates.

    (μ − μ₀)/√((σ² + σ₀²)/2). The error leaves out blocks of both in turn.
    """
    value = _separation(pairs, random)
    blocks = min(_BLOCKS, len(pairs))
    if blocks < FEWEST:
        return MeanError(value, None, blocks), []
    which = [torch.arange(len(x)) * blocks // len(x) for x in (pairs, random)]
    without = [_separation(pairs[which[0] != b], random[which[1] != b]) for b in range(blocks)]
    return MeanError(value, jackknife(value, without), blocks), without


def _separation(pairs: Tensor, random: Tensor) -> float:
    spread = math.sqrt((float(pairs.var(correction=0)) + float(random.var(correction=0))) / 2)
    return (float(pairs.mean()) - float(random.mean())) / spread if spread > 0 else 0.0
