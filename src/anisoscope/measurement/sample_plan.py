"""Samples of one text: its first n tokens, its batches, and the same after its documents are shuffled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from anisoscope.errors import InputError

Units = np.ndarray[Any, np.dtype[np.int64]]  # windows of a text, or rows of a file of vectors, by number
TOKENS = (1024, 4096, 16_384)
BATCH_TOKENS = (1024, 4096)


@dataclass(frozen=True)
class SampleDesign:
    """Which samples to compare.

    Attributes:
        tokens: Sizes n of samples; None for those of 1,024, 4,096 and 16,384 that the text holds.
        batch_tokens: Sizes of batches; None for those of 1,024 and 4,096 that the text holds at least twice.
        shuffles: How many times the documents are shuffled.
    """

    tokens: tuple[int, ...] | None = None
    batch_tokens: tuple[int, ...] | None = None
    shuffles: int = 5

    def __post_init__(self) -> None:
        for name, sizes in (("tokens", self.tokens), ("batch-tokens", self.batch_tokens)):
            if sizes is not None and (not sizes or min(sizes) < 2):
                raise InputError(f"--{name} takes numbers from 2 on, separated by commas, such as 1024,4096.")
        if self.shuffles < 0:
            raise InputError(f"--shuffles is {self.shuffles}. It cannot be negative.")

    @property
    def most(self) -> int:
        """How many tokens to read."""
        return max(self.tokens or TOKENS)

    def sizes(self, total: int) -> list[int]:
        """Return the sizes of samples of a text with `total` tokens, the smallest first.

        Raises:
            InputError: The text is shorter than a size that was requested.
        """
        if self.tokens is None:
            return sorted({*(size for size in TOKENS if size < total), min(total, self.most)})
        if max(self.tokens) > total:
            raise InputError(f"The data holds {total:,} rows, fewer than {max(self.tokens):,}. Use smaller --tokens.")
        return sorted(set(self.tokens))

    def batch_sizes(self, total: int) -> list[int]:
        """Return the sizes of batches of a text with `total` tokens, the smallest first.

        Raises:
            InputError: The text holds fewer than two batches of a size that was requested.
        """
        if self.batch_tokens is None:
            return [size for size in BATCH_TOKENS if 2 * size <= total]
        if 2 * max(self.batch_tokens) > total:
            raise InputError(
                f"{total:,} rows hold no two batches of {max(self.batch_tokens):,}. Use smaller --batch-tokens, or "
                "larger --tokens."
            )
        return sorted(set(self.batch_tokens))


def shuffled_units(document: Units, shuffle: int, seed: int) -> Units:
    """Return all units with their documents in random order; the units of one document stay together and in order.

    Args:
        document: The document of each unit; equal numbers are contiguous.
        shuffle: Number of the shuffle; 0 leaves the order as it is.
        seed: Seed of all shuffles.

    >>> shuffled_units(np.array([0, 0, 1, 2, 2]), 0, 0).tolist()
    [0, 1, 2, 3, 4]
    """
    if shuffle == 0:
        return np.arange(len(document))
    starts = np.flatnonzero(np.diff(document, prepend=document[0] - 1))
    documents = np.split(np.arange(len(document)), starts[1:])
    order = np.random.default_rng([seed, shuffle]).permutation(len(documents))
    return np.concatenate([documents[number] for number in order])


def first_units(order: Units, rows: Units, size: int) -> Units:
    """Return the first units that hold at least `size` rows together.

    Args:
        order: Units in their order.
        rows: Number of rows of each unit.
        size: Number of rows.

    >>> first_units(np.array([2, 0, 1]), np.array([5, 5, 4]), 8).tolist()
    [2, 0]
    """
    return order[: int(np.searchsorted(np.cumsum(rows[order]), size)) + 1]


def batch_units(order: Units, rows: Units, size: int) -> list[Units]:
    """Split units into batches of at least `size` rows each; units that are too few for a batch are left out.

    >>> [batch.tolist() for batch in batch_units(np.array([2, 0, 1]), np.array([5, 5, 4]), 6)]
    [[2, 0]]
    """
    batches = []
    while len(order) and int(rows[order].sum()) >= size:
        batch = first_units(order, rows, size)
        batches.append(batch)
        order = order[len(batch) :]
    return batches
