"""The neighbours of the sampled rows: searched once a cloud, then filtered for fewer blocks or fewer tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from anisoscope.stats.cloud import Cloud
from anisoscope.stats.knn import nearest, unique_rows
from anisoscope.stats.rows import Tokens
from anisoscope.stats.sample import Sample

LISTED = 32  # for dimensions by scale
_RESERVE = 4  # so that most lists are long enough when a few tokens are left out
_LOCAL_ROWS, _LOCAL_AT_ONCE = 256, 16  # rows whose neighbourhoods are taken apart, in all and at a time
LOCAL_SHARE = 0.95
_TWO = 4  # for two neighbours, with a little reserve for those in other documents


@dataclass(frozen=True)
class Neighbours:
    """Distances of each distinct row of the sample to its nearest others, the rows themselves, and their documents."""

    sources: ClassVar = (Sample,)
    x: Tensor  # (n, d) the distinct rows
    distance: Tensor  # (q, K) float64 ascending, for the rows asked about
    index: Tensor  # (q, K) into x
    other: Tensor  # (q, 2) float64, distances to the two nearest rows of other documents; empty if all are other
    other_index: Tensor  # (q, 2) into x, likewise
    copies: Tensor  # (n,) how often each distinct row occurs in the sample
    row: Tensor  # (q,) which rows of x are asked about
    block: Tensor  # (q,)
    same_document: Tensor  # (q,) bool: the nearest row is of the same document
    key: Tensor  # (m,) keys of all sampled rows
    distinct: Tensor  # (m,) which row of x each sampled row is

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
        found = (short, short.long()) if k < 2 else _search(x, k)
        return _build(x, sample, first, distinct, *found)

    def among(self, sample: Sample) -> Neighbours:
        """The neighbours within fewer of the sampled rows: lists are filtered, those that ran short searched again."""
        kept = torch.isin(self.key, sample.table[:, 0].cpu()).nonzero()[:, 0]  # places in the wider sample
        there = self.distinct[kept]  # (m',)
        last = len(kept)
        first = torch.full((len(self.x),), last).scatter_reduce(0, there, torch.arange(last), "amin")  # (n,)
        order = first.argsort(stable=True)[: int((first < last).sum())]  # (n',) distinct rows that are left
        place = torch.full((len(self.x),), -1).scatter(0, order, torch.arange(len(order)))  # (n,) old -> new
        x = self.x[order.to(self.x.device)]
        listed = self.index.shape[1]  # fewer than there should be where the sample has no more rows
        reserve = _RESERVE if listed > LISTED else 2 if listed <= _TWO else 0
        k = min(listed - reserve, len(x) - 1)
        index = place[self.index[order]]  # (n', K), −1 where a neighbour is gone
        sifted = (index < 0).sort(dim=1, stable=True)
        short = sifted.values[:, :k].any(1).nonzero()[:, 0]
        index = index.gather(1, sifted.indices[:, :k])
        distance = self.distance[order].gather(1, sifted.indices[:, :k])
        if len(short) > len(x) // 20 and k > 1:
            distance, index = _search(x, k)
        elif len(short):
            distance[short], index[short] = _by_force(x, short, k)
        return _build(x, sample, first[order], place[there], distance, index)

    def without_block(self, blocks: Tensor) -> Neighbours:
        """The same neighbours, asked about rows of other blocks only: a jackknife over documents without a search."""
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
    """The first neighbours alone: a third of the work, unless the whole neighbourhoods are known already."""

    sources: ClassVar = (Sample,)
    found: Neighbours

    @classmethod
    def derive(cls, cloud: Cloud) -> TwoNeighbours:
        known = cloud.derived(Neighbours)
        unfiltered = None if cloud.unfiltered is None else cloud.unfiltered.derived(cls)
        if known is None and unfiltered is not None:
            known = unfiltered.found.among(cloud.get(Sample))
        return cls(Neighbours.derive(cloud, _TWO) if known is None else known)

    def without_block(self, blocks: Tensor) -> TwoNeighbours:
        return TwoNeighbours(self.found.without_block(blocks))


@dataclass(frozen=True)
class LocalDimensions:
    """How many directions hold 95 % of the variance among a row's neighbours, for some rows of the sample."""

    sources: ClassVar = (Sample,)
    count: Tensor  # (q,)
    block: Tensor  # (q,)
    listed: int  # how many neighbours were looked at

    @classmethod
    def derive(cls, cloud: Cloud) -> LocalDimensions:
        found = cloud.get(Neighbours)
        asked = torch.linspace(0, len(found.index) - 1, min(_LOCAL_ROWS, len(found.index))).long().unique()
        k = min(LISTED, found.index.shape[1])
        if k < 2:
            return cls(torch.zeros(0), found.block[:0], k)
        products = []
        for some in found.index[asked, :k].to(found.x.device).split(_LOCAL_AT_ONCE):
            near = found.x[some].double()  # (q, k, d)
            near -= near.mean(1, keepdim=True)
            products.append(near @ near.mT)
        variance = torch.linalg.eigvalsh(torch.cat(products)).flip(1).clamp(min=0)  # (q, k)
        share = variance.cumsum(1) / variance.sum(1, keepdim=True).clamp(min=1e-300)
        return cls(((share < LOCAL_SHARE).sum(1) + 1).cpu(), found.block[asked], k)

    def without_block(self, blocks: Tensor) -> LocalDimensions:
        keep = ~torch.isin(self.block, blocks)
        return LocalDimensions(self.count[keep], self.block[keep], self.listed)


