"""Statistics made from other statistics, once a cloud is collected: peeled moments, group overlaps, neighbours."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from anisoscope.stats.blocks import Cloud, of_extremes
from anisoscope.stats.moments import Moments
from anisoscope.stats.neighbours import nearest, unique_rows
from anisoscope.stats.pairs import Paired, PairedHeads
from anisoscope.stats.sample import Extremes, Sample

S = TypeVar("S")
_NEIGHBOURS = 32  # for dimensions by scale
_TWO = 4  # for two neighbours, with a little reserve for those in other documents


@dataclass(frozen=True)
class Peeled:
    """Moments of a cloud from which the k rows of largest norm can be taken, exactly, for every k up to `held`."""

    bulk: Moments
    extremes: Extremes

    @classmethod
    def derive(cls, cloud: Cloud) -> Peeled:
        bulk = cloud.stats["Moments"]
        first = cloud.stats.get("first.Moments")
        return cls(bulk + first if first else bulk, cloud.get(Extremes))

    @property
    def held(self) -> int:
        return len(self.extremes.x)

    @property
    def n(self) -> int:
        return self.bulk.n + self.held

    def without_largest(self, k: int) -> tuple[Moments, Extremes]:
        """The moments of all rows but the k largest, and the extremes among them."""
        left = self.extremes.keeping(torch.arange(k, self.held))
        return self.bulk + of_extremes("Moments", left) if len(left.x) else self.bulk, left


@dataclass(frozen=True)
class Groups:
    """Traces of the blocks' scatters about the common mean, and their inner products."""

    number: Tensor  # (B,) block numbers
    overlap: Tensor  # (B, B) tr(S_a S_b)
    trace: Tensor  # (B,)

    @classmethod
    def derive(cls, cloud: Cloud) -> Groups:
        mean = cloud.get(Moments).mean
        scatters = []
        for block in cloud.blocks:
            own = Cloud(block.load()).get(Moments)
            off = own.mean - mean
            scatters.append(torch.addr(own.scatter, off, off, alpha=own.n).flatten())
        if not scatters:
            return cls(torch.zeros(0, dtype=torch.int64), mean.new_zeros(0, 0), mean.new_zeros(0))
        stacked = torch.stack(scatters)  # (B, d²)
        d = len(mean)
        return cls(
            torch.tensor([block.number for block in cloud.blocks]),
            stacked @ stacked.T,
            stacked[:, :: d + 1].sum(1),
        )

    def without_block(self, blocks: Tensor) -> Groups:
        keep = ~torch.isin(self.number, blocks)
        return Groups(self.number[keep], self.overlap[keep][:, keep], self.trace[keep])


@dataclass(frozen=True)
class Neighbours:
    """Distances of each distinct row of the sample to its nearest others, the rows themselves, and their documents."""

    x: Tensor  # (n, d) the distinct rows
    distance: Tensor  # (q, K) float64 ascending, for the rows asked about
    index: Tensor  # (q, K) into x
    other: Tensor  # (q, 2) float64, distances to the two nearest rows of other documents; empty if all are other
    copies: Tensor  # (n,) how often each distinct row occurs in the sample
    row: Tensor  # (q,) which rows of x are asked about
    block: Tensor  # (q,)
    same_document: Tensor  # (q,) bool: the nearest row is of the same document

    @classmethod
    def derive(cls, cloud: Cloud, most: int = _NEIGHBOURS) -> Neighbours:
        sample = cloud.get(Sample)
        first, _ = unique_rows(sample.x)
        x = sample.x[first.to(sample.x.device)]
        tokens = sample.rows.tokens.take(first)
        k = min(most, len(x) - 1)
        none = torch.zeros(len(x), 0, dtype=torch.float64)
        copies = _copies(sample.x, first)
        if k < 2:
            short = torch.zeros(len(x), k, dtype=torch.float64)
            same = torch.zeros(len(x), dtype=torch.bool)
            return cls(x, short, short.long(), none, copies, torch.arange(len(x)), tokens.block, same)
        found = nearest(x, k)
        document = tokens.document
        same = document[found.index] == document[:, None]  # (n, k)
        other = _others(x, document, found.distance, same) if same.any() else none
        return cls(x, found.distance, found.index, other, copies, torch.arange(len(x)), tokens.block, same[:, 0])

    def without_block(self, blocks: Tensor) -> Neighbours:
        """The same neighbours, asked about rows of other blocks only: a jackknife over documents without a search."""
        keep = ~torch.isin(self.block, blocks)
        return Neighbours(
            self.x,
            self.distance[keep],
            self.index[keep],
            self.other[keep],
            self.copies,
            self.row[keep],
            self.block[keep],
            self.same_document[keep],
        )


