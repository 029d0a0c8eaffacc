"""Attention rows the slow way: one float64 softmax over every row, in plain numpy."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def logits_of(
    q: Array,
    k: Array,
    scaling: float,
    *,
    softcap: float | None = None,
    bias: Array | None = None,
) -> Array:
    """(b, h, t, s) logits of q (b, h, t, d) and k (b, g, s, d)."""
    k = np.repeat(k, q.shape[1] // k.shape[1], axis=1)
    logits: Array = scaling * np.einsum("bhtd,bhsd->bhts", q, k)
    if softcap is not None:
        logits = softcap * np.tanh(logits / softcap)
    return logits if bias is None else logits + bias


def sums(logits: Array, visible: NDArray[np.bool_], counts: NDArray[np.bool_]) -> dict[str, Array]:
    """Per head: rows, and the sums of entropy / ln(length), sink mass, largest weight and logit std."""
    b, h, t, _ = logits.shape
    visible = np.broadcast_to(visible, logits.shape)
    out = {name: np.zeros(h) for name in ("rows", "entropy", "sink", "largest", "logit_std")}
    for n in range(b):
        first = np.flatnonzero((visible[n] & counts[n][None, :, None]).any((0, 1)))[0]
        for head in range(h):
            for i in range(t):
                keys = np.flatnonzero(visible[n, head, i])
                if not counts[n, i] or len(keys) < 2:
                    continue
                row = logits[n, head, i, keys]
                p = np.exp(row - row.max())
                p /= p.sum()
                out["rows"][head] += 1
                out["entropy"][head] -= (p[p > 0] * np.log(p[p > 0])).sum() / np.log(len(keys))
                out["sink"][head] += p[keys == first].sum()
                out["largest"][head] += p.max()
                out["logit_std"][head] += row.std()
    return out
