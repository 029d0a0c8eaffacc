"""Attention per head: entropy, largest weight, sink mass and size of the logits, exactly and in O(T) memory.

With V = K, one more attention call gives the mean key k̄ = Σ p k, and so the entropy of a row, H = lse − s·q·k̄, and the
weight of any key, exp(s·q·k − lse), without storing probabilities. The largest logit and weight, the spread of the
logits, additive biases and soft caps need the logits, which are computed again for one block of queries at a time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from anisoscope.stats.arithmetic import double, full_precision, plain
from anisoscope.stats.attention_kernels import mean_key_kernel

_BLOCK = 1 << 22  # logits per block: 16 MB of float32
_IN_CACHE = 1 << 17  # logits per block that stay in a core's cache: 512 kB
_HIDDEN = -1e6  # an additive mask below this hides its key; no position bias reaches it


@dataclass(frozen=True)
class Heads:
    """The inputs of one attention layer; batch b, heads h, key heads g, queries t, keys s.

    Logits are `cap(scaling · q·k) + bias + mask`, with cap(x) = c·tanh(x/c) if there is a soft cap c. Key j is visible
    to query i if the mask allows it and, with o = s − t, j ≤ i + o if `causal`, and |i + o − j| < w if `window` = w. A
    boolean mask is True for visible keys. A float mask is added and very negative for hidden keys.
    """

    q: Tensor  # (b, h, t, d), after rotary embedding
    k: Tensor  # (b, g, s, d), h a multiple of g
    scaling: float
    mask: Tensor | None = None  # broadcasts to (b, h, t, s)
    causal: bool = False
    window: int | None = None
    softcap: float | None = None
    bias: Tensor | None = None  # broadcasts to (b, h, t, s)
    v: Tensor | None = None  # (b, g, s, e), if the model shows them


@dataclass(frozen=True)
class Scores:
    """The logits, if a model does not expose q and k; hidden keys are -inf or very negative."""

    logits: Tensor  # (b, h, t, s)


@dataclass(frozen=True)
class AttentionRows:
    """Values of every query row, which can be summed over several sets of rows."""

    length: Tensor  # (b, h or 1, t): visible keys
    entropy: Tensor  # (b, h, t): divided by ln(length)
    sink: Tensor  # (b, h, t): weight of the first visible key of the sequence
    logit_max: Tensor  # (b, h, t): largest logit of the visible keys, as it enters the softmax
    at: Tensor  # (r,): query positions of the next two fields
    largest: Tensor  # (b, h, r)
    logit_std: Tensor  # (b, h, r): over the visible keys, population form


@dataclass(frozen=True)
class Attention:
    """Sums per head over query rows with at least two visible keys, all (heads,) float64.

    `rows` counts the rows in the sums of entropy and sink mass, `spread_rows` those of largest weight and logit std
    (fewer if only some positions were computed), `logit_rows` those of the largest logit (one visible key is enough).
    `*_square` are sums of squares, `logit_peak` is a maximum, which `without` keeps, `uniform` is Σ 1/length.

    >>> q, k = torch.zeros(1, 1, 3, 2), torch.zeros(1, 1, 3, 2)
    >>> a = Attention.of(Heads(q, k, 1.0, causal=True), torch.ones(1, 3, dtype=torch.bool))
    >>> int(a.rows), round(float(a.entropy), 4), round(float(a.sink), 4)
    (2, 2.0, 0.8333)
    """

    rows: Tensor
    entropy: Tensor
    entropy_square: Tensor
    sink: Tensor
    sink_square: Tensor
    spread_rows: Tensor
    largest: Tensor
    largest_square: Tensor
    logit_std: Tensor
    logit_std_square: Tensor
    uniform: Tensor
    logit_rows: Tensor
    logit_max: Tensor
    logit_max_square: Tensor
    logit_peak: Tensor

    @classmethod
    def of(cls, pattern: Heads | Scores, counts: Tensor, at: Tensor | None = None) -> Attention:
        """Compute the sums of one batch.

        Args:
            pattern: Queries and keys, or logits.
            counts: True for queries that count, (b, t).
            at: Positions at which largest weight and logit std are computed; None: all.
        """
        return cls.of_rows(attention_rows(pattern, counts, at), counts)

    @classmethod
    def of_rows(cls, rows: AttentionRows, counts: Tensor) -> Attention:
        """Sum over the rows that count, (b, t) bool."""
        real = counts.to(rows.length.device)[:, None, :].expand_as(rows.entropy)  # (b, h, t)
        counted, sees = real & (rows.length > 1), real & (rows.length > 0)
        spread = counted.index_select(2, rows.at)  # (b, h, r)
        return cls(
            *(double(counted.sum((0, 2))), *_sums(rows.entropy, counted), *_sums(rows.sink, counted)),
            *(double(spread.sum((0, 2))), *_sums(rows.largest, spread), *_sums(rows.logit_std, spread)),
            _sums(1 / rows.length.clamp(min=1), counted)[0],
            *(double(sees.sum((0, 2))), *_sums(rows.logit_max, sees)),
            double(torch.where(sees, rows.logit_max, -math.inf).amax((0, 2))),
        )

    @classmethod
    def of_probabilities(cls, p: Tensor, counts: Tensor) -> Attention:
        """Compute the sums from probabilities (b, h, t, s): log p and the logits of a row differ by a constant."""
        return cls.of(Scores(plain(p).log()), counts)

    def __add__(self, other: Attention) -> Attention:
        total = Attention(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))
        return replace(total, logit_peak=torch.maximum(self.logit_peak, other.logit_peak))

    def without(self, part: Attention) -> Attention:
        """Return the sums without the rows of `part`."""
        rest = Attention(*(getattr(self, f.name) - getattr(part, f.name) for f in fields(self)))
        return replace(rest, logit_peak=self.logit_peak)


def attention_rows(pattern: Heads | Scores, counts: Tensor, at: Tensor | None = None) -> AttentionRows:
    """Compute entropy and sink mass of every query row, and largest weight and logit std at positions `at` (None: all).

    `counts` (b, t) is True for real queries. The first key that is visible to any of them is the sink.
    """
    x = pattern.logits if isinstance(pattern, Scores) else pattern.q
    t = x.shape[2]
    every = torch.arange(t, device=x.device)
    at = every if at is None else at.to(x.device)
    counts = counts.to(x.device)
    with full_precision(x.device):
        seen = _seen(pattern, counts, every)
        if isinstance(pattern, Heads) and _has_plain_logits(pattern):
            return _by_mean_key(pattern, seen, every, at)
        return _by_logits(pattern, seen, every, at)


def attention_weights(pattern: Heads | Scores) -> Tensor:
    """Return the weights of all queries, (b, h, t, s); a query that sees no key has weights of 0.

    Takes b·h·t·s numbers of memory; the statistics of this module never do.
    """
    queries = pattern.logits if isinstance(pattern, Scores) else pattern.q  # (b, h, t, …)
    rows = torch.arange(queries.shape[2], device=queries.device)
    visible = _visible(pattern, rows)  # (b or 1, h or 1, t, s)
    with full_precision(queries.device):
        logits = _logits(pattern, rows).masked_fill(~visible, torch.finfo(torch.float32).min)  # (b, h, t, s)
    return logits.softmax(-1) * visible


def _sums(x: Tensor, counted: Tensor) -> tuple[Tensor, Tensor]:
    """Return Σ x and Σ x² per head over the counted rows; other rows may hold anything, even NaN."""
    x = double(torch.where(counted, x, 0.0))
    return x.sum((0, 2)), x.square().sum((0, 2))


def _has_plain_logits(heads: Heads) -> bool:
    additive = heads.mask is not None and heads.mask.dtype != torch.bool
    return not additive and heads.bias is None and heads.softcap is None


# --- which keys a query sees ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _VisibleKeys:
    """Number of visible keys per query, the keys visible to any query, the first of them, and who sees that one."""

    length: Tensor  # (b, h or 1, t)
    keys: Tensor  # (b, s)
    first: Tensor  # (b,)
    sees_first: Tensor  # (b, h or 1, t)


def _seen(pattern: Heads | Scores, counts: Tensor, every: Tensor) -> _VisibleKeys:
    b, t = counts.shape
    if isinstance(pattern, Heads) and pattern.mask is None:
        low, high = _band(pattern, every)  # (t,), (t,)
        length = (high - low + 1).clamp(min=0).expand(b, 1, t)
        keys = counts.new_ones(b, pattern.k.shape[2])
        return _VisibleKeys(length, keys, every.new_zeros(b), ((low <= 0) & (high >= 0)).expand(b, 1, t))
    lengths, keys = [], counts.new_zeros(b, 1)
    for rows in _blocks(pattern, every):
        visible = _visible(pattern, rows)  # (b or 1, h or 1, r, s)
        lengths.append(visible.sum(-1).expand(b, -1, -1))
        keys = keys | (visible & counts[:, None, rows, None]).any(2).any(1)  # (b, s)
    first = keys.int().argmax(-1)  # (b,)
    sees = torch.cat([_visible_at(pattern, rows, first) for rows in _blocks(pattern, every)], 2)
    return _VisibleKeys(torch.cat(lengths, 2), keys, first, sees)


def _band(heads: Heads, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return the first and last key that causality and window allow for these queries, (r,) each."""
    s = heads.k.shape[2]
    same = rows + (s - heads.q.shape[2])  # the key at the position of the query
    low, high = torch.zeros_like(same), torch.full_like(same, s - 1)
    if heads.window is not None:
        low, high = (same - heads.window + 1).clamp(min=0), (same + heads.window - 1).clamp(max=s - 1)
    return low, torch.minimum(high, same) if heads.causal else high


