"""Collect statistics by block of contiguous documents.

Tokens of one document depend on each other, so error bars come from leaving out blocks of whole documents. The block
number of a token is (first row of its document) // unit, a pure function of the data. While rows are added there are at
most 2·`blocks` blocks: if there are more, neighbouring blocks are joined in pairs. What does not fit into the `Room` of
a collector is stored in a scratch folder: closed blocks, and between two batches the open block and the sample.
"""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from anisoscope.stats.cloud import (
    HELD_NUMBERS,
    Block,
    Cloud,
    Stats,
    accumulate,
    from_arrays,
    join,
    on_device,
    table_at_level,
    to_arrays,
)
from anisoscope.stats.open_block import OpenBlock
from anisoscope.stats.pooled_extremes import PooledExtremes
from anisoscope.stats.registry import COLLECTED, PREFIXES, SUMS
from anisoscope.stats.rows import Rows, join_rows
from anisoscope.stats.sample import Extremes, Reservoir, Sample, merge_extremes, split_extremes
from anisoscope.stats.scratch import Room, Scratch, bytes_of, link_or_copy

PENDING = 1024  # rows that are collected before a product, so that it runs at full speed


@dataclass(frozen=True)
class Part:
    """What a collector has collected, on the CPU, for another collector to absorb, here or in another process."""

    level: int  # how often neighbouring blocks were joined
    blocks: tuple[tuple[int, Stats], ...]  # by number
    sample: Sample | None = None


