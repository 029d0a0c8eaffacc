"""Rows that are kept: the keyed sample (the same tokens at every layer and step) and the rows of largest norm."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from anisoscope.stats.rows import Rows, Tokens


@dataclass(frozen=True)
class Sample:
    """The `size` rows of smallest key: uniform, independent of order, exact under adding, paired across sites."""

    size: int
    seen: int
    x: Tensor  # (m, d) in the rows' own dtype, sorted by key
    table: Tensor  # (m, 6) int64, the tokens' columns

    @classmethod
    def of(cls, rows: Rows, size: int = 8192, below: int | None = None) -> Sample:
        """From rows; `below` (a key that the sample so far already beats) leaves hopeless rows out unread."""
        key = rows.tokens.key
        chosen = torch.sort(key, stable=True).indices[:size]
        if below is not None:
            chosen = chosen[key[chosen] < below]
        kept = rows.take(chosen)
        return cls(size, len(key), kept.x.detach(), torch.stack(kept.tokens.columns(), 1))

    def __add__(self, other: Sample) -> Sample:
        return merge_samples([self, other])

    @property
    def rows(self) -> Rows:
        return Rows(self.x, Tokens(*self.table.T))

    @property
    def highest(self) -> int | None:
        """The key to beat, once the sample is full."""
        return int(self.table[-1, 0]) if len(self.table) == self.size else None

    def without_block(self, blocks: Tensor) -> Sample:
        """The rows outside these blocks: still a uniform sample of what is left."""
        keep = ~torch.isin(self.rows.tokens.block, blocks)
        return Sample(self.size, self.seen, self.x[keep.to(self.x.device)], self.table[keep])


def merge_samples(samples: Sequence[Sample]) -> Sample:
    """The sum of many samples at once: one copy instead of one an addition."""
    table = torch.cat([sample.table for sample in samples])
    order = torch.sort(table[:, 0], stable=True).indices[: samples[0].size]
    x = torch.cat([sample.x for sample in samples])
    return Sample(samples[0].size, sum(s.seen for s in samples), x[order.to(x.device)], table[order])


@dataclass(frozen=True)
class Extremes:
    """The `size` rows of highest priority (their norm unless told otherwise), sorted by it, the highest first.

    They are kept out of the products of their block and added at the end, so that every metric "without the k
    largest tokens" is exact, for every k, after a single pass.
    """

    size: int
    x: Tensor  # (m, d)
    priority: Tensor  # (m,)
    table: Tensor  # (m, 6) int64

    @classmethod
    def of(cls, rows: Rows, size: int = 256, priority: Tensor | None = None) -> Extremes:
        return split_extremes(rows, size, priority)[0]

    def __add__(self, other: Extremes) -> Extremes:
        return merge_extremes(self, other)[0]

    @property
    def rows(self) -> Rows:
        return Rows(self.x, Tokens(*self.table.cpu().T))

    def keeping(self, keep: Tensor) -> Extremes:
        """The rows at these places (a mask or an index)."""
        keep = keep.to(self.x.device)
        return Extremes(self.size, self.x[keep], self.priority[keep], self.table[keep])

    def without_block(self, blocks: Tensor) -> Extremes:
        return self.keeping(~torch.isin(self.table[:, -1], blocks.to(self.table.device)))


def split_extremes(
    rows: Rows, size: int, priority: Tensor | None = None, apart: Tensor | None = None
) -> tuple[Extremes, Rows]:
    """The rows of highest priority, and the others in their old order. Ties go to the smaller key.

    Rows at the places `apart` are in neither.
    """
    table = torch.stack(rows.tokens.columns(), 1).to(rows.x.device, non_blocking=True)
    if priority is None:
        priority = rows.norm.nan_to_num(torch.inf)
    if apart is not None and len(apart):
        here = torch.ones(len(table), dtype=torch.bool).index_fill_(0, apart, False).nonzero()[:, 0].to(table.device)
        order = here[_by_priority(priority[here], table[here, 0])]
    else:
        order = _by_priority(priority, table[:, 0])
    top = order[:size]
    extremes = Extremes(size, rows.x.detach()[top], priority[top], table[top])
    rest = torch.sort(order[size:]).values
    return extremes, rows.take(rest) if len(rest) else rows.take(slice(0, 0))


def merge_extremes(a: Extremes, b: Extremes) -> tuple[Extremes, Rows]:
    """The extremes of both, and the rows that no longer belong to them."""
    priority = torch.cat((a.priority, b.priority))
    table = torch.cat((a.table, b.table))
    order = _by_priority(priority, table[:, 0])
    both = Extremes(a.size, torch.cat((a.x, b.x)), priority, table)
    return both.keeping(order[: a.size]), both.keeping(order[a.size :]).rows


def _by_priority(priority: Tensor, key: Tensor) -> Tensor:
    by_key = torch.sort(key, stable=True).indices
    return by_key[torch.sort(priority[by_key], descending=True, stable=True).indices]
