"""Collecting statistics by block of contiguous documents: the pooled cloud, and the cloud without any one block.

Tokens of one document depend on each other, so error bars come from leaving out blocks of whole documents. A token's
block number is (first row of its document) // unit, a pure function of the data. While rows stream in, at most
2·`blocks` blocks exist: when more come, neighbours are joined in pairs. Only the open block and, at the end, the
total are held in memory; finished blocks of wide clouds wait in a scratch folder.
"""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import add
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from anisoscope.stats.attention import Attention
from anisoscope.stats.directions import CentredDirections, Directions, UnitSquares
from anisoscope.stats.documents import Documents, segments
from anisoscope.stats.heads import HeadSums
from anisoscope.stats.moments import Moments
from anisoscope.stats.norms import Norms
from anisoscope.stats.pack import pack, unpack
from anisoscope.stats.partition import Partition
from anisoscope.stats.rows import Rows
from anisoscope.stats.sample import Extremes, Sample, merge_extremes, merge_samples, split_extremes

S = TypeVar("S")
Stats = dict[str, Any]  # statistics of one block or of all, by name: "Moments", "first.Moments", "Norms", …

# By name, so that a run on disk can be read back. Those "of the rest" leave the extremes out until the end.
KINDS: dict[str, type] = {
    kind.__name__: kind
    for kind in (
        *(Moments, Directions, UnitSquares, Norms, Documents, CentredDirections, Partition, Sample, Extremes),
        *(Attention, HeadSums),
    )
}
OF_REST = ("Moments", "Directions", "UnitSquares")
SECOND_LOOK = ("CentredDirections", "Partition")  # need the pooled Moments first
_IN_MEMORY = 1 << 20  # a block with fewer numbers than this is not worth a file
_PENDING = 2048  # rows that wait for a product of a size that runs at full speed


@dataclass(frozen=True)
class Cloud:
    """All that was collected of one cloud of rows: pooled statistics, kept rows, and the blocks for error bars."""

    stats: Stats
    blocks: tuple[Block, ...] = ()
    wider: Cloud | None = field(default=None, repr=False, compare=False)  # what tokens were left out of
    derived: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)
    carried: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)  # can leave blocks out itself
    reference: Cloud | None = None  # the same tokens at another step (layer, model), for metrics of what has moved

    def get(self, kind: type[S]) -> S:
        """A statistic of all rows of the cloud, the extremes included."""
        name = kind.__name__
        if name not in self.derived:
            self.derived[name] = self._whole(name)
        found: S = self.derived[name]
        return found

    def has(self, kind: type) -> bool:
        return kind.__name__ in self.stats

    def derive(self, kind: type[S], make: Callable[[Cloud], S], *, carry: bool) -> S:
        """A value computed once from this cloud; one that can leave blocks out itself is carried along when they go."""
        known = self.carried if carry else self.derived
        if kind.__name__ not in known:
            known[kind.__name__] = make(self)
        found: S = known[kind.__name__]
        return found

    def _whole(self, name: str) -> Any:
        rest = self.stats[name]
        if name not in OF_REST or "Extremes" not in self.stats:
            return rest
        parts = [rest]
        if f"first.{name}" in self.stats:
            parts.append(self.stats[f"first.{name}"])
        extremes: Extremes = self.stats["Extremes"]
        if len(extremes.x):
            parts.append(of_extremes(name, extremes))
        return reduce(add, parts)

    @property
    def n(self) -> int:
        """How many rows there are; for attention, how many rows a head has."""
        if self.has(Attention):
            return int(self.get(Attention).rows.max())
        if self.has(HeadSums):
            return int(self.get(HeadSums).tokens)
        return self.get(Moments).n if self.has(Moments) else self.get(Directions).n

    def without_tokens(self, keys: Tensor, *, first: bool) -> Cloud:
        """The cloud without the tokens of these keys (all of them extremes) and, with `first`, without first tokens.

        Norms are left behind: a histogram cannot forget single rows.
        """
        leave_out = LeaveOut(keys, first)
        blocks = tuple(replace(block, leave_out=leave_out) for block in self.blocks)
        return Cloud(leave_out(self.stats), blocks, wider=self)

    def without_block(self, place: int) -> Cloud:
        """The cloud without the block at this place; neighbours are filtered, not searched again."""
        left_out = self.blocks[place]
        gone = torch.tensor([left_out.number])
        part = left_out.load()
        stats = {
            name: whole.without_block(gone) if isinstance(whole, Sample | Extremes) else _minus(whole, part.get(name))
            for name, whole in self.stats.items()
        }
        return Cloud(stats, carried={name: value.without_block(gone) for name, value in self.carried.items()})


