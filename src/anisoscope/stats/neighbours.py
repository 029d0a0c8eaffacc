"""Neighbours of the sampled rows: searched once per cloud, then filtered for fewer blocks or fewer tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from anisoscope.stats.cloud import Cloud
from anisoscope.stats.knn import nearest, unique_rows
from anisoscope.stats.rows import Tokens
from anisoscope.stats.sample import Sample

LISTED = 32  # neighbours per row, for dimensions by scale
_RESERVE = 4  # more neighbours, so that most lists stay long enough if a few tokens are left out
_LOCAL_ROWS, _LOCAL_AT_ONCE = 256, 16  # rows whose local dimension is computed, in total and at a time
LOCAL_SHARE = 0.95
_TWO = 4  # neighbours per row for two neighbours: some may be in the same document


@dataclass(frozen=True)
class Neighbours:
    """Distances from each distinct row of the sample to its nearest rows, and facts about their documents."""

    sources: ClassVar = (Sample,)
    x: Tensor  # (n, d) the distinct rows
    distance: Tensor  # (q, K) float64 ascending, for the queried rows
    index: Tensor  # (q, K) into x
    other: Tensor  # (q, 2) float64, distances to the two nearest rows of other documents; empty if all are other
    other_index: Tensor  # (q, 2) into x, likewise
    copies: Tensor  # (n,) number of occurrences of each distinct row in the sample
    row: Tensor  # (q,) the queried rows, indices into x
    block: Tensor  # (q,)
    same_document: Tensor  # (q,) bool: the nearest row is of the same document
    key: Tensor  # (m,) keys of all sampled rows
    distinct: Tensor  # (m,) index into x of each sampled row

    @classmethod
    def derive(cls, cloud: Cloud, most: int = LISTED + _RESERVE) -> Neighbours:
        sample = cloud.get(Sample)
        unfiltered = None if cloud.unfiltered is None else cloud.unfiltered.derived(cls)
        if unfiltered is not None:
            return unfiltered.among(sample)
        first, _ = unique_rows(sample.x)
        distinct = _distinct(sample.x, first)
        x = sample.x[first.to(sample.x.device)]
        k = min(most, len(x) - 1)
        short = torch.zeros(len(x), k, dtype=torch.float64)
        distance, index = (short, short.long()) if k < 2 else _search(x, k)
        return _build(x, sample, first, distinct, distance, index)

    def among(self, sample: Sample) -> Neighbours:
        """Return the neighbours within a part of the sample: lists are filtered, short ones searched again."""
        kept = torch.isin(self.key, sample.table[:, 0].cpu()).nonzero()[:, 0]  # (m',) into the sample
        row = self.distinct[kept]  # (m',) into x
        count = len(kept)
        first = torch.full((len(self.x),), count).scatter_reduce(0, row, torch.arange(count), "amin")  # (n,)
        order = first.argsort(stable=True)[: int((first < count).sum())]  # (n',) distinct rows that remain
        new_index = torch.full((len(self.x),), -1).scatter(0, order, torch.arange(len(order)))  # (n,)
        x = self.x[order.to(self.x.device)]
        listed = self.index.shape[1]  # fewer than usual if the sample is small
        reserve = _RESERVE if listed > LISTED else 2 if listed <= _TWO else 0
        k = min(listed - reserve, len(x) - 1)
        index = new_index[self.index[order]]  # (n', K), −1 if a neighbour was removed
        sifted = (index < 0).sort(dim=1, stable=True)  # remaining neighbours first
        short = sifted.values[:, :k].any(1).nonzero()[:, 0]
        index = index.gather(1, sifted.indices[:, :k])
        distance = self.distance[order].gather(1, sifted.indices[:, :k])
        if len(short) > len(x) // 20 and k > 1:
            distance, index = _search(x, k)
        elif len(short):
            distance[short], index[short] = _by_force(x, short, k)
        return _build(x, sample, first[order], new_index[row], distance, index)

    def without_block(self, blocks: Tensor) -> Neighbours:
        """Return the neighbours of the queried rows of other blocks, without a new search."""
        keep = ~torch.isin(self.block, blocks)
        return Neighbours(
            self.x,
            self.distance[keep],
            self.index[keep],
            self.other[keep],
            self.other_index[keep],
            self.copies,
            self.row[keep],
            self.block[keep],
            self.same_document[keep],
            self.key,
            self.distinct,
        )


@dataclass(frozen=True)
class TwoNeighbours:
    """The first few neighbours: a third of the work of `Neighbours`, which is used if it is known already."""

    sources: ClassVar = (Sample,)
    neighbours: Neighbours

    @classmethod
    def derive(cls, cloud: Cloud) -> TwoNeighbours:
        known = cloud.derived(Neighbours)
        unfiltered = None if cloud.unfiltered is None else cloud.unfiltered.derived(cls)
        if known is None and unfiltered is not None:
            known = unfiltered.neighbours.among(cloud.get(Sample))
        return cls(Neighbours.derive(cloud, _TWO) if known is None else known)

    def without_block(self, blocks: Tensor) -> TwoNeighbours:
        return TwoNeighbours(self.neighbours.without_block(blocks))


@dataclass(frozen=True)
class LocalDimensions:
    """Number of directions that hold 95 % of the variance among the neighbours of a row, for some rows."""

    sources: ClassVar = (Sample,)
    count: Tensor  # (q,)
    block: Tensor  # (q,)
    listed: int  # number of neighbours used
    searched: int  # number of rows among which neighbours were searched

    @classmethod
    def derive(cls, cloud: Cloud) -> LocalDimensions:
        known = cloud.get(Neighbours)
        rows = torch.linspace(0, len(known.index) - 1, min(_LOCAL_ROWS, len(known.index))).long().unique()
        k = min(LISTED, known.index.shape[1])
        if k < 2:
            return cls(torch.zeros(0), known.block[:0], k, len(known.x))
        products = []
        for some in known.index[rows, :k].to(known.x.device).split(_LOCAL_AT_ONCE):
            near = known.x[some].double()  # (q, k, d)
            near -= near.mean(1, keepdim=True)
            products.append(near @ near.mT)
        variance = torch.linalg.eigvalsh(torch.cat(products)).flip(1).clamp(min=0)  # (q, k)
        share = variance.cumsum(1) / variance.sum(1, keepdim=True).clamp(min=1e-300)
        return cls(((share < LOCAL_SHARE).sum(1) + 1).cpu(), known.block[rows], k, len(known.x))

    def without_block(self, blocks: Tensor) -> LocalDimensions:
        keep = ~torch.isin(self.block, blocks)
        return LocalDimensions(self.count[keep], self.block[keep], self.listed, self.searched)


def _search(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    result = nearest(x, k)
    return result.distance, result.index


def _build(x: Tensor, sample: Sample, first: Tensor, distinct: Tensor, distance: Tensor, index: Tensor) -> Neighbours:
    """Add facts about documents, taken from the first occurrence of each distinct row in the sample."""
    tokens: Tokens = sample.rows.tokens
    document = tokens.document[first]
    same = document[index] == document[:, None]  # (n, k)
    other, other_index = torch.zeros(len(x), 0, dtype=torch.float64), torch.zeros(len(x), 0, dtype=torch.int64)
    if index.shape[1] > 1 and bool(same.any()):
        other, other_index = _others(x, document, distance, index, same)
    return Neighbours(
        x,
        distance,
        index,
        other,
        other_index,
        torch.bincount(distinct, minlength=len(x)),
        torch.arange(len(x)),
        tokens.block[first],
        same[:, 0] if index.shape[1] else torch.zeros(len(x), dtype=torch.bool),
        tokens.key.cpu(),
        distinct,
    )


def _distinct(x: Tensor, first: Tensor) -> Tensor:
    """Return which distinct row (by first occurrence) each row equals, (m,)."""
    which = torch.zeros(len(x), dtype=torch.int64).index_copy(0, first, torch.arange(len(first)))
    if len(first) == len(x):
        return which
    rows = (x.detach().cpu() + 0.0).contiguous().view(torch.uint8)  # −0.0 and 0.0 are one number
    number = {rows[i].numpy().tobytes(): j for j, i in enumerate(first.tolist())}
    again = torch.ones(len(x), dtype=torch.bool).index_fill(0, first, False).nonzero()[:, 0]
    for i in again.tolist():
        which[i] = number[rows[i].numpy().tobytes()]
    return which


def _others(x: Tensor, document: Tensor, distance: Tensor, index: Tensor, same: Tensor) -> tuple[Tensor, Tensor]:
    """Return distances and indices of the two nearest rows of other documents; short lists are searched again."""
    sifted = distance.masked_fill(same, torch.inf).sort(1)
    far, near = sifted.values[:, :2].contiguous(), index.gather(1, sifted.indices[:, :2])  # (n, 2)
    short = (~far.isfinite()).any(1).nonzero()[:, 0]
    if len(short) > len(x) // 20:
        again = nearest(x, 2, group=document)
        return again.distance, again.index
    far[short], near[short] = _by_force(x, short, 2, document)
    return far, near


def _by_force(x: Tensor, row: Tensor, k: int, document: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return distances and indices of the k nearest rows (of other documents, if given) by float64 differences."""
    centred = x.double() - x.double().mean(0)
    distance = torch.full((len(row), k), torch.inf, dtype=torch.float64)
    index = torch.zeros(len(row), k, dtype=torch.int64)
    for part in torch.arange(len(row)).split(256):
        rows = row[part]
        away = torch.cdist(centred[rows], centred, compute_mode="donot_use_mm_for_euclid_dist").cpu()  # (p, n)
        itself = torch.zeros_like(away, dtype=torch.bool).scatter(1, rows[:, None], True)
        away = away.masked_fill(itself if document is None else document[rows, None] == document[None], torch.inf)
        least = away.topk(min(k, len(x)), largest=False)
        distance[part, : least.values.shape[1]], index[part, : least.values.shape[1]] = least.values, least.indices
    return distance, index
