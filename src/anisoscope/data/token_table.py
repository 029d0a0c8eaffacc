"""What a model is fed, with what is known of each of its tokens."""

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
    """What is known of the b × T tokens of a batch; all columns live on the CPU.

    `document` and `position` name a token; `offset` is its place in the window (0 is the first token that the model
    sees, the attention sink); `counts` is False for padding. Where the model alone knows how many positions an item
    has (images, sound), T is 1, or the number of input frames, and `table_at` gives the table at the model's length.
    """

    document: Tensor  # (b, T) int64
    position: Tensor  # (b, T) int64, counts on over the windows of one document
    offset: Tensor  # (b, T) int64, 0 is the first token of its window
    token: Tensor  # (b, T) int64, -1 where there is none
    counts: Tensor  # (b, T) bool, False for padding
    special: Tensor  # (b, T) bool, True for [CLS], <s>, …


@dataclass(frozen=True)
class Batch(TokenTable):
    """The inputs of one forward pass, `model(**batch.inputs)`, and the table of the tokens that they make.

    `decoder` is the table of the decoder's side of an encoder-decoder model; `documents_are` says what a document id
    stands for: "documents", "windows" (of one unmarked text), "images" or "clips".
    """

    inputs: dict[str, Tensor] = field(default_factory=dict)
    decoder: TokenTable | None = None
    documents_are: str = "documents"


def window_table(ids: Tensor, lengths: Tensor, document: Tensor, start: Tensor, special: Tensor) -> TokenTable:
    """The table of right-padded windows: ids and special (b, T); length, document and first position of each (b,)."""
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


def item_table(document: Tensor, counts: Tensor) -> TokenTable:
    """The table of items without token ids (images, clips): document (b,), counts (b, T), T input frames or 1."""
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


def with_inputs(
    table: TokenTable, inputs: dict[str, Tensor], documents_are: str = "documents", decoder: TokenTable | None = None
) -> Batch:
    """The batch of a table and the inputs that make its tokens."""
    return Batch(**vars(table), inputs=inputs, decoder=decoder, documents_are=documents_are)


def table_at(table: TokenTable, length: int) -> TokenTable:
    """The table of a stage that has `length` positions where the input has T: patches, strided frames, pooled tokens.

    Position t stands for the input places ⌊tT/length⌋ … ⌈(t+1)T/length⌉ - 1 and counts when all of them count; it has
    no token id. Example: counts [1, 1, 1, 0] at length 2 become [1, 0].
    """
    T = table.counts.shape[1]
    if length == T:
        return table
    place = torch.arange(length)
    first, end = place * T // length, -((place + 1) * -T // length)  # (length,) each
    until = torch.nn.functional.pad(table.counts.cumsum(1), (1, 0))  # (b, T + 1): how many of the first j count
    counts = until[:, end] - until[:, first] == end - first  # (b, length)
    return item_table(table.document[:, 0], counts)


def runs(items: Iterable[Item], size: int, key: Callable[[Item], Hashable]) -> Iterator[list[Item]]:
    """Consecutive items in lists of at most `size` with one key, in order: a new key starts a new list.

    >>> list(runs("aabaaa", 2, key=str))
    [['a', 'a'], ['b'], ['a', 'a'], ['a']]
    """
    run: list[Item] = []
    for item in items:
        if run and (len(run) == size or key(item) != key(run[0])):
            yield run
            run = []
        run.append(item)
    if run:
        yield run


def require_positive(**options: float | None) -> None:
    """Refuse options that are given and not above zero."""
    for name, value in options.items():
        if value is not None and value <= 0:
            raise InputError(f"{name} is {value}; it must be above zero")