@dataclass(frozen=True)
class LeaveOut:
    """Tokens that do not count: those of these keys, and first tokens of windows if `first`."""

    keys: Tensor
    first: bool

    def __call__(self, stats: Stats) -> Stats:
        out: Stats = {}
        for name, value in stats.items():
            if isinstance(value, Sample):
                gone = torch.isin(value.table[:, 0], self.keys)
                if self.first:
                    gone |= value.rows.tokens.offset == 0
                keep = ~gone
                out[name] = Sample(value.size, value.seen, value.x[keep.to(value.x.device)], value.table[keep])
            elif isinstance(value, Extremes):
                out[name] = value.keeping(~torch.isin(value.table[:, 0].cpu(), self.keys))
            elif not isinstance(value, Norms) and not (self.first and name.startswith("first.")):
                out[name] = value
        return out


@dataclass(frozen=True)
class Block:
    """The statistics of one block: in memory, or in a file of the scratch folder (or of a run)."""

    number: int
    stats: Stats | Path
    more: Stats = field(default_factory=dict)  # what a second look at the rows added
    scratch: Scratch | None = None  # kept alive by the blocks that lie in it
    leave_out: LeaveOut | None = None

    def load(self) -> Stats:
        own = from_arrays(load_file(self.stats)) if isinstance(self.stats, Path) else self.stats
        stats = {**own, **self.more}
        return stats if self.leave_out is None else self.leave_out(stats)


class BlockNumbers:
    """The block of each token of a stream: (tokens before its document) // unit."""

    def __init__(self, unit: int) -> None:
        self._unit = unit
        self._before = 0
        self._document: int | None = None
        self._number = 0

    def of(self, document: Tensor) -> Tensor:
        """The block numbers of the next tokens, whose documents these are, (n,) -> (n,)."""
        starts, ids = segments(document)
        numbers = []
        for start, each in zip(starts.tolist(), ids.tolist(), strict=True):
            if each != self._document:
                self._document, self._number = each, (self._before + start) // self._unit
            numbers.append(self._number)
        lengths = starts.diff(append=torch.tensor([len(document)]))
        self._before += len(document)
        return torch.repeat_interleave(torch.tensor(numbers, dtype=torch.int64), lengths)


