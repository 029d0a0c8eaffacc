"""What was collected of a cloud: pooled statistics, kept rows, and the blocks that can be left out for error bars."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import reduce
from operator import add
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
from safetensors import safe_open
from torch import Tensor

from anisoscope.stats.directions import CentredDirections, Directions, UnitSquares
from anisoscope.stats.documents import Documents
from anisoscope.stats.head_scores import Attention
from anisoscope.stats.head_sums import HeadSums
from anisoscope.stats.moments import Moments
from anisoscope.stats.packing import pack, unpack
from anisoscope.stats.partition import Partition
from anisoscope.stats.row_norms import Norms
from anisoscope.stats.sample import Extremes, Sample, merge_extremes

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
HELD = 24 << 20  # numbers that all blocks of a finished cloud may hold in memory together: it is evaluated next
SECOND_LOOK = ("CentredDirections", "Partition")  # need the pooled Moments first


@dataclass(frozen=True)
class Cloud:
    """All that was collected of one cloud of rows: pooled statistics, kept rows, and the blocks for error bars."""

    stats: Stats
    blocks: tuple[Block, ...] = ()
    wider: Cloud | None = field(default=None, repr=False, compare=False)  # what tokens were left out of
    derived: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)
    carried: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)  # can leave blocks out itself
    by_block: dict[tuple[str, int], Any] = field(default_factory=dict, repr=False, compare=False)
    reference: Cloud | None = None  # the same tokens at another step (layer, model), for metrics of what has moved

    def get(self, kind: type[S]) -> S:
        """A statistic of all rows of the cloud, the extremes included."""
        name = kind.__name__
        if name not in self.derived:
            self.derived[name] = self._whole(name)
        found: S = self.derived[name]
        return found

    def has(self, kind: type) -> bool:
        return kind.__name__ in self.stats or kind.__name__ in self.derived

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
        return with_extremes(reduce(add, parts), self.stats["Extremes"])

    @property
    def n(self) -> int:
        """How many rows there are; for attention, how many rows a head has."""
        if self.has(Attention):
            return int(self.get(Attention).rows.max())
        if self.has(HeadSums):
            return int(self.get(HeadSums).tokens)
        return self.get(Moments).n if self.has(Moments) else self.get(Directions).n

    def of_block(self, place: int, kind: type[S]) -> S:
        """A statistic of all rows of the block at this place.

        Unless all blocks' would take much memory it is made once: overlaps and replicates take the same.
        """
        if (kind.__name__, place) in self.by_block:
            return cast(S, self.by_block[kind.__name__, place])
        found = Cloud(self.blocks[place].load()).get(kind)
        if len(self.blocks) * sum(x.numel() for x in vars(found).values() if isinstance(x, Tensor)) <= HELD:
            self.by_block[kind.__name__, place] = found
        return found

    def without_tokens(self, keys: Tensor, *, first: bool) -> Cloud:
        """The cloud without the tokens of these keys (all of them extremes) and, with `first`, without first tokens.

        Norms are left behind: a histogram cannot forget single rows.
        """
        leave_out = LeaveOut(keys, first)
        blocks = tuple(replace(block, leave_out=leave_out) for block in self.blocks)
        return Cloud(leave_out(self.stats), blocks, wider=self)

    def without_block(self, place: int, *, peel: bool = True, sample: bool = True) -> Cloud:
        """The cloud without the block at this place; neighbours are filtered, not searched again.

        Unless rows are to be peeled off what is left, sums over all rows are had by one subtraction: a fifth of the
        work of bringing the extremes in again. Where nobody reads the `sample`, it is not copied.
        """
        left_out = self.blocks[place]
        gone = torch.tensor([left_out.number])
        part = left_out.load()
        sums = [] if peel or "Extremes" not in self.stats else [name for name in OF_REST if name in self.stats]
        stats = {
            name: whole.without_block(gone) if isinstance(whole, Sample | Extremes) else _minus(whole, part.get(name))
            for name, whole in self.stats.items()
            if name.removeprefix("first.") not in sums and (sample or name != "Sample")
        }
        derived: dict[str, Any] = {
            name: self.get(KINDS[name]).without(self.of_block(place, KINDS[name])) for name in sums
        }
        carried = {name: value.without_block(gone) for name, value in self.carried.items()}
        return Cloud(stats, wider=self.wider, derived=derived, carried=carried)


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

    def load(self, names: Container[str] | None = None) -> Stats:
        """All its statistics, or those of these names, in a table of its own."""
        own = _from_file(self.stats, names) if isinstance(self.stats, Path) else self.stats
        stats = {name: value for name, value in {**own, **self.more}.items() if names is None or name in names}
        return stats if self.leave_out is None else self.leave_out(stats)


def _from_file(path: Path, names: Container[str] | None) -> Stats:
    with safe_open(path, "pt") as file:
        wanted = [name for name in file.keys() if names is None or name.rsplit("/", 1)[0] in names]  # noqa: SIM118
        return from_arrays({name: file.get_tensor(name) for name in wanted})


class Scratch:
    """A temporary folder that goes when nothing refers to it any more."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="anisoscope-"))
        weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)


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
                    accumulate(out, name, KINDS[name].of(evicted))  # type: ignore[attr-defined]
    return out


def with_extremes(sums: Any, extremes: Extremes) -> Any:
    """A statistic of rows with those of rows that were kept; Moments in float64."""
    if not len(extremes.x):
        return sums
    return sums.with_rows(extremes.x) if isinstance(sums, Moments) else sums + type(sums).of(extremes.rows)


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


def on_device(stats: Stats, device: torch.device) -> Stats:
    """The same statistics with their arrays on a device, except what lives on the CPU anyway (tables, MPS sums)."""
    if device.type in ("cpu", "mps"):
        return stats
    moved = {}
    for name, stat in stats.items():
        arrays = {f.name: getattr(stat, f.name) for f in fields(stat)}
        cpu = {"table", "open_id"}
        moved[name] = type(stat)(
            **{key: x.to(device) if isinstance(x, Tensor) and key not in cpu else x for key, x in arrays.items()}
        )
    return moved


def at_level(extremes: Extremes, level: int) -> Extremes:
    return replace(extremes, table=table_at_level(extremes.table, level))


def table_at_level(table: Tensor, level: int) -> Tensor:
    """The tokens' table with block numbers of that level."""
    return torch.cat((table[:, :-1], table[:, -1:] >> level), 1)


def accumulate(stats: Stats, name: str, value: Any) -> None:
    stats[name] = stats[name] + value if name in stats else value


def _minus(whole: Any, part: Any) -> Any:
    return whole if part is None else whole.without(part)
