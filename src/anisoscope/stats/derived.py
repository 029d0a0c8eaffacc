"""Derived statistics of whole clouds: moments without the largest rows, overlaps of blocks, pairs of documents."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from anisoscope.stats.cloud import Cloud, with_extremes
from anisoscope.stats.directions import Directions
from anisoscope.stats.documents import Documents
from anisoscope.stats.moments import Moments
from anisoscope.stats.sample import Extremes, Sample

_STRIP = 64  # rows of all blocks' scatters that are multiplied together


@dataclass(frozen=True)
class Peeled:
    """Moments of a cloud from which the k rows of largest norm can be taken, exactly, for every k up to `held`."""

    sources: ClassVar = (Moments, Extremes)
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

    sources: ClassVar = (Moments,)
    number: Tensor  # (B,) block numbers
    overlap: Tensor  # (B, B) tr(S_a S_b)
    trace: Tensor  # (B,)

    @classmethod
    def derive(cls, cloud: Cloud) -> Groups:
        """S_b is the block's own scatter M_b and n_b o_b o_bᵀ, o_b its mean's offset: no S_b needs to be made."""
        mean = cloud.get(Moments).mean
        own = [cloud.of_block(place, Moments) for place in range(len(cloud.blocks))]
        number = torch.tensor([block.number for block in cloud.blocks], dtype=torch.int64)
        if not own:
            return cls(number, mean.new_zeros(0, 0), mean.new_zeros(0))
        n = mean.new_tensor([moments.n for moments in own])  # (B,)
        off = torch.stack([moments.mean for moments in own]) - mean  # (B, d)
        inner = off @ off.T
        # [a, b] = n_b o_bᵀ M_a o_b, the inner product of a's own scatter with b's offset
        mixed = n * torch.stack([((off @ moments.scatter) * off).sum(1) for moments in own])
        overlap = mixed + mixed.T + torch.outer(n, n) * inner.square()
        for first in range(0, len(mean), _STRIP):
            strip = torch.stack([moments.scatter[first : first + _STRIP].flatten() for moments in own])
            overlap.addmm_(strip, strip.T)
        return cls(number, overlap, torch.stack([moments.trace for moments in own]) + n * inner.diagonal())

    def without_block(self, blocks: Tensor) -> Groups:
        keep = ~torch.isin(self.number, blocks)
        return Groups(self.number[keep], self.overlap[keep][:, keep], self.trace[keep])


@dataclass(frozen=True)
class AcrossDocuments:
    """What rows of different documents share, by block: Σu, rows with a direction, and sums over documents of both.

    With U_c = Σu over document c and n_c its rows, `square` = Σ n_c² and `unit_square` = Σ ‖U_c‖².
    """

    sources: ClassVar = (Directions, Documents, Sample)
    number: Tensor  # (B,) block numbers
    unit: Tensor  # (B, d)
    rows: Tensor  # (B,)
    square: Tensor  # (B,)
    unit_square: Tensor  # (B,)
    sampled: bool  # from the keyed sample: where tokens were left out, sums over documents cannot forget them

    @classmethod
    def derive(cls, cloud: Cloud) -> AcrossDocuments:
        if cloud.unfiltered is None:
            numbers = [block.number for block in cloud.blocks]
            parts = [(cloud.of_block(i, Directions), cloud.of_block(i, Documents)) for i in range(len(numbers))]
            return cls._of(numbers or [0], parts or [(cloud.get(Directions), cloud.get(Documents))], sampled=False)
        rows = cloud.get(Sample).rows
        by_document = torch.sort(rows.tokens.document, stable=True).indices
        by_block = torch.sort(rows.tokens.block[by_document], stable=True).indices
        rows = rows.take(by_document[by_block])
        numbers, lengths = torch.unique_consecutive(rows.tokens.block, return_counts=True)
        pieces = [rows.take(place) for place in torch.arange(len(rows.tokens)).split(lengths.tolist())]
        parts = [(Directions.of(piece), Documents.of(piece)) for piece in pieces]
        return cls._of(numbers.tolist(), parts, sampled=True)

    @classmethod
    def _of(cls, numbers: list[int], parts: list[tuple[Directions, Documents]], *, sampled: bool) -> AcrossDocuments:
        return cls(
            torch.tensor(numbers, dtype=torch.int64),
            torch.stack([directions.unit.cpu() for directions, _ in parts]),
            torch.tensor([directions.directed for directions, _ in parts], dtype=torch.float64),
            torch.tensor([documents.all_square for _, documents in parts], dtype=torch.float64),
            torch.tensor([documents.all_unit_square for _, documents in parts], dtype=torch.float64),
            sampled,
        )

    def without_block(self, blocks: Tensor) -> AcrossDocuments:
        keep = ~torch.isin(self.number, blocks)
        sums = (self.unit[keep], self.rows[keep], self.square[keep], self.unit_square[keep])
        return AcrossDocuments(self.number[keep], *sums, self.sampled)
