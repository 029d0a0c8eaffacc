"""Statistics made from other statistics once a cloud is collected: the table of them, peeled moments, overlaps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from anisoscope.stats.blocks import Cloud, with_extremes
from anisoscope.stats.directions import Directions
from anisoscope.stats.documents import Documents
from anisoscope.stats.moments import Moments
from anisoscope.stats.neighbourhoods import LocalDimensions, Neighbours, TwoNeighbours
from anisoscope.stats.pairs import Axes, Paired, PairedAxes, PairedHeads
from anisoscope.stats.sample import Extremes, Sample
from anisoscope.stats.words import Sentences, Words

S = TypeVar("S")


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
        return with_extremes(self.bulk, left), left


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
class AcrossDocuments:
    """What rows of different documents share: Σu over all rows, and the sums over documents."""

    unit: Tensor  # (d,) Σ u
    directed: int  # rows that have a direction
    documents: Documents
    sampled: bool  # from the keyed sample: where tokens were left out, sums over documents cannot forget them
    block_unit: Tensor  # (B, d) Σ u by block; empty once a block has been left out
    block_rows: Tensor  # (B,) rows that have a direction

    @classmethod
    def derive(cls, cloud: Cloud) -> AcrossDocuments:
        if cloud.wider is None:
            parts = [Cloud(block.load()).get(Directions) for block in cloud.blocks]
            return cls._of(cloud.get(Directions), cloud.get(Documents), parts, sampled=False)
        rows = cloud.get(Sample).rows
        rows = rows.take(torch.sort(rows.tokens.document, stable=True).indices)
        block = rows.tokens.block
        numbers = block.unique() if cloud.blocks else []  # a replicate has none, and needs none
        parts = [Directions.of(rows.take((block == number).nonzero()[:, 0])) for number in numbers]
        return cls._of(Directions.of(rows), Documents.of(rows), parts, sampled=True)

    @classmethod
    def _of(cls, whole: Directions, documents: Documents, parts: list[Directions], *, sampled: bool) -> AcrossDocuments:
        unit = torch.stack([part.unit for part in parts]) if parts else whole.unit.new_zeros(0, whole.dim)
        rows = whole.unit.new_tensor([part.directed for part in parts])
        return cls(whole.unit, whole.directed, documents, sampled, unit, rows)


@dataclass(frozen=True)
class _Recipe:
    sources: tuple[str, ...]
    make: Callable[[Cloud], Any]
    carry: bool  # leaves blocks out itself, so that it need not be made again


DERIVED: dict[type, _Recipe] = {
    Peeled: _Recipe(("Moments", "Extremes"), Peeled.derive, carry=False),
    Groups: _Recipe(("Moments",), Groups.derive, carry=True),
    AcrossDocuments: _Recipe(("Directions", "Documents", "Sample"), AcrossDocuments.derive, carry=False),
    Neighbours: _Recipe(("Sample",), Neighbours.derive, carry=True),
    TwoNeighbours: _Recipe(("Sample",), TwoNeighbours.derive, carry=True),
    LocalDimensions: _Recipe(("Sample",), LocalDimensions.derive, carry=True),
    Words: _Recipe(("Sample",), Words.derive, carry=True),
    Sentences: _Recipe(("Sample",), Sentences.derive, carry=True),
    Paired: _Recipe(("Sample",), Paired.derive, carry=False),
    Axes: _Recipe(("Sample",), Axes.derive, carry=False),
    PairedAxes: _Recipe(("Sample",), PairedAxes.derive, carry=False),
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
