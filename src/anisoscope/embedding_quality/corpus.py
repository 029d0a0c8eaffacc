"""The embeddings under test: one pass over the file for everything that all rows decide, and search over all rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import reduce
from operator import add
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from anisoscope.data.vectors import Vectors, open_vectors
from anisoscope.embedding_quality.row_maps import Ranges, unit
from anisoscope.errors import InputError
from anisoscope.stats.cloud import Cloud
from anisoscope.stats.collect import as_rows, block_numbers, collect
from anisoscope.stats.directions import Directions
from anisoscope.stats.knn import Nearest, nearest_to, row_keys
from anisoscope.stats.moments import Moments
from anisoscope.stats.rows import Rows, bare_rows
from anisoscope.stats.sample import Sample

_READ = 8192  # rows at once
_SEARCHED = 16384  # rows of the corpus that are searched at once
_QUERIES = 512  # queries that are multiplied with them at once: 64 MB of float64 products
OnProgress = Callable[[int], None]  # called with the number of rows since the last call


@dataclass(frozen=True)
class Corpus:
    """What one pass over the embeddings found."""

    vectors: Vectors
    cloud: Cloud  # Moments, Directions, Sample of the rows as stored
    keys: Tensor  # (n,) int64, equal for equal rows
    norms: Tensor  # (n,) float32
    ranges: Ranges  # of the unit rows, and of the rows as stored
    stored_ranges: Ranges
    documented: bool

    @property
    def moments(self) -> Moments:
        return self.cloud.get(Moments)

    @property
    def sample(self) -> Sample:
        return self.cloud.get(Sample)

    @property
    def sampled(self) -> Tensor:
        """Row numbers of the sampled rows, in the order of the sample, (m,)."""
        tokens = self.sample.rows.tokens
        return tokens.position if self.documented else tokens.document


def as_vectors(rows: Any, what: str = "rows", **choice: str | None) -> Vectors:
    """Return embeddings as vectors that can be read again: from a path, an array, a tensor or a DataFrame.

    Args:
        rows: The embeddings.
        what: What they are, for messages.
        **choice: `tensor`, `column` and `documents` of `open_vectors`.
    """
    if isinstance(rows, Vectors):
        return rows
    if isinstance(rows, str | Path):
        return open_vectors(rows, **choice)
    if rows is None:
        raise InputError(f"There are no {what}. Give an array (n, d) or the path of a file of vectors.")
    x = as_rows(rows).detach().cpu()
    n, d = x.shape
    dtype = str(x.dtype).removeprefix("torch.")
    return Vectors(what, n, d, dtype, {"rows": n}, None, stream=lambda m: iter(x.split(m)))


def read_corpus(vectors: Vectors, documents: Any, sample: int, seed: int, progress: OnProgress | None = None) -> Corpus:
    """Read all rows once.

    Args:
        vectors: The embeddings.
        documents: A document number for each row, or None; by default those of the file.
        sample: Number of rows to keep in memory.
        seed: Seed of the sample.
        progress: Called with the number of rows since the last call.

    Raises:
        InputError: Rows hold NaN or Inf, or there are too few.
    """
    known = vectors.documents if documents is None else documents
    document = None if known is None else torch.as_tensor(known)
    block = block_numbers(vectors.n, document)
    keys, norms, ranges = [], [], []

    def read() -> Iterator[Rows]:
        first = 0
        for x in vectors.batches(_READ):
            part = slice(first, first + len(x))
            own = None if document is None else document[part]
            rows = bare_rows(x, first=first, document=own, block=block[part], seed=seed)
            keys.append(row_keys(x))
            norms.append(rows.norm.float())
            ranges.append((Ranges.of(unit(x)), Ranges.of(x)))
            yield rows
            first += len(x)
            if progress is not None:
                progress(len(x))

    cloud = collect(read, {"Moments", "Directions", "Sample"}, sample=sample)
    bad = int(cloud.get(Directions).bad)
    if bad:
        raise InputError(f"{bad:,} of {vectors.n:,} rows of {vectors.name} hold NaN or Inf. Leave these rows out.")
    of_unit, of_stored = (reduce(add, each) for each in zip(*ranges, strict=True))
    return Corpus(vectors, cloud, torch.cat(keys), torch.cat(norms), of_unit, of_stored, document is not None)


def search(
    queries: Tensor,
    vectors: Vectors,
    apply: Callable[[Tensor], Tensor],
    k: int,
    progress: OnProgress | None = None,
    *,
    dot: bool = False,
) -> Nearest:
    """Find the k nearest of all rows for each query, exactly, in memory that does not depend on the number of rows.

    Args:
        queries: Queries (m, e), mapped already.
        vectors: The rows to search, as stored.
        apply: The map of the rows.
        k: Number of results.
        progress: Called with the number of rows since the last call.
        dot: Find the rows of largest dot product; distances are then minus the dot products.

    Returns:
        Distances and row numbers, (m, k); inf and −1 if there are fewer rows.
    """
    find = largest_products if dot else nearest_to
    distance = torch.full((len(queries), k), torch.inf, dtype=torch.float64)
    index = torch.full((len(queries), k), -1)
    first = 0
    for x in vectors.batches(_SEARCHED):
        part = find(queries, apply(x), k)
        number = torch.where(part.index < 0, -1, part.index + first)
        merged, order = torch.cat([distance, part.distance], 1).sort(dim=1, stable=True)
        distance, index = merged[:, :k], torch.cat([index, number], 1).gather(1, order[:, :k])
        first += len(x)
        if progress is not None:
            progress(len(x))
    return Nearest(distance, index)


def largest_products(queries: Tensor, x: Tensor, k: int) -> Nearest:
    """Find the k rows of largest dot product with each query, by float64 products of all pairs.

    Args:
        queries: Queries (m, d).
        x: Rows (n, d).
        k: Number of results, less if there are fewer rows.

    Returns:
        Minus the dot products, ascending, and indices into x, (m, k).

    >>> largest_products(torch.tensor([[1.0, 0.0]]), torch.tensor([[0.5, 0.0], [2.0, 9.0]]), 2).index.tolist()
    [[1, 0]]
    """
    columns = x.double().T  # (d, n)
    best = [(part.double() @ columns).topk(min(k, len(x)), dim=1) for part in queries.split(_QUERIES)]
    return Nearest(-torch.cat([each.values for each in best]), torch.cat([each.indices for each in best]))


def rows_at(vectors: Vectors, numbers: Tensor) -> Tensor:
    """Return the rows with these numbers, in this order, (m, d), from one pass over the file."""
    rows = torch.empty(len(numbers), vectors.d, dtype=torch.float64)
    first = 0
    for x in vectors.batches(_READ):
        inside = ((numbers >= first) & (numbers < first + len(x))).nonzero()[:, 0]
        rows[inside] = x[numbers[inside] - first].double()
        first += len(x)
    return rows
