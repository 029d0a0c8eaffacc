"""Slow twins of the lab: attention weights query by query, losses token by token."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def attention_weights(kind: str, q: Array, k: Array, visible: Array, temperature: float = 1.0) -> Array:
    """Weights (b, h, T, T) of each query over the keys it sees, one row at a time; q and k as they enter the logits."""
    b, h, T, d = q.shape
    scale = 1 / temperature if kind == "cosine" else 1 / (temperature * math.sqrt(d))
    weights = np.zeros((b, h, T, T))
    for i, j, t in np.ndindex(b, h, T):
        keys = np.flatnonzero(visible[i, min(j, visible.shape[1] - 1), t])
        logits = np.array([float(q[i, j, t].astype(float) @ k[i, j, s].astype(float)) * scale for s in keys])
        if kind == "uniform":
            row = np.full(len(keys), 1 / len(keys))
        elif kind == "sigmoid":
            row = 1 / (1 + T * np.exp(-logits))
        else:
            row = np.exp(logits) / (np.exp(logits).sum() + (kind == "off-by-one"))
        weights[i, j, t, keys] = row
    return weights


def unigram_loss(train: list[int], judged: list[int], size: int) -> float:
    """Mean surprise of the judged tokens, one by one, with one extra count per token."""
    return sum(-math.log((train.count(b) + 1) / (len(train) + size)) for b in judged) / len(judged)


def bigram_loss(train: list[int], judged: list[int], size: int) -> float:
    """Mean surprise of the judged pairs, one by one: (n_ab + t_a·p(b)) / (n_a + t_a)."""
    pairs = list(pairwise(train))
    total = 0.0
    for a, b in pairwise(judged):
        followers = [y for x, y in pairs if x == a]
        weight = max(1, len(set(followers)))
        p = (train.count(b) + 1) / (len(train) + size)
        total -= math.log((followers.count(b) + weight * p) / (len(followers) + weight))
    return total / (len(judged) - 1)


def zipf_entropy(vocabulary: int, exponent: float, copy: float) -> float:
    """Entropy of the next token given the one that may be copied, pair by pair."""
    weights = [k**-exponent for k in range(1, vocabulary + 1)]
    p = [w / sum(weights) for w in weights]
    total = 0.0
    for a in range(vocabulary):
        for b in range(vocabulary):
            q = copy * (a == b) + (1 - copy) * p[b]
            total -= p[a] * q * math.log(q)
    return total


def isoscore_star(x: Array, shrinkage: float) -> float:
    """IsoScore* from the eigenvalues of the shrunk covariance."""
    d = x.shape[1]
    c = np.cov(x.astype(float).T, bias=True)
    values = np.linalg.eigvalsh((1 - shrinkage) * c + shrinkage * np.eye(d) * np.trace(c) / d)
    return float((values.sum() ** 2 / (values**2).sum() - 1) / (d - 1))
