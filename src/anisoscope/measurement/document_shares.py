"""Which documents of a stream one of several processes measures, so that their statistics add to those of one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from anisoscope.data.token_table import Batch, TokenTable
from anisoscope.stats.collector import BlockNumbers


@dataclass(frozen=True)
class Share:
    """One of `of` equal shares of the data: the smallest blocks of documents go to the shares in turn.

    A block is a pure function of the data, so shares are disjoint, hold whole documents, and every block of theirs is
    a block of the whole. All processes read all the data (tokenising is cheap) and run the model on their share.

    >>> list(Share(1, 2).pieces(torch.tensor([0, 0, 1, 1, 2, 3])))
    [tensor([2, 3, 5])]
    """

    place: int = 0
    of: int = 1
    forward_all: bool = False  # every process runs the model on all the data (its layers are split over them)

    def owns(self, block: Tensor) -> Tensor:
        """Which items are this share's, by the blocks that they lie in, (b,) -> (b,) bool."""
        return block % self.of == self.place

    def pieces(self, block: Tensor) -> Iterator[Tensor]:
        """The places of this share's items in a batch whose items lie in these blocks, (b,) -> (k,), …

        A batch is read `of` times as large as a forward pass may be, so a share that holds more of it is cut.
        """
        mine = self.owns(block).nonzero()[:, 0]
        size = max(1, len(block) // self.of)
        yield from (mine[first : first + size] for first in range(0, len(mine), size))


WHOLE = Share()


def blocks_of(batch: Batch, counts: Tensor, numbers: BlockNumbers) -> Tensor:
    """The block of each item of the next batch of a stream, (b,); an item lies in one document."""
    lengths = counts.sum(1)  # (b,)
    counted = int(lengths.sum())
    if not counted:
        return torch.zeros(len(lengths), dtype=torch.int64)
    of_tokens = numbers.of(torch.repeat_interleave(batch.document[:, 0], lengths))  # (counted,)
    return of_tokens[(lengths.cumsum(0) - lengths).clamp(max=counted - 1)]


def take_items(batch: Batch, places: Tensor) -> Batch:
    """The items at these places of a batch: their inputs and their tables."""
    inputs = {name: take_rows(x, places, len(batch.document)) for name, x in batch.inputs.items()}
    decoder = None if batch.decoder is None else replace(batch.decoder, **_columns(batch.decoder, places))
    columns: dict[str, Any] = _columns(batch, places)
    return replace(batch, **columns, inputs=inputs, decoder=decoder)


def take_rows(x: Any, places: Tensor, items: int) -> Any:
    """The rows at these places of an input that has one row an item; any other input as it is."""
    return x[places.to(x.device)] if isinstance(x, Tensor) and x.ndim and len(x) == items else x


def _columns(table: TokenTable, places: Tensor) -> dict[str, Tensor]:
    return {field.name: getattr(table, field.name)[places] for field in fields(TokenTable)}
