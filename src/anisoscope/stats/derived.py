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

_STRIP = 64  # rows of the scatters of all blocks that are multiplied together


@dataclass(frozen=True)
class Peeled:
    """Moments of a cloud from which the k rows of largest norm can be removed exactly, for every k up to `held`."""

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
        """Return the moments of all rows except the k largest, and the extremes that remain."""
        left = self.extremes.keeping(torch.arange(k, self.held))
        return with_extremes(self.bulk, left), left


@dataclass(frozen=True)
class Groups:
    """Traces and inner products of the scatters of the blocks about the common mean."""

    sources: ClassVar = (Moments,)
    number: Tensor  # (B,) block numbers
    overlap: Tensor  # (B, B) tr(S_a S_b)
    trace: Tensor  # (B,)

    @classmethod
    def derive(cls, cloud: Cloud) -> Groups:
        """Compute them from S_b = M_b + n_b·o_b·o_bᵀ, with M_b about the block's own mean, o_b its offset."""
        mean = cloud.get(Moments).mean
        by_block = [cloud.of_block(index, Moments) for index in range(len(cloud.blocks))]
        number = torch.tensor([block.number for block in cloud.blocks], dtype=torch.int64)
        if not by_block:
            return cls(number, mean.new_zeros(0, 0), mean.new_zeros(0))
        n = mean.new_tensor([moments.n for moments in by_block])  # (B,)
        off = torch.stack([moments.mean for moments in by_block]) - mean  # (B, d)
        inner = off @ off.T
        # [a, b] = n_b·o_bᵀ·M_a·o_b, the inner product of the scatter of a with the offset of b
        mixed = n * torch.stack([((off @ moments.scatter) * off).sum(1) for moments in by_block])
        overlap = mixed + mixed.T + torch.outer(n, n) * inner.square()
        for first in range(0, len(mean), _STRIP):
            strip = torch.stack([moments.scatter[first : first + _STRIP].flatten() for moments in by_block])
            overlap.addmm_(strip, strip.T)
        return cls(number, overlap, torch.stack([moments.trace for moments in by_block]) + n * inner.diagonal())

    def without_block(self, blocks: Tensor) -> Groups:
        keep = ~torch.isin(self.number, blocks)
        return Groups(self.number[keep], self.overlap[keep][:, keep], self.trace[keep])


@dataclass(frozen=True)
class AcrossDocuments:
    """Sums of unit rows per block, from which the mean cosine of rows in different documents follows.

    With U_c = Σu over document c and n_c its rows, `square` = Σ n_c² and `unit_square` = Σ ‖U_c‖².
    """

    sources: ClassVar = (Directions, Documents, Sample)
    number: Tensor  # (B,) block numbers
    unit: Tensor  # (B, d)
    rows: Tensor  # (B,)
    square: Tensor  # (B,)
    unit_square: Tensor  # (B,)
    sampled: bool  # from the keyed sample: sums over documents cannot leave out single tokens

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
        pieces = [rows.take(index) for index in torch.arange(len(rows.tokens)).split(lengths.tolist())]
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