def _visible(pattern: Heads | Scores, rows: Tensor) -> Tensor:
    """Return which keys are visible to these queries, (b or 1, h or 1, r, s) bool."""
    if isinstance(pattern, Scores):
        return _allows(pattern.logits.index_select(2, rows))
    keys = torch.arange(pattern.k.shape[2], device=rows.device)
    low, high = _band(pattern, rows)
    visible = ((keys >= low[:, None]) & (keys <= high[:, None]))[None, None]  # (1, 1, r, s)
    return visible if pattern.mask is None else visible & _allows(_query_rows(pattern.mask, rows))


def _visible_at(pattern: Heads | Scores, rows: Tensor, keys: Tensor) -> Tensor:
    """Return whether one key per sequence is visible to these queries, keys (b,) -> (b, h or 1, r) bool."""
    visible = _visible(pattern, rows).expand(len(keys), -1, -1, -1)
    index = keys[:, None, None, None].expand(*visible.shape[:3], 1)
    return visible.gather(3, index)[..., 0]


def _allows(mask: Tensor) -> Tensor:
    if mask.dtype == torch.bool:
        return mask
    return mask > max(_HIDDEN, torch.finfo(mask.dtype).min / 2)


def _query_rows(mask: Tensor, rows: Tensor) -> Tensor:
    """Return these rows of a mask or bias, which may be the same for all queries."""
    return mask if mask.shape[2] == 1 else mask.index_select(2, rows)


