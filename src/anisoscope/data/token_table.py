"""Batches: the inputs of a model with a table of their tokens."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

import torch
from torch import Tensor

from anisoscope.errors import InputError

Item = TypeVar("Item")


@dataclass(frozen=True)
class TokenTable:
    """Facts about the b × T tokens of a batch; all columns are on the CPU.

    `document` and `position` identify a token. If only the model knows how many positions an item has (images, sound),
    T is 1 or the number of input frames, and `table_of_length` converts the table to the model's length.
    """

    document: Tensor  # (b, T) int64
    position: Tensor  # (b, T) int64, continues over the windows of one document
    offset: Tensor  # (b, T) int64, index in the window; 0 is the first token that the model sees, the attention sink
    token: Tensor  # (b, T) int64, -1 if there is none
    counts: Tensor  # (b, T) bool, False for padding
    special: Tensor  # (b, T) bool, True for [CLS], <s>, …


@dataclass(frozen=True)
class Batch(TokenTable):
    """The inputs of one forward pass, `model(**batch.inputs)`, and the table of their tokens.

    Attributes:
        inputs: keyword arguments of the model.
        decoder: the table of the decoder's tokens in an encoder-decoder model.
        unit: what a document id refers to: "documents", "windows" (of one text without marks), "images" or "clips".
    """

    inputs: dict[str, Tensor] = field(default_factory=dict)
    decoder: TokenTable | None = None
    unit: str = "documents"


def window_table(ids: Tensor, lengths: Tensor, document: Tensor, start: Tensor, special: Tensor) -> TokenTable:
    """Make the table of right-padded windows: ids and special (b, T); lengths, document and start (b,)."""
    b, T = ids.shape
    offset = torch.arange(T).expand(b, T)  # (b, T)
    counts = offset < lengths[:, None]  # (b, T)
    return TokenTable(
        document=document[:, None].expand(b, T).contiguous(),
        position=start[:, None] + offset,
        offset=offset.contiguous(),
        token=ids.masked_fill(~counts, -1),
        counts=counts,
        special=special & counts,
    )


def table_without_ids(document: Tensor, counts: Tensor) -> TokenTable:
    """Make the table of items without token ids (images, clips): document (b,), counts (b, T)."""
    b, T = counts.shape
    offset = torch.arange(T).expand(b, T).contiguous()  # (b, T)
    return TokenTable(
        document=document[:, None].expand(b, T).contiguous(),
        position=offset,
        offset=offset,
        token=torch.full((b, T), -1),
        counts=counts,
        special=torch.zeros(b, T, dtype=torch.bool),
    )


def make_batch(
    table: TokenTable, inputs: dict[str, Tensor], unit: str = "documents", decoder: TokenTable | None = None
) -> Batch:
    """Combine a table with the inputs that produce its tokens."""
    return Batch(**vars(table), inputs=inputs, decoder=decoder, unit=unit)


def table_of_length(table: TokenTable, length: int) -> TokenTable:
    """Convert a table of T positions to the `length` positions of a layer (patches, strided frames, pooled tokens).

    Position t covers the input positions ⌊tT/length⌋ … ⌈(t+1)T/length⌉ - 1. It counts if all of them count, and has no
    token id. Example: counts [1, 1, 1, 0] at length 2 become [1, 0].
    """
    T = table.counts.shape[1]
    if length == T:
        return table
    index = torch.arange(length)
    first, end = index * T // length, -((index + 1) * -T // length)  # (length,) each
    cumulative = torch.nn.functional.pad(table.counts.cumsum(1), (1, 0))  # (b, T + 1): how many of the first j count
    counts = cumulative[:, end] - cumulative[:, first] == end - first  # (b, length)
    return table_without_ids(table.document[:, 0], counts)


def group_consecutive(items: Iterable[Item], size: int, key: Callable[[Item], Hashable]) -> Iterator[list[Item]]:
    """Yield consecutive items in lists of at most `size` that share a key; a new key starts a new list.

    >>> list(group_consecutive("aabaaa", 2, key=str))
    [['a', 'a'], ['b'], ['a', 'a'], ['a']]
    """
    group: list[Item] = []
    for item in items:
        if group and (len(group) == size or key(item) != key(group[0])):
            yield group
            group = []
        group.append(item)
    if group:
        yield group


def require_positive(**options: float | None) -> None:
    """Raise an InputError for options that are not above zero; None is allowed."""
    for name, value in options.items():
        if value is not None and value <= 0:
            raise InputError(f"{name} is {value}. It must be above zero.")
