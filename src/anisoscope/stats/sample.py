"""Kept rows: the keyed sample (the same tokens at every layer and step) and the rows of largest norm."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from anisoscope.stats.rows import Rows, Tokens


@dataclass(frozen=True)
class Sample:
    """The `size` rows of smallest key: a uniform sample, independent of order, of the same tokens at every site."""

    size: int
    seen: int
    x: Tensor  # (m, d) in the dtype of the rows, sorted by key
    table: Tensor  # (m, 6) int64, the tokens' columns

    @classmethod
    def of(cls, rows: Rows, size: int = 8192) -> Sample:
        key = rows.tokens.key
        kept = rows.take(torch.sort(key, stable=True).indices[:size])
        return cls(size, len(key), kept.x.detach(), torch.stack(kept.tokens.columns(), 1))

    def __add__(self, other: Sample) -> Sample:
        table = torch.cat((self.table, other.table))
        order = torch.sort(table[:, 0], stable=True).indices[: self.size]
        x = torch.cat((self.x, other.x))
        return Sample(self.size, self.seen + other.seen, x[order.to(x.device)], table[order])

    @property
    def rows(self) -> Rows:
        return Rows(self.x, Tokens(*self.table.T))

    def without_block(self, blocks: Tensor) -> Sample:
        """Return the rows of other blocks: a uniform sample of the remaining rows."""
        keep = ~torch.isin(self.rows.tokens.block, blocks)
        return Sample(self.size, self.seen, self.x[keep.to(self.x.device)], self.table[keep])


class Reservoir:
    """A sample that is being collected. A row of smaller key replaces one of larger key; other rows are not moved."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._seen = 0
        self._x: Tensor | None = None  # (capacity, d), of which the first len(table) rows are in use
        self._table = torch.zeros(0, 6, dtype=torch.int64)
        self._highest: int | None = None  # the largest key, once it is full

    def add(self, rows: Rows) -> None:
        """Add rows. Those whose keys are too large are not read."""
        self._seen += len(rows.tokens)
        key = rows.tokens.key
        chosen = torch.arange(len(key)) if self._highest is None else (key < self._highest).nonzero()[:, 0]
        if len(chosen):
            self._put(rows.x.detach(), torch.stack(rows.tokens.take(chosen).columns(), 1), chosen)

    def absorb(self, sample: Sample) -> None:
        """Add a sample of other rows."""
        self._seen += sample.seen
        self._put(sample.x, sample.table, torch.arange(len(sample.table)))

    def sample(self) -> Sample | None:
        """Return the sample; None if no rows were added."""
        if self._x is None:
            return None
        order = torch.sort(self._table[:, 0], stable=True).indices
        return Sample(self._size, self._seen, self._x[order.to(self._x.device)], self._table[order])

    @property
    def bytes(self) -> int:
        """Memory that the rows take."""
        return 0 if self._x is None else self._x.numel() * self._x.element_size()

    def move_to(self, device: torch.device) -> None:
        """Move the rows to a device."""
        self._x = None if self._x is None else self._x.to(device)

    def _put(self, x: Tensor, table: Tensor, chosen: Tensor) -> None:
        """Keep those of the rows x[chosen], whose table this is, that are among the smallest keys."""
        used = len(self._table)
        kept = torch.sort(torch.cat((self._table[:, 0], table[:, 0])), stable=True).indices[: self._size]
        new = kept[kept >= used] - used
        free = min(self._size - used, len(new))
        replaced = torch.ones(used, dtype=torch.bool).index_fill(0, kept[kept < used], False).nonzero()[:, 0]
        slots = torch.cat((torch.arange(used, used + free), replaced[: len(new) - free]))
        self._table = torch.cat((self._table, table.new_empty(free, table.shape[1])))
        self._table[slots] = table[new]
        stored = self._grown(x, used + free)
        stored[slots.to(stored.device)] = x[chosen[new].to(x.device)].to(stored)
        if len(self._table) == self._size:
            self._highest = int(self._table[:, 0].max())

    def _grown(self, x: Tensor, wanted: int) -> Tensor:
        """Return memory for `wanted` rows like x. It at least doubles, so that growing costs no more than filling."""
        old = self._x
        if old is None or len(old) < wanted:
            capacity = wanted if old is None else min(self._size, max(wanted, 2 * len(old)))
            self._x = x.new_empty(capacity, x.shape[1])
            if old is not None:
                self._x[: len(old)] = old
        assert self._x is not None
        return self._x


