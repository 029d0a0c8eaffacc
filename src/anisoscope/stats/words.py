"""Words and sentences of the sampled rows, summed by block so that leaving out a block costs almost nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from anisoscope.stats.cloud import Cloud
from anisoscope.stats.sample import Sample

_OCCURRENCES = 5  # a word must be in the sample this often
_WORDS = 64  # the most frequent words are enough for a mean over words
_AT_ONCE = 256  # rows per step
_COMPARED = 32  # occurrences of a word whose inner products are stored


@dataclass(frozen=True)
class UnitSums:
    """Sums of unit rows by block and by group of rows, for mean cosines within groups without some blocks."""

    block: Tensor  # (B,) block numbers
    rows: Tensor  # (B, G) number of rows
    directed: Tensor  # (B, G) number of rows that have a direction
    unit: Tensor  # (B, G, d) Σ u

    @classmethod
    def of(cls, x: Tensor, block: Tensor, group: Tensor, groups: int) -> UnitSums:
        """Compute the sums of rows (n, d), given their blocks and groups (n,)."""
        number, which = block.unique(return_inverse=True)
        cell = which * groups + group  # (n,)
        cells = len(number) * groups
        rows = torch.bincount(cell, minlength=cells).double()
        directed = torch.zeros(cells, dtype=torch.float64)
        sums = torch.zeros(cells, x.shape[1], dtype=torch.float64, device=x.device)
        for part, unit in _units(x):
            directed.index_add_(0, cell[part], unit.square().sum(1).round().cpu())
            sums.index_add_(0, cell[part].to(x.device), unit)
        shape = (len(number), groups)
        return cls(number, rows.view(shape), directed.view(shape), sums.view(*shape, x.shape[1]).cpu())

    def cosines(self) -> Tensor:
        """Return the mean cosine of two different rows of each group, (G,); NaN if it has fewer than two."""
        n = self.rows.sum(0)
        square = self.unit.sum(0).square().sum(1)
        return torch.where(n > 1, (square - self.directed.sum(0)) / (n * (n - 1)).clamp(min=1), torch.nan)

    def without_block(self, blocks: Tensor) -> UnitSums:
        keep = ~torch.isin(self.block, blocks)
        return UnitSums(self.block[keep], self.rows[keep], self.directed[keep], self.unit[keep])


@dataclass(frozen=True)
class AnyTwo:
    """Sums of all sampled rows by block, for the mean cosine of any two rows: the baseline of the others."""

    sources: ClassVar = (Sample,)
    sums: UnitSums

    @classmethod
    def derive(cls, cloud: Cloud) -> AnyTwo:
        sample = cloud.get(Sample)
        block = sample.rows.tokens.block
        return cls(UnitSums.of(sample.x, block, torch.zeros_like(block), 1))

    def without_block(self, blocks: Tensor) -> AnyTwo:
        return AnyTwo(self.sums.without_block(blocks))


@dataclass(frozen=True)
class Words:
    """Sums and inner products of the occurrences of the most frequent tokens, and inner products of random groups."""

    sources: ClassVar = (Sample,)
    each: UnitSums  # one group per word
    products: Tensor  # (2, W, m, m) inner products of occurrences of a word, and of as many random rows
    block: Tensor  # (2, W, m) their blocks, −1 if there are fewer

    @classmethod
    def derive(cls, cloud: Cloud) -> Words:
        sample = cloud.get(Sample)
        tokens = sample.rows.tokens
        groups = _frequent(tokens.token)
        word = torch.repeat_interleave(torch.arange(len(groups)), torch.tensor([len(g) for g in groups]).long())
        rows = torch.cat(groups) if groups else torch.zeros(0, dtype=torch.int64)
        each = UnitSums.of(sample.x[rows.to(sample.x.device)], tokens.block[rows], word, len(groups))
        chosen = [group[:_COMPARED] for group in groups]
        start, random = 0, []
        for group in chosen:
            random.append(torch.arange(start, start + len(group)) % max(1, len(sample.x)))
            start += len(group)
        both = [_products(sample.x, rows, tokens.block) for rows in (chosen, random)]
        return cls(each, torch.stack([b[0] for b in both]), torch.stack([b[1] for b in both]))

    def first_shares(self) -> tuple[Tensor, Tensor]:
        """Return λ1/Σλ of the occurrences of each word and of its random group, (W,) both."""
        present = (self.block >= 0).double()
        products = self.products * present[..., None] * present[..., None, :]
        largest = torch.linalg.eigvalsh(products)[..., -1]
        total = products.diagonal(dim1=-2, dim2=-1).sum(-1).clamp(min=1e-300)
        own, random = largest / total
        return own, random

    def without_block(self, blocks: Tensor) -> Words:
        removed = torch.isin(self.block, blocks)
        return Words(self.each.without_block(blocks), self.products, self.block.masked_fill(removed, -1))


@dataclass(frozen=True)
class Sentences:
    """The cosine of each sampled row with the mean of the other sampled rows of its document."""

    sources: ClassVar = (Sample,)
    cosine: Tensor  # (q,) for rows whose document has other sampled rows
    block: Tensor  # (q,)

    @classmethod
    def derive(cls, cloud: Cloud) -> Sentences:
        sample = cloud.get(Sample)
        x, tokens = sample.x, sample.rows.tokens
        _, which, count = tokens.document.unique(return_inverse=True, return_counts=True)
        sums = torch.zeros(len(count), x.shape[1], dtype=torch.float64, device=x.device)
        for part, unit in _units(x):
            sums.index_add_(0, which[part].to(x.device), unit)
        cosine = torch.zeros(len(x), dtype=torch.float64)
        for part, unit in _units(x):
            others = sums[which[part].to(x.device)] - unit
            cosine[part] = ((unit * others).sum(1) / others.norm(dim=1).clamp(min=1e-300)).cpu()
        several = count[which] > 1
        return cls(cosine[several], tokens.block[several])

    def without_block(self, blocks: Tensor) -> Sentences:
        keep = ~torch.isin(self.block, blocks)
        return Sentences(self.cosine[keep], self.block[keep])


def _frequent(token: Tensor) -> list[Tensor]:
    """Return the indices of the occurrences of each of the most frequent token ids; unknown ids (−1) do not count."""
    known = (token >= 0).nonzero()[:, 0]
    if not len(known):
        return []
    order = known[torch.sort(token[known], stable=True).indices]
    count = torch.unique_consecutive(token[order], return_counts=True)[1]
    groups = [group for group in order.split(count.tolist()) if len(group) >= _OCCURRENCES]
    return sorted(groups, key=len, reverse=True)[:_WORDS]


def _products(x: Tensor, groups: list[Tensor], block: Tensor) -> tuple[Tensor, Tensor]:
    """Return inner products within each group, padded with zeros, (W, m, m), and blocks of the rows, (W, m)."""
    most = max((len(group) for group in groups), default=0)
    products = torch.zeros(len(groups), most, most, dtype=torch.float64)
    blocks = torch.full((len(groups), most), -1)
    for number, group in enumerate(groups):
        rows = x[group.to(x.device)].double()
        products[number, : len(group), : len(group)] = (rows @ rows.T).cpu()
        blocks[number, : len(group)] = block[group]
    return products, blocks


def _units(x: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Yield slices of rows and their directions in float64, as many at a time as stay in the cache."""
    for first in range(0, len(x), _AT_ONCE):
        part = slice(first, first + _AT_ONCE)
        rows = x[part].double()
        length = rows.norm(dim=1, keepdim=True)
        yield part, torch.where(length > 0, rows / length, 0.0)
