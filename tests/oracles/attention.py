"""Attention rows the slow way: one float64 softmax over every row, in plain numpy."""

from __future__ import annotations

from typing import Any

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


def head_numbers(
    q: Array, k: Array, scaling: float, *, causal: bool, v: Array
) -> dict[str, dict[tuple[Any, ...], float]]:
    """Every metric of heads, by index (and variant), from whole rows of attention and from all tokens."""
    heads, length, d = q.shape[1:]
    visible = np.tril(np.ones((length, length), bool)) if causal else np.ones((length, length), bool)
    logits, everyone = logits_of(q, k, scaling), np.ones((len(q), length), bool)
    whole = sums(logits, visible, everyone)
    asked = np.unique(np.linspace(1, max(1, length - 1), min(16, length)).astype(int))  # positions that are recomputed
    spread = sums(logits[:, :, asked], visible[asked], everyone[:, asked])
    found: dict[str, dict[tuple[Any, ...], float]] = {}

    def put(name: str, key: tuple[Any, ...], value: Any) -> None:
        found.setdefault(name, {})[key] = float(value)

    for head in range(heads):
        put("attention_entropy", (head,), whole["entropy"][head] / whole["rows"][head])
        put("sink_mass", (head,), whole["sink"][head] / whole["rows"][head])
        put("attention_max", (head,), spread["largest"][head] / spread["rows"][head])
        put("logit_std", (head,), spread["logit_std"][head] / spread["rows"][head])
        put("logit_max", (head, ("over", "mean")), whole["logit_max"][head] / whole["logit_rows"][head])
        put("logit_max", (head, ("over", "max")), whole["logit_peak"][head])
        key_head = head // (heads // k.shape[1])
        own_q, own_k = q[:, head].reshape(-1, d), k[:, key_head].reshape(-1, d)
        mean_q, mean_k = own_q.mean(0), own_k.mean(0)
        put("qk_cosine", (head,), mean_q @ mean_k / np.linalg.norm(mean_q) / np.linalg.norm(mean_k))
        within = (k[:, key_head] - k[:, key_head].mean(1, keepdims=True)).reshape(-1, d)
        moves = ((own_q - mean_q) @ within.T) ** 2
        drift = ((within @ mean_q) ** 2).sum()
        put("logit_budget", (head,), drift / (drift + moves.sum() / len(own_q)))
    for name, x in (("q_drift", q), ("k_drift", k)):
        for head in range(x.shape[1]):
            rows = x[:, head].reshape(-1, d)
            mean = np.linalg.norm(rows.mean(0))
            put(name, (head, ("in", "units")), mean)
            put(name, (head, ("in", "rms")), mean / np.sqrt((rows**2).sum(1).mean()))
    for name, x in (("q_norm", q), ("k_norm", k), ("v_norm", v)):
        for head in range(x.shape[1]):
            lengths = np.linalg.norm(x[:, head], axis=-1)
            put(name, (head, ("over", "mean")), lengths.mean())
            put(name, (head, ("over", "max")), lengths.max())
    put("sink_rate", (None,), (whole["sink"] / whole["rows"] > 0.3).mean())
    return found


def sums(logits: Array, visible: NDArray[np.bool_], counts: NDArray[np.bool_]) -> dict[str, Array]:
    """Per head: rows, and the sums of entropy / ln(length), sink mass, largest weight, logit std and largest logit."""
    b, h, t, _ = logits.shape
    visible = np.broadcast_to(visible, logits.shape)
    names = ("rows", "entropy", "sink", "largest", "logit_std", "logit_rows", "logit_max", "uniform")
    out = {name: np.zeros(h) for name in names} | {"logit_peak": np.full(h, -np.inf)}
    for n in range(b):
        first = np.flatnonzero((visible[n] & counts[n][None, :, None]).any((0, 1)))[0]
        for head in range(h):
            for i in range(t):
                keys = np.flatnonzero(visible[n, head, i])
                if not counts[n, i] or not len(keys):
                    continue
                row = logits[n, head, i, keys]
                out["logit_rows"][head] += 1
                out["logit_max"][head] += row.max()
                out["logit_peak"][head] = max(out["logit_peak"][head], row.max())
                if len(keys) < 2:
                    continue
                out["uniform"][head] += 1 / len(keys)
                p = np.exp(row - row.max())
                p /= p.sum()
                out["rows"][head] += 1
                out["entropy"][head] -= (p[p > 0] * np.log(p[p > 0])).sum() / np.log(len(keys))
                out["sink"][head] += p[keys == first].sum()
                out["largest"][head] += p.max()
                out["logit_std"][head] += row.std()
    return out
