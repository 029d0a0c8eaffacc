"""Which documents each of several processes measures, so that their statistics add up to those of one process."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from anisoscope.data.token_table import Batch, TokenTable
from anisoscope.stats.block_numbers import BlockNumbers


@dataclass(frozen=True)
class Share:
    """One of `of` equal shares of the data: the smallest blocks of documents are dealt to the shares in turn.

    A block is a pure function of the data. So shares are disjoint and hold whole documents, and each of their blocks
    is a block of the whole. All processes read all data (tokenising is cheap) and run the model on their share.

    >>> list(Share(1, 2).pieces(torch.tensor([0, 0, 1, 1, 2, 3])))
    [tensor([2, 3, 5])]
    """

    index: int = 0
    of: int = 1
    forward_all: bool = False  # every process runs the model on all the data (its layers are split over them)

    def owns(self, block: Tensor) -> Tensor:
        """Return which items belong to this share, given their blocks, (b,) -> (b,) bool."""
        return block % self.of == self.index

    def pieces(self, block: Tensor) -> Iterator[Tensor]:
        """Yield the indices of this share's items in a batch, given the items' blocks, (b,) -> (k,), …

        A batch is `of` times as large as a forward pass may be, so a share that holds more of it is split.
        """
        mine = self.owns(block).nonzero()[:, 0]
        size = max(1, len(block) // self.of)
        yield from (mine[first : first + size] for first in range(0, len(mine), size))


def blocks_of(batch: Batch, counts: Tensor, numbers: BlockNumbers) -> Tensor:
    """Return the block of each item of the next batch of a stream, (b,); an item belongs to one document."""
    lengths = counts.sum(1)  # (b,)
    counted = int(lengths.sum())
    if not counted:
        return torch.zeros(len(lengths), dtype=torch.int64)
    of_tokens = numbers.of(torch.repeat_interleave(batch.document[:, 0], lengths))  # (counted,)
    return of_tokens[(lengths.cumsum(0) - lengths).clamp(max=counted - 1)]


def take_items(batch: Batch, index: Tensor) -> Batch:
    """Return some items of a batch: their inputs and their tables."""
    inputs = {name: take_rows(x, index, len(batch.document)) for name, x in batch.inputs.items()}
    decoder = None if batch.decoder is None else replace(batch.decoder, **_columns(batch.decoder, index))
    columns: dict[str, Any] = _columns(batch, index)
    return replace(batch, **columns, inputs=inputs, decoder=decoder)


def take_rows(x: Any, index: Tensor, items: int) -> Any:
    """Return some rows of an input that has one row per item; any other input unchanged."""
    return x[index.to(x.device)] if isinstance(x, Tensor) and x.ndim and len(x) == items else x


def _columns(table: TokenTable, index: Tensor) -> dict[str, Tensor]:
    return {field.name: getattr(table, field.name)[index] for field in fields(TokenTable)}