class Collector:
    """Adds up the statistics of batches of rows. `finish` returns the cloud; `room` is what may stay in memory.

    Example:
        >>> from anisoscope.stats.rows import bare_rows
        >>> collector = Collector(["Moments"])
        >>> collector.add(bare_rows(torch.eye(3)))
        >>> collector.finish().n
        3
    """

    def __init__(
        self,
        names: Iterable[str],
        *,
        make: Mapping[str, Callable[[Rows], Any]] | None = None,
        sample: int = 8192,
        extremes: int = 256,
        blocks: int = 16,
        sinks: bool = False,
        level: int = 0,
        outsized: float = math.inf,
    ) -> None:
        """Start with nothing counted.

        Args:
            names: Names of the statistics to collect.
            make: Functions rows -> statistic by name, instead of `of` of the kind.
            sample: Number of rows of the keyed sample.
            extremes: Number of rows of highest priority that are stored separately from the sums.
            blocks: Number of blocks to end with; up to twice as many while collecting.
            sinks: Store rows at offset 0 of their window separately (`first.*`), so that they can be left out exactly.
            level: How often neighbouring blocks are joined from the start, if more than enough blocks will come.
            outsized: Rows of at least this priority stay extremes, even if they are more than `extremes`.
        """
        names = list(names)
        self._sample_size = sample if "Sample" in names else 0
        self._extreme_size = extremes if set(names) & {"Extremes", *SUMS} else 0
        self._make: dict[str, Callable[[Rows], Any]] = {
            name: (make or {}).get(name, COLLECTED[name].of) for name in names if name not in ("Sample", "Extremes")
        }
        self._blocks = blocks
        self._sinks = sinks
        self._level = level
        self._outsized = outsized
        self._number: int | None = None
        self._open: Stats = {}
        self._pending: dict[str, list[Rows]] = {}  # rows by prefix (`first.` or none) that are not in the sums yet
        self._closed: list[Block] = []
        self._reservoir = Reservoir(self._sample_size)
        self.room = Room()
        self._scratch: Scratch | None = None
        self._resting: Path | None = None  # the file that holds the open block, if it does not fit into the room
        self._loaded = False  # from files, to the CPU

    def add(self, rows: Rows, priority: Tensor | None = None) -> None:
        """Add rows.

        Args:
            rows: The rows; blocks must come in order.
            priority: Replaces the norm of the rows when extremes are chosen, (n,).
        """
        if not len(rows.tokens):
            return
        self._wake()
        if self._loaded:
            self._move_to(rows.x.device)
        if self._sample_size:
            self._reservoir.add(rows)
        self._raise_level(int(rows.tokens.block.max()))
        number = rows.tokens.block >> self._level
        for part in torch.unique_consecutive(number):
            chosen = (number == part).nonzero()[:, 0] if len(rows.tokens) > 1 else slice(0, 1)
            whole = isinstance(chosen, Tensor) and len(chosen) == len(number)
            self._count(
                int(part),
                rows if whole else rows.take(chosen),
                priority if whole or priority is None else priority[chosen],
            )
        if rows.x.device.type == "cpu" and self._open_bytes() > self.room.open:
            self._rest()

    def finish(self) -> Cloud:
        """Return the cloud of all rows added so far."""
        self._wake()
        self._close()
        stats = self._settle()
        sample = self._reservoir.sample()
        if sample is not None:
            stats["Sample"] = replace(sample, table=table_at_level(sample.table, self._level))
        return Cloud(stats, tuple(self._closed))

    def _count(self, number: int, rows: Rows, priority: Tensor | None) -> None:
        if self._number is not None and number != self._number:
            self._close()
        if self._number is None and self._closed and self._closed[-1].number == number:
            self._open = on_device(dict(self._closed.pop().load()), rows.x.device)  # files are read to the CPU
        self._number = number
        for name in self._make:
            if name not in SUMS:
                accumulate(self._open, name, self._make[name](rows))
        if not self._extreme_size:
            return
        apart = (rows.tokens.offset == 0).nonzero()[:, 0] if self._sinks else rows.tokens.offset[:0].long()
        if len(apart):
            of_first = None if priority is None else priority[apart.to(priority.device)]
            self._count_extremes("first.", *split_extremes(rows.take(apart), self._extreme_size, of_first))
        self._count_extremes("", *split_extremes(rows, self._extreme_size, priority, apart))
        for prefix, waiting in self._pending.items():
            if sum(len(r.tokens) for r in waiting) >= PENDING:
                self._add_to_sums(self._open, prefix, waiting)
                waiting.clear()

    def _count_extremes(self, prefix: str, extremes: Extremes, rest: Rows) -> None:
        name = f"{prefix}Extremes"
        if name in self._open:
            extremes, evicted = merge_extremes(self._open[name], extremes)
            self._waiting(prefix).append(evicted)
        self._open[name] = extremes
        self._waiting(prefix).append(rest)

    def _waiting(self, prefix: str) -> list[Rows]:
        return self._pending.setdefault(prefix, [])

    def _raise_level(self, highest: int) -> None:
        """Join blocks in pairs until the highest block number is below twice the number of blocks."""
        while highest >> self._level >= 2 * self._blocks:
            self._close()
            self._halve()

    def _halve(self) -> None:
        """Join neighbouring blocks in pairs."""
        self._level += 1
        pairs: dict[int, list[Block]] = {}
        for block in self._closed:
            pairs.setdefault(block.number >> 1, []).append(block)
        self._closed = [
            self._store(Block(number, reduce(self._join, (block.load() for block in pair))))
            for number, pair in pairs.items()
        ]

    def _join(self, a: Stats, b: Stats) -> Stats:
        return join(a, b, self._make)

    def _close(self) -> None:
        if self._number is None:
            return
        for prefix, waiting in self._pending.items():
            self._add_to_sums(self._open, prefix, waiting)
            waiting.clear()
        if "Extremes" in self._open:  # a small block may hold nothing else
            none = self._open["Extremes"].keeping(torch.tensor([], dtype=torch.int64)).rows
            for name in SUMS:
                if name in self._make and name not in self._open:
                    self._open[name] = self._make[name](none)
        self._closed.append(self._store(Block(self._number, self._open)))
        self._open, self._number = {}, None

    def _store(self, block: Block, limit: int | None = None) -> Block:
        """Return the block, stored in the scratch folder if it has more bytes than `limit`, by default its share."""
        assert isinstance(block.stats, dict)
        arrays = to_arrays(block.stats)
        if bytes_of(arrays.values()) <= (self.room.blocks // (2 * self._blocks) if limit is None else limit):
            return block
        path = self._scratch_file(f"{self._level}-{block.number}")
        save_file(arrays, path.with_suffix(".new"))
        path.with_suffix(".new").replace(path)  # these arrays may be mapped from the old file
        return Block(block.number, path, scratch=self._scratch)

    def _scratch_file(self, name: str) -> Path:
        if self._scratch is None:
            self._scratch = Scratch(self.room.parent)
        return self._scratch.path / f"{name}.safetensors"

    def _open_bytes(self) -> int:
        waiting = [rows.x for pending in self._pending.values() for rows in pending]
        statistics = [x for stat in self._open.values() for x in vars(stat).values() if isinstance(x, Tensor)]
        return bytes_of((*waiting, *statistics)) + self._reservoir.bytes

    def _rest(self) -> None:
        """Move the open block and the sample to the scratch folder until the next rows come."""
        self._resting = self._scratch_file("open")
        save_file(self._open_arrays(), self._resting)
        self._open, self._pending, self._reservoir = {}, {}, Reservoir(self._sample_size)

    def _wake(self) -> None:
        if self._resting is not None:
            self._load_open(load_file(self._resting))
            self._resting.unlink()
            self._resting, self._loaded = None, False

    def _settle(self) -> Stats:
        """Return the statistics of all blocks. Rows that are extreme only in their block are added to its sums."""
        # every block costs time for error bars
        halved = 1 if 2 * len(self._closed) >= 3 * self._blocks else 0
        self._level += halved
        groups: dict[int, list[Block]] = {}
        for block in self._closed:
            groups.setdefault(block.number >> halved, []).append(block)
        pooled = self._pooled_extremes()
        self._closed, total = [], Stats()
        for number, members in groups.items():
            stats = self._joined([block.load() for block in members], pooled)
            self._closed.append(self._store(Block(number, stats), 8 * HELD_NUMBERS // len(groups)))
            total = self._join(total, stats)
        return total

    def _pooled_extremes(self) -> PooledExtremes | None:
        """The extremes of all closed blocks; None if no extremes are collected."""
        if not self._extreme_size or not self._closed:
            return None
        names = {f"{prefix}Extremes" for prefix in PREFIXES}
        return PooledExtremes.of([block.load(names) for block in self._closed], self._outsized)

    def _joined(self, blocks: list[Stats], pooled: PooledExtremes | None) -> Stats:
        """Join blocks into one. Rows that are extreme only in their block are added to its sums."""
        if pooled is None:
            return reduce(self._join, blocks)
        stay, lower = pooled.take(blocks, self._level)
        out = reduce(self._join, blocks) | stay
        for prefix, rows in lower.items():
            self._add_to_sums(out, prefix, [rows])
        return out

    def _add_to_sums(self, stats: Stats, prefix: str, parts: list[Rows]) -> None:
        parts = [part for part in parts if len(part.tokens)]
        if parts:
            rows = join_rows(parts)
            for name in SUMS:
                if name in self._make:
                    accumulate(stats, prefix + name, self._make[name](rows))

    def copy(self) -> Collector:
        """Return a collector that continues from here by itself. Nothing that is closed or added there shows here."""
        self._wake()  # or both would read, and delete, one file
        other = copy.copy(self)
        other._open = dict(self._open)
        other._pending = {prefix: list(waiting) for prefix, waiting in self._pending.items()}
        other._closed = list(self._closed)
        other._scratch = None  # files of both would have the same names
        other._reservoir = Reservoir(self._sample_size)
        sample = self._reservoir.sample()
        if sample is not None:
            other._reservoir.absorb(sample)
        return other

    def part(self) -> Part:
        """Return everything collected so far, as a value that another collector can absorb."""
        self._wake()
        self._close()
        blocks = tuple((block.number, _on_cpu(block.load())) for block in self._closed)
        sample = self._reservoir.sample()
        return Part(self._level, blocks, None if sample is None else replace(sample, x=sample.x.cpu()))

    def absorb(self, part: Part) -> None:
        """Add what another collector collected from other documents of the same stream, with the same block numbers."""
        self._wake()
        self._close()
        while self._level < part.level:
            self._halve()
        known = {block.number: _block_on_cpu(block) for block in self._closed}
        for finer, stats in part.blocks:
            number = finer >> (self._level - part.level)
            if number in known:
                stats = join(known[number].load(), stats, self._make)
            known[number] = self._store(Block(number, stats))
        self._closed = [known[number] for number in sorted(known)]
        if part.sample is not None:
            self._reservoir.move_to(torch.device("cpu"))
            self._reservoir.absorb(part.sample)

    def save(self, folder: Path) -> None:
        """Write everything collected so far to a new folder. After `load`, results are equal to the bit."""
        folder.mkdir(parents=True)
        for index, block in enumerate(self._closed):
            to = folder / f"{index}.safetensors"
            if isinstance(block.stats, Path):
                link_or_copy(block.stats, to)
            else:
                save_file(to_arrays(block.stats), to)
        if self._resting is None:
            save_file(self._open_arrays(), folder / "open.safetensors")
        else:
            link_or_copy(self._resting, folder / "open.safetensors")
        state = {"level": self._level, "number": self._number, "closed": [block.number for block in self._closed]}
        (folder / "state.json").write_text(json.dumps(state))

    def load(self, folder: Path) -> None:
        """Continue from what `save` wrote, on the device of the next rows."""
        state = json.loads((folder / "state.json").read_text())
        self._level, self._number = state["level"], state["number"]
        self._closed = [
            self._loaded_block(folder / f"{index}.safetensors", number) for index, number in enumerate(state["closed"])
        ]
        self._load_open(load_file(folder / "open.safetensors"))

    def _loaded_block(self, file: Path, number: int) -> Block:
        stats = from_arrays(load_file(file))  # read also if it stays a file, to refuse a damaged one now
        if bytes_of(to_arrays(stats).values()) <= self.room.blocks // (2 * self._blocks):
            return Block(number, stats)
        path = self._scratch_file(f"{self._level}-{number}")
        link_or_copy(file, path)
        return Block(number, path, scratch=self._scratch)

    def _open_arrays(self) -> dict[str, Tensor]:
        return OpenBlock(self._open, self._pending, self._reservoir.sample()).arrays()

    def _load_open(self, arrays: Mapping[str, Tensor]) -> None:
        loaded = OpenBlock.of(arrays)
        self._open = loaded.stats
        self._pending.update(loaded.pending)
        if loaded.sample is not None:
            self._reservoir.absorb(loaded.sample)
        self._loaded = True

    def _move_to(self, device: torch.device) -> None:
        """Move everything to the device of the rows: layers of one model may be on different devices."""
        self._open = on_device(self._open, device)
        self._pending = {
            prefix: [Rows(rows.x.to(device), rows.tokens) for rows in waiting]
            for prefix, waiting in self._pending.items()
        }
        self._reservoir.move_to(device)
        self._loaded = False


def _on_cpu(stats: Stats) -> Stats:
    return from_arrays(to_arrays(stats))


def _block_on_cpu(block: Block) -> Block:
    """Return the block with its statistics on the CPU; files are read to the CPU anyway."""
    return block if isinstance(block.stats, Path) else replace(block, stats=_on_cpu(block.stats))
