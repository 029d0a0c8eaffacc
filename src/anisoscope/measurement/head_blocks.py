"""Statistics of the heads or the router of one layer, by block of documents; small, so they stay in memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import reduce

import torch
from torch import Tensor

from anisoscope.stats.cloud import Block, Cloud, Stats, from_arrays, join, on_device, to_arrays
from anisoscope.stats.collect import BLOCKS
from anisoscope.stats.collector import Part
from anisoscope.stats.head_norms import HeadNorms
from anisoscope.stats.head_scores import Attention, Heads, Scores, attention_rows
from anisoscope.stats.head_sums import HeadSums
from anisoscope.stats.router_sums import RouterSums, Routing

_QUERIES = 16  # query positions whose largest weight and logit spread are computed: they need the whole row


class HeadBlocks:
    """Statistics of heads by block; if there are more than twice as many blocks as wanted, neighbours are joined."""

    def __init__(self, level: int = 0, blocks: Mapping[int, Stats] | None = None) -> None:
        self.level = level
        self.blocks: dict[int, Stats] = dict(blocks or {})
        self._on_host = blocks is not None  # loaded from files

    def add(self, pattern: Heads | Scores | Routing, counts: Tensor, block: Tensor) -> None:
        """Add one batch: `counts` (b, t) marks the tokens that count, `block` (b,) is the block of each sequence."""
        if isinstance(pattern, Routing):
            self._move_to(pattern.logits.device)
            for number in block.unique().tolist():
                sums = RouterSums.of(pattern, counts & (block == number)[:, None])
                self._join(number, {"RouterSums": sums})
        else:
            self._add_heads(pattern, counts, block)

    def _add_heads(self, pattern: Heads | Scores, counts: Tensor, block: Tensor) -> None:
        length = counts.shape[1]
        queries = torch.linspace(1, max(1, length - 1), min(_QUERIES, length)).long().unique()
        rows = attention_rows(pattern, counts, queries)
        self._move_to(rows.entropy.device)
        for number in block.unique().tolist():
            chosen = block == number
            stats: Stats = {"Attention": Attention.of_rows(rows, counts & chosen[:, None])}
            if isinstance(pattern, Heads):
                sequences = _sequences(pattern, chosen)
                stats["HeadSums"] = HeadSums.of(sequences, counts[chosen])
                stats["HeadNorms"] = HeadNorms.of(sequences, counts[chosen])
            self._join(number, stats)

    def _move_to(self, device: torch.device) -> None:
        """Move what was loaded from files to the device of the rows: layers of one model may be on several."""
        if self._on_host:
            self.blocks = {number: on_device(stats, device) for number, stats in self.blocks.items()}
            self._on_host = False

    def part(self) -> Part:
        """Return everything collected, as a value that another process can absorb."""
        return Part(self.level, tuple((n, from_arrays(to_arrays(stats))) for n, stats in self.blocks.items()))

    def absorb(self, part: Part) -> None:
        """Add what another process collected from other documents of the same stream."""
        self.blocks = dict(self.part().blocks)
        while self.level < part.level:
            self._halve()
        for finer, stats in part.blocks:
            self._join(finer << part.level, stats)

    def cloud(self) -> Cloud:
        numbers = sorted(self.blocks)
        total = reduce(lambda a, b: join(a, b, ()), (self.blocks[number] for number in numbers))
        return Cloud(total, tuple(Block(number, self.blocks[number]) for number in numbers))

    def _join(self, number: int, stats: Stats) -> None:
        while number >> self.level >= 2 * BLOCKS:
            self._halve()
        index = number >> self.level
        self.blocks[index] = join(self.blocks.get(index, {}), stats, ())

    def _halve(self) -> None:
        self.level += 1
        halved: dict[int, Stats] = {}
        for number, stats in self.blocks.items():
            halved[number >> 1] = join(halved.get(number >> 1, {}), stats, ())
        self.blocks = halved


def _sequences(heads: Heads, chosen: Tensor) -> Heads:
    """The queries, keys and values of some sequences of a batch, (b,) bool."""
    if bool(chosen.all()):
        return heads
    index = chosen.nonzero()[:, 0].to(heads.q.device)
    v = None if heads.v is None else heads.v[index]
    return replace(heads, q=heads.q[index], k=heads.k[index], v=v, mask=None, bias=None)
