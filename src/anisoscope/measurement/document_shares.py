"""Which documents each of several processes measures, so that their statistics add up to those of one process."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from anisoscope.data.token_table import Batch, TokenTable
from anisoscope.stats.documents import BlockNumbers


@dataclass(frozen=True)
class Share:
    """One of `of` equal shares of the data: the smallest blocks of documents are dealt to the shares in turn.

    A block is a pure function of the data. So shares are disjoint and hold whole documents, and each of their blocks
    is a block of the whole. All processes read all data (tokenising is cheap) and run the model on their share.

    >>> Share(1, 2).owns(torch.tensor([0, 0, 1, 1, 2, 3])).tolist()
    [False, False, True, True, False, True]
    """

    index: int = 0
    of: int = 1
    forward_all: bool = False  # every process runs the model on all the data (its layers are split over them)

    def owns(self, block: Tensor) -> Tensor:
        """Return which items belong to this share, given their blocks, (b,) -> (b,) bool."""
        return block % self.of == self.index

    def pieces(self, batch: Batch, inputs: Any, block: Tensor) -> Iterator[tuple[Batch, Any, Tensor]]:
        """Yield what this process runs the model on: parts of a batch, of what it was made from, and of its blocks.

        A batch is `of` times as large as a forward pass may be, so a share that holds more of it is split.

        Args:
            batch: The batch.
            inputs: What it was made from.
            block: The block of each item, (b,).
        """
        if self.of == 1 or self.forward_all:
            yield batch, inputs, block
            return
        mine = self.owns(block).nonzero()[:, 0]
        size = max(1, len(block) // self.of)
        for first in range(0, len(mine), size):
            items = mine[first : first + size]
            yield _items(batch, items), _rows(inputs, items, len(block)), block[items]


def blocks_of(batch: Batch, counts: Tensor, numbers: BlockNumbers) -> Tensor:
    """Return the block of each item of the next batch of a stream, (b,); an item belongs to one document."""
    lengths = counts.sum(1)  # (b,)
    counted = int(lengths.sum())
    if not counted:
        return torch.zeros(len(lengths), dtype=torch.int64)
    of_tokens = numbers.of(torch.repeat_interleave(batch.document[:, 0], lengths))  # (counted,)
    return of_tokens[(lengths.cumsum(0) - lengths).clamp(max=counted - 1)]


def _items(batch: Batch, index: Tensor) -> Batch:
    """Return some items of a batch: their inputs and their tables."""
    inputs = {name: _rows(x, index, len(batch.document)) for name, x in batch.inputs.items()}
    decoder = None if batch.decoder is None else replace(batch.decoder, **_columns(batch.decoder, index))
    columns: dict[str, Any] = _columns(batch, index)
    return replace(batch, **columns, inputs=inputs, decoder=decoder)


def _rows(x: Any, index: Tensor, items: int) -> Any:
    """Return some rows of an input that has one row per item; any other input unchanged."""
    return x[index.to(x.device)] if isinstance(x, Tensor) and x.ndim and len(x) == items else x


def _columns(table: TokenTable, index: Tensor) -> dict[str, Tensor]:
    return {field.name: getattr(table, field.name)[index] for field in fields(TokenTable)}
