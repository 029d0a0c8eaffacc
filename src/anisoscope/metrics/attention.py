"""Attention per head: its sharpness, its weight on the first token, and the drift of queries and keys."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from anisoscope.metrics.metric import Undefined, Value, metric
from anisoscope.stats.head_norms import HeadNorms
from anisoscope.stats.head_scores import Attention
from anisoscope.stats.head_sums import HeadSums

_INF = math.inf
_SINK = 0.3  # average weight on the first token from which a head counts as a sink


@metric(
    Attention, low=0, high=1, keeps=set(), paper="godey2024", requires={"heads"},
    notable="low", row_effect="none",
)  # fmt: skip
def attention_entropy(attention: Attention) -> Iterator[Value]:
    """Average entropy of a head's attention rows, relative to uniform attention; index is the head.

    H/ln(number of visible keys): 1 for uniform attention, 0 if one key gets all the weight. Rows with one visible key
    are left out.
    """
    yield from _means(attention.entropy, attention.rows)


@metric(
    Attention, low=0, high=1, keeps=set(), paper="godey2024", requires={"heads"},
    notable="high", row_effect="none",
)  # fmt: skip
def attention_max(attention: Attention) -> Iterator[Value]:
    """Average largest weight of a head's attention rows; index is the head."""
    yield from _means(attention.largest, attention.spread_rows)


@metric(
    Attention, low=0, high=1, keeps=set(), paper="xiao2024", requires={"heads"},
    notable="high", row_effect="none",
)  # fmt: skip
def sink_mass(attention: Attention) -> Iterator[Value]:
    """Average weight that a head gives to the first token of the window; index is the head."""
    yield from _means(attention.sink, attention.rows)


@metric(
    Attention, low=0, high=_INF, keeps=set(), paper="godey2024", requires={"heads"},
    notable="high", row_effect="none",
)  # fmt: skip
def logit_std(attention: Attention) -> Iterator[Value]:
    """Average standard deviation of a head's logits over the visible keys of a row; index is the head."""
    yield from _means(attention.logit_std, attention.spread_rows)


@metric(
    Attention, low=-_INF, high=_INF, keeps=set(), paper="dehghani2023", requires={"heads"},
    notable="high", headline={"over": "mean"},
)  # fmt: skip
def logit_max(attention: Attention) -> Iterator[Value]:
    """Largest attention logit of a head; index is the head.

    `over=mean` is the average over rows of the row's largest logit, `over=max` the largest of all. Logits are those
    that enter the softmax: scaled, after a soft cap, with position biases, over visible keys only, and of every row.
    Logits beyond about 50 to 100 make attention one-hot and precede divergence. A maximum has no error bar.
    """
    for head, (total, n, peak) in enumerate(
        zip(attention.logit_max.tolist(), attention.logit_rows.tolist(), attention.logit_peak.tolist(), strict=True)
    ):
        if not n:
            raise Undefined("no attention row has a visible key", "check the attention mask")
        yield Value(total / n, index=head, variant={"over": "mean"}, n=int(n))
        yield Value(peak, index=head, variant={"over": "max"}, n=int(n), bars=False)


@metric(
    Attention, low=0, high=1, keeps=set(), paper="gu2025", requires={"heads"}, bars=False,
    notable="high",
)  # fmt: skip
def sink_rate(attention: Attention) -> Value:
    """Share of a layer's heads whose average weight on the first token of the window exceeds 0.3.

    The null is that of uniform attention: 0 unless windows are very short. A step function of `sink_mass`, so it has no
    error bar: those of `sink_mass` tell how certain each head is.
    """
    if not bool((attention.rows > 0).any()):
        raise Undefined("no attention row has two visible keys", "give windows of at least two tokens")
    rows = attention.rows.clamp(min=1)
    rate, uniform = (float((mass / rows > _SINK).double().mean()) for mass in (attention.sink, attention.uniform))
    return Value(rate, null=uniform)


@metric(
    HeadNorms, low=0, high=_INF, keeps=set(), paper="dehghani2023", requires={"heads"},
    notable="high", headline={"over": "mean"},
)  # fmt: skip
def q_norm(heads: HeadNorms) -> Iterator[Value]:
    """Length of a head's queries; index is the head.

    `over=mean` is the average over tokens, `over=max` the largest. Queries are those that attention uses, after norms
    and rotary embedding, which does not change lengths.
    """
    yield from _lengths(heads.q, heads.q_max, heads.tokens)


@metric(
    HeadNorms, low=0, high=_INF, keeps=set(), paper="dehghani2023", requires={"heads"},
    notable="high", headline={"over": "mean"},
)  # fmt: skip
def k_norm(heads: HeadNorms) -> Iterator[Value]:
    """Length of a head's keys; index is the key head.

    `over=mean` is the average over tokens, `over=max` the largest.
    """
    yield from _lengths(heads.k, heads.k_max, heads.tokens)


