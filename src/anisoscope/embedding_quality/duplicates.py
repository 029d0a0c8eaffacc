"""Exact and near duplicates over all rows."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from anisoscope.embedding_quality.corpus import Corpus, OnProgress, rows_at, search
from anisoscope.embedding_quality.means import MeanError, mean_of
from anisoscope.embedding_quality.row_maps import unit
from anisoscope.stats.neighbours import Neighbours

NEAR = 0.1  # of the root mean square distance between two rows
LISTED = 1000  # pairs that the run keeps
_NEIGHBOURS = 10
_QUERIES = 16384  # rows searched at once
_BUDGET = 2e12  # products up to which all rows are compared with all rows by default


@dataclass(frozen=True)
class Duplicates:
    """Duplicate rows: pairs of row numbers, the earlier row first."""

    copies: int  # rows that equal an earlier row
    exact: list[tuple[int, int]]
    radius: float  # distance of unit rows below which rows are near duplicates
    cosine: float  # the same as a cosine
    near: MeanError  # share of rows that have a near duplicate
    pairs: list[tuple[int, int, float]]  # near duplicates with their cosine, the nearest first
    searched: int  # rows that were compared with all others
    among: int


def exact_pairs(keys: Tensor) -> tuple[int, list[tuple[int, int]]]:
    """Return the number of rows that equal an earlier row, and the first pairs, given equal keys for equal rows.

    >>> exact_pairs(torch.tensor([5, 7, 5]))
    (1, [(0, 2)])
    """
    ordered, order = keys.sort(stable=True)
    starts = torch.ones_like(ordered, dtype=torch.bool)
    starts[1:] = ordered[1:] != ordered[:-1]
    first = order[starts][starts.cumsum(0) - 1]  # (n,) the earliest row of each run
    copies = (~starts).nonzero()[:, 0]
    later = order[copies].sort()
    pairs = torch.stack([first[copies][later.indices], later.values], 1)
    return len(copies), [(a, b) for a, b in pairs[:LISTED].tolist()]


def near_radius(corpus: Corpus) -> float:
    """Return a tenth of the root mean square distance between two different unit rows of the sample.

    So the common part of all rows does not count: in a narrow cone all cosines are high, and few rows are duplicates.
    """
    u = unit(corpus.sample.x).double()
    variance = float((u - u.mean(0)).square().sum(1).mean())
    return NEAR * math.sqrt(2 * variance)


def searched_rows(corpus: Corpus, all_pairs: bool | None) -> Tensor:
    """Return the numbers of the rows that are compared with all rows, ascending."""
    n, d = corpus.vectors.n, corpus.vectors.d
    everything = float(n) ** 2 * d <= _BUDGET if all_pairs is None else all_pairs
    return torch.arange(n) if everything else corpus.sampled.sort().values


def rows_to_read(corpus: Corpus, all_pairs: bool | None) -> int:
    """Return how many rows `find_duplicates` reads from the file, for progress."""
    if len(corpus.sampled) == corpus.vectors.n:
        return 0
    return corpus.vectors.n * math.ceil(len(searched_rows(corpus, all_pairs)) / _QUERIES)


def find_duplicates(
    corpus: Corpus,
    neighbours: Neighbours,
    numbers: Tensor,
    all_pairs: bool | None = None,
    progress: OnProgress | None = None,
) -> Duplicates:
    """Find exact and near duplicates.

    If the sample holds all rows, its neighbours are known. Otherwise sampled rows are searched among all rows, or all
    rows if that takes at most 2·10¹² products (n²·d) or `all_pairs` is True. Each row lists its ten nearest rows.

    Args:
        corpus: The rows.
        neighbours: Neighbours of the distinct sampled unit rows.
        numbers: Row numbers of those rows.
        all_pairs: Search all rows; False: sampled rows only; None: depending on the cost.
        progress: Called with the number of rows since the last call.
    """
    copies, exact = exact_pairs(corpus.keys)
    radius = near_radius(corpus)
    n = corpus.vectors.n
    pairs = _Pairs(radius)
    if len(corpus.sampled) == n:
        pairs.add(numbers, neighbours.distance[:, :_NEIGHBOURS], numbers[neighbours.index[:, :_NEIGHBOURS]])
    else:
        for part in searched_rows(corpus, all_pairs).split(_QUERIES):
            queries = unit(rows_at(corpus.vectors, part))
            result = search(queries, corpus.vectors, unit, _NEIGHBOURS + 1, progress)
            other = (result.index != part[:, None]) & (corpus.keys[result.index] != corpus.keys[part][:, None])
            pairs.add(part, result.distance.masked_fill(~other, torch.inf), result.index)
    return Duplicates(
        copies,
        exact,
        radius,
        1 - radius**2 / 2,
        mean_of(torch.cat(pairs.has).double()),
        pairs.listed(),
        sum(map(len, pairs.has)),
        n,
    )


class _Pairs:
    """Pairs of rows that are nearer than a radius."""

    def __init__(self, radius: float) -> None:
        self.radius = radius
        self.has: list[Tensor] = []  # whether each row has a near duplicate
        self._pairs: dict[tuple[int, int], float] = {}

    def add(self, row: Tensor, distance: Tensor, index: Tensor) -> None:
        near = distance <= self.radius  # (m, k)
        self.has.append(near.any(1))
        for i, j in near.nonzero().tolist():
            a, b = sorted((int(row[i]), int(index[i, j])))
            self._pairs[a, b] = 1 - float(distance[i, j]) ** 2 / 2

    def listed(self) -> list[tuple[int, int, float]]:
        ordered = sorted(self._pairs.items(), key=lambda item: (-item[1], item[0]))
        return [(a, b, cosine) for (a, b), cosine in ordered[:LISTED]]
