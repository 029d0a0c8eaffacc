"""`Cloud`: the collected statistics of one site, and the blocks of documents that error bars leave out."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
from safetensors import safe_open
from torch import Tensor

from anisoscope.errors import InputError
from anisoscope.stats.directions import Directions
from anisoscope.stats.head_norms import HeadNorms
from anisoscope.stats.head_scores import Attention
from anisoscope.stats.head_sums import HeadSums
from anisoscope.stats.moments import Moments
from anisoscope.stats.packing import pack, unpack
from anisoscope.stats.registry import COLLECTED, PREFIXES, SUMS, UNFORGETTING, is_derived, leaves_blocks_out
from anisoscope.stats.router_sums import RouterSums
from anisoscope.stats.sample import Extremes, Sample, merge_extremes
from anisoscope.stats.scratch import Scratch

S = TypeVar("S")
Stats = dict[str, Any]  # statistics of one block or of all, by name: "Moments", "first.Moments", "Norms", …
HELD_NUMBERS = 24 << 20  # numbers that all blocks of a finished cloud may hold in memory: it is evaluated next


class Cloud:
    """The statistics of all rows of one site, with the blocks of documents that error bars leave out.

    A cloud is made once all rows are collected, and its statistics do not change. What metrics derive from it is
    computed on first use and kept until the cloud is garbage collected, because several metrics share it. The
    statistics of single blocks are kept too, if they are small; `release_blocks` frees them after the evaluation.

    Attributes:
        stats: Collected statistics by name. Extremes, and first tokens of windows (`first.*`), are stored separately
            from the sums; `get` returns sums and extremes of all rows.
        blocks: Blocks of documents, in the order of the data.
        reference: The same tokens at another step, layer or model, for metrics that compare two clouds.
        unfiltered: The cloud with all tokens, if this one is the result of `without_tokens`.
    """

    def __init__(
        self,
        stats: Stats,
        blocks: Iterable[Block] = (),
        *,
        reference: Cloud | None = None,
        unfiltered: Cloud | None = None,
    ) -> None:
        self.stats = stats
        self.blocks = tuple(blocks)
        self.reference = reference
        self.unfiltered = unfiltered
        self._known: dict[type, Any] = {}  # sums with their extremes, and all derived statistics
        self._of_block: dict[tuple[type, int], Any] = {}

    def __repr__(self) -> str:
        return f"Cloud({', '.join(self.stats)}; {len(self.blocks)} blocks)"

    def get(self, kind: type[S]) -> S:
        """Return a statistic of all rows, collected or derived.

        Raises:
            KeyError: The statistic, or one that it is derived from, was not collected.
        """
        if kind not in self._known:
            self._known[kind] = cast(Any, kind).derive(self) if is_derived(kind) else self._whole(kind.__name__)
        return cast(S, self._known[kind])

    def has(self, kind: type) -> bool:
        """Return whether the statistic was collected, or derived before."""
        return kind.__name__ in self.stats or kind in self._known

    def derived(self, kind: type[S]) -> S | None:
        """Return a derived statistic if it was made before; None otherwise."""
        return self._known.get(kind)

    def _whole(self, name: str) -> Any:
        first = self.stats.get(f"first.{name}")
        whole = self.stats[name] if first is None else self.stats[name] + first
        return with_extremes(whole, self.get(Extremes)) if name in SUMS and "Extremes" in self.stats else whole

    @property
    def n(self) -> int:
        """Number of rows; for attention, the number of rows per head."""
        if self.has(Attention):
            return int(self.get(Attention).rows.max())
        if self.has(RouterSums):
            return int(self.get(RouterSums).tokens)
        if self.has(HeadNorms):
            return int(self.get(HeadNorms).tokens)
        if self.has(HeadSums):
            return int(self.get(HeadSums).tokens)
        return self.get(Moments).n if self.has(Moments) else self.get(Directions).n

    def of_block(self, index: int, kind: type[S]) -> S:
        """Return a collected statistic of all rows of one block.

        It is kept until `release_blocks`, unless those of all blocks would take too much memory.
        """
        if (kind, index) in self._of_block:
            return cast(S, self._of_block[kind, index])
        value = Cloud(self.blocks[index].load()).get(kind)
        if len(self.blocks) * sum(x.numel() for x in vars(value).values() if isinstance(x, Tensor)) <= HELD_NUMBERS:
            self._of_block[kind, index] = value
        return value

    def release_blocks(self) -> None:
        """Free the statistics of single blocks that `of_block` keeps. They are loaded again if they are needed."""
        self._of_block.clear()

    def with_stats(self, stats: Stats, blocks: Iterable[Block]) -> Cloud:
        """Return the cloud with additional statistics and these blocks.

        Both clouds share what is derived from either of them: a search for neighbours serves both.
        """
        cloud = Cloud({**self.stats, **stats}, blocks, unfiltered=self.unfiltered)
        cloud._known = self._known
        return cloud

    def with_reference(self, reference: Cloud, only: Container[str] | None = None) -> Cloud:
        """Return the cloud paired with another one of the same tokens, for metrics that compare the two.

        Args:
            reference: The other cloud.
            only: Names of the collected statistics to keep. None keeps all of them.
        """
        stats = {name: value for name, value in self.stats.items() if only is None or name in only}
        cloud = Cloud(stats, self.blocks if only is None else (), reference=reference)
        cloud._known = {k: v for k, v in self._known.items() if not getattr(k, "compares", False)}
        return cloud

    def require_reference(self) -> Cloud:
        """Return the reference.

        Raises:
            InputError: The cloud has no reference.
        """
        if self.reference is None:
            raise InputError("This cloud has no reference to compare with. Use cloud.with_reference(reference).")
        return self.reference

    def without_tokens(self, keys: Tensor, *, first: bool) -> Cloud:
        """Return the cloud without some tokens.

        Statistics that cannot forget single rows, such as histograms, are dropped (`UNFORGETTING`).

        Args:
            keys: Keys of the tokens to leave out, all of them extremes.
            first: Also leave out the first tokens of windows.
        """
        token_filter = TokenFilter(keys, first)
        blocks = [replace(block, token_filter=token_filter) for block in self.blocks]
        return Cloud(token_filter(self.stats), blocks, unfiltered=self)

    def without_block(self, index: int, *, exact_extremes: bool = True, sample: bool = True) -> Cloud:
        """Return the cloud without one block, itself without blocks.

        Neighbours and other derived statistics that can leave out blocks are filtered, not computed again.

        Args:
            index: Index of the block in `blocks`.
            exact_extremes: Keep the extremes separate from the sums, for metrics that remove extremes one by one.
                Without it, sums are found by one subtraction, in a fifth of the time.
            sample: Keep the sample. Without it, its rows are not copied.
        """
        block = self.blocks[index]
        removed = torch.tensor([block.number])
        part = block.load()
        subtract = not exact_extremes and "Extremes" in self.stats
        sums = [name for name in SUMS if name in self.stats] if subtract else []
        stats = {}
        for name, whole in self.stats.items():
            if name.removeprefix("first.") in sums or (name == "Sample" and not sample):
                continue
            if isinstance(whole, Sample | Extremes):
                stats[name] = whole.without_block(removed)
            else:
                stats[name] = whole.without(part[name]) if name in part else whole
        cloud = Cloud(stats, unfiltered=self.unfiltered)
        for name in sums:
            kind = COLLECTED[name]
            cloud._known[kind] = self.get(kind).without(self.of_block(index, kind))
        for kind, value in tuple(self._known.items()):  # other threads may add to it
            if leaves_blocks_out(kind):
                cloud._known[kind] = value.without_block(removed)
        return cloud


@dataclass(frozen=True)
class TokenFilter:
    """Leaves tokens out of collected statistics: those with these keys, and first tokens of windows if `first`."""

    keys: Tensor
    first: bool

    def __call__(self, stats: Stats) -> Stats:
        out: Stats = {}
        for name, value in stats.items():
            if self.first and name.startswith("first."):
                continue
            if isinstance(value, Sample):
                drop = torch.isin(value.table[:, 0], self.keys)
                if self.first:
                    drop |= value.rows.tokens.offset == 0
                keep = ~drop
                out[name] = Sample(value.size, value.seen, value.x[keep.to(value.x.device)], value.table[keep])
            elif isinstance(value, Extremes):
                out[name] = value.keeping(~torch.isin(value.table[:, 0].cpu(), self.keys))
            elif name not in UNFORGETTING:
                out[name] = value
        return out


@dataclass(frozen=True)
class Block:
    """The statistics of one block of documents: in memory, or in a file of a scratch folder or a run."""

    number: int
    stats: Stats | Path
    more: Stats = field(default_factory=dict)  # statistics from a second pass over the rows
    scratch: Scratch | None = None  # kept alive by the blocks whose files it holds
    token_filter: TokenFilter | None = None

    def load(self, names: Container[str] | None = None) -> Stats:
        """Return a new dict of all statistics, or of those with these names."""
        stored = _from_file(self.stats, names) if isinstance(self.stats, Path) else self.stats
        stats = {name: value for name, value in {**stored, **self.more}.items() if names is None or name in names}
        return stats if self.token_filter is None else self.token_filter(stats)


def _from_file(path: Path, names: Container[str] | None) -> Stats:
    with safe_open(path, "pt") as file:
        wanted = [name for name in file.keys() if names is None or name.rsplit("/", 1)[0] in names]  # noqa: SIM118
        return from_arrays({name: file.get_tensor(name) for name in wanted})


def join(a: Stats, b: Stats, make: Iterable[str]) -> Stats:
    """Add the statistics of two blocks.

    Args:
        a: Statistics of one block.
        b: Statistics of the other.
        make: Names of the sums to which rows are added that are extreme in one block but not in both.
    """
    if not a or not b:
        return dict(a or b)
    out = {name: a[name] + b[name] if name in a and name in b else a.get(name, b.get(name)) for name in {**a, **b}}
    for prefix in PREFIXES:
        extremes = f"{prefix}Extremes"
        if extremes in a and extremes in b:
            out[extremes], evicted = merge_extremes(a[extremes], b[extremes])
            for name in SUMS if len(evicted.tokens) else ():
                if name in make:
                    accumulate(out, prefix + name, COLLECTED[name].of(evicted))
    return out


def with_extremes(sums: Any, extremes: Extremes) -> Any:
    """Add the extremes to a sum that left them out; Moments in float64."""
    if not len(extremes.x):
        return sums
    return sums.with_rows(extremes.x) if isinstance(sums, Moments) else sums + type(sums).of(extremes.rows)


def to_arrays(stats: Stats) -> dict[str, Tensor]:
    """Return statistics as named arrays (`Moments/mean`, …), no two of which share memory: files refuse that."""
    arrays: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, stat in stats.items():
        for key, value in pack(stat).items():
            pointer = value.untyped_storage().data_ptr()
            arrays[f"{name}/{key}"] = value.clone() if pointer in seen else value
            seen.add(pointer)
    return arrays


def from_arrays(arrays: Mapping[str, Tensor]) -> Stats:
    """Rebuild statistics from the arrays that `to_arrays` returned."""
    grouped: dict[str, dict[str, Tensor]] = {}
    for path, value in arrays.items():
        name, key = path.rsplit("/", 1)
        grouped.setdefault(name, {})[key] = value
    return {name: unpack(COLLECTED[name.removeprefix("first.")], group) for name, group in grouped.items()}


def on_device(stats: Stats, device: torch.device) -> Stats:
    """Move statistics to a device, except tables (which stay on the CPU) and sums of MPS rows (it has no float64)."""
    if device.type in ("cpu", "mps"):
        return stats
    moved = {}
    for name, stat in stats.items():
        arrays = {f.name: getattr(stat, f.name) for f in fields(stat)}
        cpu = {"table", "open_id", "head_table", "tail_table", "lengths"}
        moved[name] = type(stat)(
            **{key: x.to(device) if isinstance(x, Tensor) and key not in cpu else x for key, x in arrays.items()}
        )
    return moved


def at_level(extremes: Extremes, level: int) -> Extremes:
    """Return the extremes with block numbers of a level: neighbouring blocks were joined `level` times."""
    return replace(extremes, table=table_at_level(extremes.table, level))


def table_at_level(table: Tensor, level: int) -> Tensor:
    """Return the tokens' table with block numbers of a level."""
    return torch.cat((table[:, :-1], table[:, -1:] >> level), 1)


def accumulate(stats: Stats, name: str, value: Any) -> None:
    """Add a statistic to the one of this name, in place."""
    stats[name] = stats[name] + value if name in stats else value