def _blocks(pattern: Heads | Scores, rows: Tensor) -> Iterator[Tensor]:
    """Yield query positions in blocks of at most _BLOCK logits."""
    x = pattern.logits if isinstance(pattern, Scores) else pattern.q
    s = pattern.logits.shape[3] if isinstance(pattern, Scores) else pattern.k.shape[2]
    if len(rows):
        yield from torch.split(rows, max(1, _BLOCK // (x.shape[0] * x.shape[1] * s)))


# --- from logits ------------------------------------------------------------------------------------------------


def _by_logits(pattern: Heads | Scores, seen: _VisibleKeys, every: Tensor, at: Tensor) -> AttentionRows:
    """Compute all values of every query from blocks of logits."""
    parts = [_block_values(pattern, seen, rows) for rows in _blocks(pattern, every)]
    entropy, sink, top, largest, logit_std = (torch.cat(column, 2) for column in zip(*parts, strict=True))
    return AttentionRows(seen.length, entropy, sink, top, at, *(x.index_select(2, at) for x in (largest, logit_std)))


def _block_values(pattern: Heads | Scores, seen: _VisibleKeys, rows: Tensor) -> tuple[Tensor, ...]:
    """Return entropy / ln(length), sink mass, largest logit and weight and logit std of these queries, (b, h, r)."""
    logits, hidden = _logits(pattern, rows), ~_visible(pattern, rows)  # (b, h, r, s)
    length = seen.length.index_select(2, rows)
    hiding = logits.masked_fill(hidden, -math.inf)
    top = hiding.amax(-1)  # (b, h, r)
    lse = hiding.logsumexp(-1)  # (b, h, r)
    p = hiding.sub_(lse[..., None]).exp_()  # (b, h, r, s)
    logits = logits.masked_fill_(hidden, 0.0)
    entropy = ((lse - (p * logits).sum(-1)) / _log_length(length)).clamp(0, 1)
    index = seen.first[:, None, None, None].expand(*p.shape[:3], 1)
    return entropy, p.gather(3, index)[..., 0], top, p.amax(-1), _std(logits, hidden, length)


def _spread(heads: Heads, lse: Tensor, seen: _VisibleKeys, at: Tensor) -> tuple[Tensor, Tensor]:
    """Return largest weight and logit std of the queries `at`, (b, h, r) each, given the log-sum-exp."""
    parts = [(lse[:, :, :0], lse[:, :, :0])]  # there may be no positions
    for rows in _blocks(heads, at):
        logits, hidden = _logits(heads, rows), ~_visible(heads, rows)  # (b, h, r, s)
        largest = (logits.masked_fill_(hidden, -math.inf).amax(-1) - lse.index_select(2, rows)).exp().clamp(max=1)
        logits = logits.masked_fill_(hidden, 0.0)
        parts.append((largest, _std(logits, hidden, seen.length.index_select(2, rows))))
    return torch.cat([largest for largest, _ in parts], 2), torch.cat([std for _, std in parts], 2)


def _largest_logits(heads: Heads, every: Tensor) -> Tensor:
    """Return the largest visible logit of every query, (b, h, t)."""
    plain_heads = all(part is None for part in (heads.mask, heads.bias, heads.window)) and heads.scaling > 0
    if plain_heads and heads.q.device.type == "cpu" and heads.q.shape[2] <= heads.k.shape[2]:
        return _largest_in_cache(heads)
    tops = (_logits(heads, r).masked_fill_(~_visible(heads, r), -math.inf).amax(-1) for r in _blocks(heads, every))
    return torch.cat(tuple(tops), 2)


def _largest_in_cache(heads: Heads) -> Tensor:
    """Return the same without masks, from logits that stay in the cache and leave out most of the hidden keys."""
    (b, h, t, d), (g, s) = heads.q.shape, heads.k.shape[1:3]
    q, k = plain(heads.q), plain(heads.k)
    top = q.new_empty(b, h, t)
    rows = max(1, _IN_CACHE // (h * s))
    for sequence in range(b):
        for start in range(0, t, rows):
            stop = min(t, start + rows)
            last = stop + s - t if heads.causal else s
            part = q[sequence, :, start:stop].reshape(g, -1, d)  # (g, h/g · r, d)
            logits = (part @ k[sequence, :, :last].mT).view(h, stop - start, last)
            if heads.causal:
                hidden = torch.ones(stop - start, stop - start, dtype=torch.bool).triu_(1)
                logits[..., last - (stop - start) :].masked_fill_(hidden, -math.inf)
            top[sequence, :, start:stop] = logits.amax(-1)
    top.mul_(heads.scaling)
    return top if heads.softcap is None else top.div_(heads.softcap).tanh_().mul_(heads.softcap)


def _std(logits: Tensor, hidden: Tensor, length: Tensor) -> Tensor:
    """Return the population std of the visible logits of each row; hidden ones must be 0. Overwrites the logits."""
    mean = logits.sum(-1) / length  # (b, h, r)
    deviation = logits.sub_(mean[..., None]).masked_fill_(hidden, 0.0)
    size: Tensor = torch.linalg.vector_norm(deviation, dim=-1)
    return size / length.sqrt()


def _logits(pattern: Heads | Scores, rows: Tensor) -> Tensor:
    """Return the logits of these queries with biases but without masks, a new (b, h, r, s)."""
    if isinstance(pattern, Scores):
        return plain(pattern.logits.index_select(2, rows))
    b, h, _, d = pattern.q.shape
    g = pattern.k.shape[1]
    q = plain(pattern.q.index_select(2, rows)).reshape(b, g, -1, d)  # (b, g, h/g · r, d): no key is repeated
    logits = (q @ plain(pattern.k).mT).mul_(pattern.scaling).view(b, h, len(rows), -1)
    if pattern.softcap is not None:
        logits = logits.div_(pattern.softcap).tanh_().mul_(pattern.softcap)
    if pattern.bias is not None:
        logits += _query_rows(pattern.bias, rows)
    if pattern.mask is not None and pattern.mask.dtype != torch.bool:
        logits = logits + _query_rows(pattern.mask, rows)
    return logits


def _log_length(length: Tensor) -> Tensor:
    return length.clamp(min=2).float().log()  # rows with one key do not count: this only avoids 0 / 0


# --- from the mean key ------------------------------------------------------------------------------------------


def _by_mean_key(heads: Heads, seen: _VisibleKeys, every: Tensor, at: Tensor) -> AttentionRows:
    """Compute entropy and sink mass of every query from attention calls with V = K, and the spread at `at`."""
    top = _largest_logits(heads, every)
    heads = replace(heads, k=_centred(plain(heads.k), seen.keys))
    mean, lse = _mean_key_grouped(heads)  # (b, h, t), (b, h, t)
    first = heads.k.gather(2, seen.first[:, None, None, None].expand(*heads.k.shape[:2], 1, heads.k.shape[3]))
    b, h, t, d = heads.q.shape
    q = plain(heads.q).view(b, heads.k.shape[1], -1, t, d)  # (b, g, h/g, t, d)
    to_first = heads.scaling * (q * first[:, :, None]).sum(-1).view(b, h, t)
    # if one key gets all the weight, large numbers cancel: rounding must not leave the range
    sink = torch.where(seen.sees_first, (to_first - lse).exp().clamp(max=1), 0.0)
    entropy = ((lse - mean) / _log_length(seen.length)).clamp(0, 1)
    return AttentionRows(seen.length, entropy, sink, top, at, *_spread(heads, lse, seen, at))


def _mean_key_grouped(heads: Heads) -> tuple[Tensor, Tensor]:
    """Return the mean logit and the log-sum-exp of every query, (b, h, t) each."""
    b, h, t, d = heads.q.shape
    g = heads.k.shape[1]
    mean = heads.k.new_empty(b, g, h // g, t)
    lse = torch.empty_like(mean)
    for member in range(h // g):  # one call for each query head of a group: no key is repeated
        q = plain(heads.q.view(b, g, h // g, t, d)[:, :, member])  # (b, g, t, d)
        key, lse[:, :, member] = _mean_key(replace(heads, q=q))
        mean[:, :, member] = heads.scaling * (q * key).sum(-1)
    return mean.view(b, h, t), lse.view(b, h, t)


def _centred(k: Tensor, real: Tensor) -> Tensor:
    """Subtract the mean key, which shifts all logits of a row equally: the rest loses fewer digits in float32."""
    weight = real.to(k.dtype) / real.sum(-1, keepdim=True).clamp(min=1)  # (b, s)
    return k - (weight[:, None, None, :] @ k)


def _mean_key(heads: Heads) -> tuple[Tensor, Tensor]:
    """Return the mean key Σ p k and the log-sum-exp of every query; there are as many key heads as query heads."""
    t, s = heads.q.shape[2], heads.k.shape[2]
    call = mean_key_kernel(heads.q.device)
    if heads.mask is None and heads.window is None and (t == s or not heads.causal):
        return call(heads.q, heads.k, heads.scaling, None, heads.causal)
    every = torch.arange(t, device=heads.q.device)
    parts = [
        call(heads.q.index_select(2, rows), heads.k, heads.scaling, _visible(heads, rows), False)
        for rows in _blocks(heads, every)
    ]
    return torch.cat([mean for mean, _ in parts], 2), torch.cat([lse for _, lse in parts], 2)