def _search(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    found = nearest(x, k)
    return found.distance, found.index


def _build(x: Tensor, sample: Sample, first: Tensor, distinct: Tensor, distance: Tensor, index: Tensor) -> Neighbours:
    """With the facts about documents, which come from each distinct row's first occurrence in the sample."""
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
    """Which of the distinct rows (by first occurrence) each row is, (m,)."""
    which = torch.zeros(len(x), dtype=torch.int64).index_copy(0, first, torch.arange(len(first)))
    if len(first) == len(x):
        return which
    rows = (x.detach().cpu() + 0.0).contiguous().view(torch.uint8)  # −0.0 and 0.0 are one number
    place = {rows[i].numpy().tobytes(): j for j, i in enumerate(first.tolist())}
    again = torch.ones(len(x), dtype=torch.bool).index_fill(0, first, False).nonzero()[:, 0]
    for i in again.tolist():
        which[i] = place[rows[i].numpy().tobytes()]
    return which


def _others(x: Tensor, document: Tensor, distance: Tensor, index: Tensor, same: Tensor) -> tuple[Tensor, Tensor]:
    """Distances and indices of the two nearest rows of other documents; searched again where the list ran out."""
    sifted = distance.masked_fill(same, torch.inf).sort(1)
    far, place = sifted.values[:, :2].contiguous(), index.gather(1, sifted.indices[:, :2])  # (n, 2)
    short = (~far.isfinite()).any(1).nonzero()[:, 0]
    if len(short) > len(x) // 20:
        again = nearest(x, 2, group=document)
        return again.distance, again.index
    far[short], place[short] = _by_force(x, short, 2, document)
    return far, place


def _by_force(x: Tensor, row: Tensor, k: int, document: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Distances and indices of the k nearest rows of some rows, by float64 differences; of other documents if given."""
    centred = x.double() - x.double().mean(0)
    distance = torch.full((len(row), k), torch.inf, dtype=torch.float64)
    index = torch.zeros(len(row), k, dtype=torch.int64)
    for part in torch.arange(len(row)).split(256):
        asked = row[part]
        away = torch.cdist(centred[asked], centred, compute_mode="donot_use_mm_for_euclid_dist").cpu()  # (p, n)
        own = torch.zeros_like(away, dtype=torch.bool).scatter(1, asked[:, None], True)
        away = away.masked_fill(own if document is None else document[asked, None] == document[None], torch.inf)
        least = away.topk(min(k, len(x)), largest=False)
        distance[part, : least.values.shape[1]], index[part, : least.values.shape[1]] = least.values, least.indices
    return distance, index
