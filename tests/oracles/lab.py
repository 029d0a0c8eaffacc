"""Slow twins of the lab: attention weights query by query, losses token by token."""

from __future__ import annotations

import math
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