@metric(
    HeadNorms, low=0, high=_INF, keeps=set(), paper="gu2025", requires={"heads"},
    headline={"over": "mean"},
)  # fmt: skip
def v_norm(heads: HeadNorms) -> Iterator[Value]:
    """Length of a head's values; index is the key head.

    `over=mean` is the average over tokens, `over=max` the largest. Attention sinks have small values.
    """
    if not len(heads.v):
        raise Undefined("this attention does not show its values", "load the model with attn_implementation='sdpa'")
    yield from _lengths(heads.v, heads.v_max, heads.tokens)


@metric(
    HeadSums, low=0, high=_INF, keeps=set(), paper="godey2024", requires={"heads"},
    notable="high", headline={"in": "rms"},
)  # fmt: skip
def q_drift(heads: HeadSums) -> Iterator[Value]:
    """Length of a head's mean query; index is the head.

    `in=units` is the length itself, `in=rms` is divided by the root mean square length of the queries.
    """
    yield from _drift(heads.q, heads.qq.diagonal(dim1=1, dim2=2).sum(1), heads.tokens)


@metric(
    HeadSums, low=0, high=_INF, keeps=set(), paper="godey2024", requires={"heads"},
    notable="high", headline={"in": "rms"},
)  # fmt: skip
def k_drift(heads: HeadSums) -> Iterator[Value]:
    """Length of a head's mean key; index is the key head.

    `in=units` is the length itself, `in=rms` is divided by the root mean square length of the keys.
    """
    yield from _drift(heads.k, heads.k_square, heads.tokens)


@metric(HeadSums, low=-1, high=1, keeps=set(), paper="godey2024", requires={"heads"})
def qk_cosine(heads: HeadSums) -> Iterator[Value]:
    """Cosine between a head's mean query and its mean key; index is the head."""
    for head, (q, k) in enumerate(zip(heads.q, _per_query_head(heads.k, heads), strict=True)):
        length = q.norm() * k.norm()
        yield Value(float(q @ k / length) if length > 0 else None, index=head, n=int(heads.tokens), note=_zero(length))


@metric(
    HeadSums, low=0, high=1, keeps=set(), paper="anisoscope", requires={"heads"},
    notable="high",
)  # fmt: skip
def logit_budget(heads: HeadSums) -> Iterator[Value]:
    """Share of the variance of a head's logits over keys that is due to the mean query; index is the head.

    q̄ᵀΣ_k q̄/(q̄ᵀΣ_k q̄ + tr Σ_q Σ_k) with Σ_k the covariance of keys within windows. The mean key cancels in the softmax,
    so this is the only part of the drift that can sharpen attention.
    """
    n = heads.tokens
    for head, (q, qq, k) in enumerate(zip(heads.q, heads.qq, _per_query_head(heads.k_within, heads), strict=True)):
        mean = q / n
        spread = qq / n - torch.outer(mean, mean)
        drift = float(mean @ k @ mean)
        total = drift + float((spread * k).sum())
        yield Value(drift / total if total > 0 else None, index=head, n=int(n), note=_zero(torch.tensor(total)))


def _means(total: Tensor, rows: Tensor) -> Iterator[Value]:
    if not bool((rows > 0).any()):
        raise Undefined("no attention row has two visible keys", "give windows of at least two tokens")
    for head, (value, n) in enumerate(zip(total.tolist(), rows.tolist(), strict=True)):
        yield Value(value / n, index=head, n=int(n))


def _lengths(total: Tensor, largest: Tensor, n: Tensor) -> Iterator[Value]:
    if not int(n):
        raise Undefined("no token counts", "check the attention mask")
    for head, (mean, most) in enumerate(zip((total / n).tolist(), largest.tolist(), strict=True)):
        yield Value(mean, index=head, variant={"over": "mean"}, n=int(n))
        yield Value(most, index=head, variant={"over": "max"}, n=int(n), bars=False)


def _drift(total: Tensor, square: Tensor, n: Tensor) -> Iterator[Value]:
    for head, (mean, rms) in enumerate(zip((total / n).norm(dim=1), (square / n).sqrt(), strict=True)):
        yield Value(float(mean), index=head, variant={"in": "units"}, n=int(n))
        relative = float(mean / rms) if rms > 0 else None
        yield Value(relative, index=head, variant={"in": "rms"}, n=int(n), note=_zero(rms))


def _per_query_head(k: Tensor, heads: HeadSums) -> Tensor:
    """Repeat key heads for the query heads that share them."""
    return k.repeat_interleave(len(heads.q) // len(k), 0)


def _zero(length: Tensor) -> str | None:
    return None if length > 0 else "queries or keys are all zero"