@dataclass(frozen=True)
class Extremes:
    """The `size` rows of highest priority (by default their norm), sorted by priority, the highest first.

    They are left out of the sums of their block and added at the end. So every metric "without the k largest tokens"
    is exact after one pass, for every k.
    """

    size: int
    x: Tensor  # (m, d)
    priority: Tensor  # (m,)
    table: Tensor  # (m, 6) int64
    overflowed: bool = False  # a block may have dropped rows above 1.5 × the collector's `outsized` priority

    @classmethod
    def of(cls, rows: Rows, size: int = 256, priority: Tensor | None = None) -> Extremes:
        return split_extremes(rows, size, priority)[0]

    def __add__(self, other: Extremes) -> Extremes:
        return merge_extremes(self, other)[0]

    @property
    def rows(self) -> Rows:
        return Rows(self.x, Tokens(*self.table.cpu().T))

    def keeping(self, keep: Tensor) -> Extremes:
        """Return the rows at a mask or an index."""
        keep = keep.to(self.x.device)
        return replace(self, x=self.x[keep], priority=self.priority[keep], table=self.table[keep])

    def without_block(self, blocks: Tensor) -> Extremes:
        return self.keeping(~torch.isin(self.table[:, -1], blocks.to(self.table.device)))


def split_extremes(
    rows: Rows, size: int, priority: Tensor | None = None, apart: Tensor | None = None
) -> tuple[Extremes, Rows]:
    """Split rows into those of highest priority and the others, which stay in order. Ties go to the smaller key.

    Args:
        rows: The rows.
        size: Number of extremes.
        priority: Priority of each row, (n,); by default its norm.
        apart: Indices of rows that belong to neither part.
    """
    table = torch.stack(rows.tokens.columns(), 1).to(rows.x.device, non_blocking=True)
    if priority is None:
        priority = rows.norm.nan_to_num(torch.inf)
    if apart is not None and len(apart):
        others = torch.ones(len(table), dtype=torch.bool).index_fill_(0, apart, False).nonzero()[:, 0].to(table.device)
        order = others[_by_priority(priority[others], table[others, 0])]
    else:
        order = _by_priority(priority, table[:, 0])
    top = order[:size]
    extremes = Extremes(size, rows.x.detach()[top], priority[top], table[top])
    rest = torch.sort(order[size:]).values
    return extremes, rows.take(rest) if len(rest) else rows.take(slice(0, 0))


def merge_extremes(a: Extremes, b: Extremes) -> tuple[Extremes, Rows]:
    """Merge extremes. Return those of both sides, and the rows that are no longer extreme."""
    priority = torch.cat((a.priority, b.priority))
    table = torch.cat((a.table, b.table))
    order = _by_priority(priority, table[:, 0])
    both = Extremes(a.size, torch.cat((a.x, b.x)), priority, table, a.overflowed or b.overflowed)
    return both.keeping(order[: a.size]), both.keeping(order[a.size :]).rows


def select_extremes(blocks: Sequence[Extremes], outsized: float) -> tuple[Tensor, int]:
    """Choose which extremes of several blocks stay extremes of the whole.

    Those are the `size` rows of highest priority, and all rows of at least the priority `outsized`.

    Returns:
        The keys of the rows that stay, and the size of the whole's extremes, larger than the number of outsized rows.
    """
    priority = torch.cat([block.priority.cpu() for block in blocks])
    key = torch.cat([block.table[:, 0].cpu() for block in blocks])
    count = int((priority >= outsized).sum())
    size = blocks[0].size
    kept = key[_by_priority(priority, key)[: max(size, count)]]
    return kept, max(size, count + 1)


def has_overflowed(blocks: Sequence[Extremes], outsized: float) -> bool:
    """Whether a block was filled with rows above 1.5 × the priority `outsized`, so that others may be missing."""
    return any(len(b.x) == b.size and bool((b.priority >= 1.5 * outsized).all()) for b in blocks)


def _by_priority(priority: Tensor, key: Tensor) -> Tensor:
    by_key = torch.sort(key, stable=True).indices
    return by_key[torch.sort(priority[by_key], descending=True, stable=True).indices]