class Scratch:
    """A temporary folder that goes when nothing refers to it any more."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="anisoscope-"))
        weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)


class Collector:
    """Adds batches of rows up; `finish` gives the cloud.

    `make` maps names of KINDS to functions rows -> statistic, or leaves the default `of`. Rows at offset 0 of their
    window are kept apart (`first.*`) where `sinks` says so, so that leaving them out later is exact.
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
        precise: bool = False,
    ) -> None:
        names = list(names)
        self._sample_size = sample if "Sample" in names else 0
        self._extreme_size = extremes if set(names) & {"Extremes", *OF_REST} else 0
        self._make: dict[str, Callable[[Rows], Any]] = {
            name: (make or {}).get(name, KINDS[name].of)  # type: ignore[attr-defined]
            for name in names
            if name not in ("Sample", "Extremes")
        }
        if "Moments" in self._make and precise:
            self._make["Moments"] = lambda rows: Moments.of(rows, precise=True)
        self._blocks = blocks
        self._sinks = sinks
        self._level = 0
        self._number: int | None = None
        self._open: Stats = {}
        self._pending: list[Rows] = []
        self._closed: list[Block] = []
        self._samples: list[Sample] = []
        self._scratch: Scratch | None = None

    def add(self, rows: Rows, priority: Tensor | None = None) -> None:
        """Counts these rows; `priority` replaces their norm in choosing the extremes."""
        if not len(rows.tokens):
            return
        if self._sample_size:
            self._keep_sample(rows)
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

    def finish(self) -> Cloud:
        """The cloud of all rows added so far."""
        self._close()
        stats = self._settle()
        if self._sample_size:
            sample = merge_samples(self._samples)
            stats["Sample"] = Sample(sample.size, sample.seen, sample.x, _at_level(sample.table, self._level))
        return Cloud(stats, tuple(self._closed))

    def _keep_sample(self, rows: Rows) -> None:
        below = self._samples[0].highest if self._samples else None
        self._samples.append(Sample.of(rows, self._sample_size, below))
        if len(self._samples) > 16 or sum(len(s.x) for s in self._samples[1:]) > self._sample_size:
            self._samples = [merge_samples(self._samples)]

    def _count(self, number: int, rows: Rows, priority: Tensor | None) -> None:
        self._make_open(number)
        for name in self._make:
            if name not in OF_REST:
                _accumulate(self._open, name, self._make[name](rows))
        if not self._extreme_size:
            return
        if self._sinks:
            first = rows.tokens.offset == 0
            if first.any():
                for name in OF_REST:
                    if name in self._make:
                        _accumulate(self._open, f"first.{name}", self._make[name](rows.take(first.nonzero()[:, 0])))
                others = (~first).nonzero()[:, 0]
                rows = rows.take(others)
                priority = None if priority is None else priority[others.to(priority.device)]
        extremes, rest = split_extremes(rows, self._extreme_size, priority)
        if "Extremes" in self._open:
            extremes, evicted = merge_extremes(self._open["Extremes"], extremes)
            self._pending.append(evicted)
        self._open["Extremes"] = extremes
        self._pending.append(rest)
        if sum(len(r.tokens) for r in self._pending) >= _PENDING:
            self._flush()

    def _raise_level(self, highest: int) -> None:
        """Joins blocks in pairs until the highest block number is below twice the number of blocks wanted."""
        while highest >> self._level >= 2 * self._blocks:
            self._close()
            self._level += 1
            joined: list[Block] = []
            for block in self._closed:
                number = block.number >> 1
                if joined and joined[-1].number == number:
                    joined[-1] = self._store(Block(number, join(joined[-1].load(), block.load(), self._make)))
                else:
                    joined.append(self._store(Block(number, block.load())))
            self._closed = joined

    def _make_open(self, number: int) -> None:
        """Makes the block of this number the open one."""
        if self._number is not None and number != self._number:
            self._close()
        if self._number is None and self._closed and self._closed[-1].number == number:
            self._open = dict(self._closed.pop().load())
        self._number = number

    def _flush(self) -> None:
        waiting = [rows for rows in self._pending if len(rows.tokens)]
        self._pending = []
        if not waiting:
            return
        x = torch.cat([rows.x for rows in waiting]) if len(waiting) > 1 else waiting[0].x
        together = Rows(x, waiting[0].tokens)  # sums over rows do not read the tokens
        for name in OF_REST:
            if name in self._make:
                _accumulate(self._open, name, self._make[name](together))

    def _close(self) -> None:
        if self._number is None:
            return
        self._flush()
        if "Extremes" in self._open:  # a small block may hold nothing else
            none = self._open["Extremes"].keeping(torch.tensor([], dtype=torch.int64)).rows
            for name in OF_REST:
                if name in self._make and name not in self._open:
                    self._open[name] = self._make[name](none)
        self._closed.append(self._store(Block(self._number, self._open)))
        self._open, self._number = {}, None

    def _store(self, block: Block) -> Block:
        """The block, moved to the scratch folder where it is large."""
        assert isinstance(block.stats, dict)
        arrays = to_arrays(block.stats)
        if sum(a.numel() for a in arrays.values()) < _IN_MEMORY:
            return block
        if self._scratch is None:
            self._scratch = Scratch()
        path = self._scratch.path / f"{self._level}-{block.number}.safetensors"
        save_file(arrays, path.with_suffix(".new"))
        path.with_suffix(".new").replace(path)  # the old file may be what these arrays are mapped from
        return Block(block.number, path, scratch=self._scratch)

    def _settle(self) -> Stats:
        """The pooled statistics. Rows that are extreme in their block but not in the whole go back to their block."""
        loaded = [block.load() for block in self._closed]
        if self._extreme_size and loaded:
            kept = [at_level(stats["Extremes"], self._level) for stats in loaded]
            overall = reduce(add, kept)
            lowest = overall.table[:, 0].cpu()
            for place, stats in enumerate(loaded):
                stay = torch.isin(kept[place].table[:, 0].cpu(), lowest)
                stats = {**stats, "Extremes": kept[place].keeping(stay)}
                evicted = kept[place].keeping(~stay)
                if len(evicted.x):
                    for name in OF_REST:
                        if name in self._make:
                            _accumulate(stats, name, of_extremes(name, evicted))
                self._closed[place] = self._store(Block(self._closed[place].number, stats))
                loaded[place] = stats
        total: Stats = {}
        for stats in loaded:
            total = join(total, stats, self._make)
        return total