@dataclass(frozen=True)
class TwoNeighbours:
    """The first neighbours alone: a third of the work, unless the whole neighbourhoods are known already."""

    found: Neighbours

    @classmethod
    def derive(cls, cloud: Cloud) -> TwoNeighbours:
        known = cloud.carried.get(Neighbours.__name__)
        return cls(Neighbours.derive(cloud, _TWO) if known is None else known)

    def without_block(self, blocks: Tensor) -> TwoNeighbours:
        return TwoNeighbours(self.found.without_block(blocks))


def _copies(x: Tensor, first: Tensor) -> Tensor:
    """How often each distinct row occurs, in the order of first occurrence."""
    count = torch.ones(len(first), dtype=torch.int64)
    if len(first) == len(x):
        return count
    rows = (x.detach().cpu() + 0.0).contiguous().view(torch.uint8)  # −0.0 and 0.0 are one number
    place = {rows[i].numpy().tobytes(): j for j, i in enumerate(first.tolist())}
    again = torch.ones(len(x), dtype=torch.bool).index_fill(0, first, False).nonzero()[:, 0]
    for i in again.tolist():
        count[place[rows[i].numpy().tobytes()]] += 1
    return count


def _others(x: Tensor, document: Tensor, distance: Tensor, same: Tensor) -> Tensor:
    """Distances to the two nearest rows of other documents; searched again only where the list ran out."""
    far = distance.masked_fill(same, torch.inf).sort(1).values[:, :2].contiguous()  # (n, 2)
    short = (~far.isfinite()).any(1).nonzero()[:, 0]
    if len(short) > len(x) // 20:
        return nearest(x, 2, group=document).distance
    centred = x.double() - x.double().mean(0)
    for part in short.split(256):
        away = torch.cdist(centred[part], centred, compute_mode="donot_use_mm_for_euclid_dist").cpu()
        away = away.masked_fill(document[part, None] == document[None], torch.inf)
        far[part] = away.topk(min(2, len(x)), largest=False).values
    return far


@dataclass(frozen=True)
class _Recipe:
    sources: tuple[str, ...]
    make: Callable[[Cloud], Any]
    carry: bool  # leaves blocks out itself, so that it need not be made again


DERIVED: dict[type, _Recipe] = {
    Peeled: _Recipe(("Moments", "Extremes"), Peeled.derive, carry=False),
    Groups: _Recipe(("Moments",), Groups.derive, carry=True),
    Neighbours: _Recipe(("Sample",), Neighbours.derive, carry=True),
    TwoNeighbours: _Recipe(("Sample",), TwoNeighbours.derive, carry=True),
    Paired: _Recipe(("Sample",), Paired.derive, carry=False),
    PairedHeads: _Recipe(("HeadSums",), PairedHeads.derive, carry=False),
}


def sources(kind: type) -> tuple[str, ...]:
    """The names of the statistics to collect for this kind."""
    return DERIVED[kind].sources if kind in DERIVED else (kind.__name__,)


def resolve(cloud: Cloud, kind: type[S]) -> S:
    """A statistic of the cloud, collected or derived."""
    if kind not in DERIVED:
        return cloud.get(kind)
    recipe = DERIVED[kind]
    found: S = cloud.derive(kind, recipe.make, carry=recipe.carry)
    return found
