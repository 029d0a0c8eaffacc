"""What is collected of the heads of one attention layer, by block of documents; small, so all of it stays in memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import reduce

import torch
from torch import Tensor

from anisoscope.stats.cloud import Block, Cloud, Stats, from_arrays, join, on_device, to_arrays
from anisoscope.stats.collect import BLOCKS
from anisoscope.stats.collector import Part
from anisoscope.stats.head_scores import Attention, Heads, Scores, attention_rows
from anisoscope.stats.head_sums import HeadSums

_ASKED = 16  # query positions whose largest weight and logit spread are computed: they need the whole row


class HeadBlocks:
    """Statistics of heads by block; where there are more than twice the blocks wanted, neighbours are joined."""

    def __init__(self, level: int = 0, blocks: Mapping[int, Stats] | None = None) -> None:
        self.level = level
        self.blocks: dict[int, Stats] = dict(blocks or {})
        self._given = blocks is not None  # from files, onto the host

    def add(self, pattern: Heads | Scores, counts: Tensor, block: Tensor) -> None:
        """Counts one batch: `counts` (b, t) says which queries count, `block` (b,) where each sequence belongs."""
        length = counts.shape[1]
        asked = torch.linspace(1, max(1, length - 1), min(_ASKED, length)).long().unique()
        rows = attention_rows(pattern, counts, asked)
        if self._given:  # layers of one model may lie on several devices: where this one's is, its rows tell
            self.blocks = {number: on_device(stats, rows.entropy.device) for number, stats in self.blocks.items()}
            self._given = False
        for number in block.unique().tolist():
            own = block == number
            stats: Stats = {"Attention": Attention.of_rows(rows, counts & own[:, None])}
            if isinstance(pattern, Heads):
                stats["HeadSums"] = HeadSums.of(_sequences(pattern, own), counts[own])
            self._join(number, stats)

    def part(self) -> Part:
        """All that has been counted, as a value that another can absorb."""
        return Part(self.level, tuple((n, from_arrays(to_arrays(stats))) for n, stats in self.blocks.items()))

    def absorb(self, part: Part) -> None:
        """Adds what was counted elsewhere of other documents of the same stream."""
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
        place = number >> self.level
        self.blocks[place] = join(self.blocks.get(place, {}), stats, ())

    def _halve(self) -> None:
        self.level += 1
        halved: dict[int, Stats] = {}
        for number, stats in self.blocks.items():
            halved[number >> 1] = join(halved.get(number >> 1, {}), stats, ())
        self.blocks = halved


def _sequences(heads: Heads, own: Tensor) -> Heads:
    """The queries and keys of some sequences of a batch, (b,) bool."""
    if bool(own.all()):
        return heads
    places = own.nonzero()[:, 0].to(heads.q.device)
    return replace(heads, q=heads.q[places], k=heads.k[places], mask=None, bias=None)