def join(a: Stats, b: Stats, make: Iterable[str]) -> Stats:
    """The statistics of two blocks together; extremes that are crowded out go to the products."""
    if not a or not b:
        return dict(a or b)
    out = {name: a[name] + b[name] if name in a and name in b else a.get(name, b.get(name)) for name in {**a, **b}}
    if "Extremes" in a and "Extremes" in b:
        out["Extremes"], evicted = merge_extremes(a["Extremes"], b["Extremes"])
        if len(evicted.tokens):
            for name in OF_REST:
                if name in make:
                    _accumulate(out, name, KINDS[name].of(evicted))  # type: ignore[attr-defined]
    return out


def of_extremes(name: str, extremes: Extremes) -> Any:
    """A statistic of rows that were kept; Moments in float64."""
    rows = extremes.rows
    return Moments.of(rows, precise=True) if name == "Moments" else KINDS[name].of(rows)  # type: ignore[attr-defined]


def to_arrays(stats: Stats) -> dict[str, Tensor]:
    """Statistics as named arrays: `Moments/mean`, …; no two of them share memory, which files refuse."""
    arrays: dict[str, Tensor] = {}
    taken: set[int] = set()
    for name, stat in stats.items():
        for key, value in pack(stat).items():
            place = value.untyped_storage().data_ptr()
            arrays[f"{name}/{key}"] = value.clone() if place in taken else value
            taken.add(place)
    return arrays


def from_arrays(arrays: Mapping[str, Tensor]) -> Stats:
    """The inverse of `to_arrays`."""
    grouped: dict[str, dict[str, Tensor]] = {}
    for path, value in arrays.items():
        name, key = path.rsplit("/", 1)
        grouped.setdefault(name, {})[key] = value
    return {name: unpack(KINDS[name.removeprefix("first.")], fields) for name, fields in grouped.items()}


def at_level(extremes: Extremes, level: int) -> Extremes:
    return Extremes(extremes.size, extremes.x, extremes.priority, _at_level(extremes.table, level))


def _at_level(table: Tensor, level: int) -> Tensor:
    """The tokens' table with block numbers of that level."""
    return torch.cat((table[:, :-1], table[:, -1:] >> level), 1)


def _accumulate(stats: Stats, name: str, value: Any) -> None:
    stats[name] = stats[name] + value if name in stats else value


def _minus(whole: Any, part: Any) -> Any:
    return whole if part is None else whole.without(part)
