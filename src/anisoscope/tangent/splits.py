"""Fit tokens and test tokens: two sides of a test that must not share a window or a document."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from anisoscope.data.inputs import as_batch
from anisoscope.data.token_table import Batch, TokenTable, table_of_length
from anisoscope.errors import InputError
from anisoscope.stats.rows import Tokens, token_table
from anisoscope.tangent.gradients import BLOCKS


@dataclass(frozen=True)
class Side:
    """The batches of one side, kept: token ids are small beside what a model makes of them.

    `block` counts documents into blocks of about equally many tokens; `sinks` says whether the first token of a window
    counts; `named` whether documents were numbered by whoever made the batches.
    """

    batches: tuple[Batch, ...]
    block: dict[int, int]
    sinks: bool
    named: bool
    seed: int
    _chosen: dict[tuple[int, str, int], tuple[Tensor, Tokens]] = field(default_factory=dict, repr=False, compare=False)

    def chosen(self, number: int, stack: str, length: int) -> tuple[Tensor, Tokens]:
        """The flat places of a batch's tokens that count at a stage of this length, and their table."""
        at = (number, stack, length)
        if at not in self._chosen:
            batch = self.batches[number]
            whole: TokenTable = batch.decoder if stack == "dec" and batch.decoder is not None else batch
            table = table_of_length(whole, length)
            counts = table.counts if self.sinks else table.counts & (table.offset > 0)
            document = table.document[counts]
            self._chosen[at] = (
                counts.flatten().nonzero()[:, 0],
                token_table(
                    document,
                    table.position[counts],
                    offset=table.offset[counts],
                    token=table.token[counts],
                    block=torch.tensor([self.block[d] for d in document.tolist()]),
                    seed=self.seed,
                ),
            )
        return self._chosen[at]

    @property
    def documents(self) -> set[int]:
        return set(self.block)

    @property
    def unit(self) -> str:
        return self.batches[0].unit

    def __len__(self) -> int:
        return sum(int(batch.counts.sum()) for batch in self.batches)


def make_side(batches: Iterable[Any], name: str, *, sinks: bool, seed: int) -> Side:
    """One side of the test from batches of any kind."""
    kept: list[Batch] = []
    named = True
    for given in batches:
        first = int(kept[-1].document.max()) + 1 if kept else 0
        named &= isinstance(given, Batch)
        batch = as_batch(given, first)
        if isinstance(given, Tensor):
            batch = replace(batch, inputs={"input_ids": given})
        kept.append(batch)
    if not kept:
        raise InputError(f"{name}= holds no batches; expected some of the tokens to {name} on")
    return Side(tuple(kept), _blocks(kept), sinks, named, seed)


def require_apart(fit: Side, test: Side) -> None:
    """Fit and test tokens must differ: a gradient lies in the span of its own batch's activations by construction."""
    same = _digests(fit) & _digests(test)
    if same:
        raise InputError(
            f"{len(same)} windows are in both fit= and test=; a basis must be tested on other tokens than it was "
            "fitted on: split the documents first"
        )
    shared = fit.documents & test.documents
    if fit.named and test.named and shared:
        raise InputError(
            f"document {min(shared)} and {len(shared) - 1} more are in both fit= and test=; windows of one document "
            "are not independent: split by document, or number the documents of both sides apart"
        )


def split_batches(batches: Iterable[Batch]) -> tuple[list[Batch], list[Batch]]:
    """Batches in halves that share no document; windows of the one that would be cut go to neither side's test."""
    every = list(batches)
    if len(every) < 2:
        raise InputError(
            f"the text fills {len(every)} batch; a test needs two at least: give more text or tokens, or a smaller "
            "batch or window"
        )
    fit, rest = every[: len(every) // 2], every[len(every) // 2 :]
    known = {int(d) for batch in fit for d in batch.document[batch.counts].unique()}
    test = [kept for batch in rest if (kept := _without(batch, known)) is not None]
    if not test:
        raise InputError("all windows belong to one document; mark documents (--document-mark), or give several")
    return fit, test


def _without(batch: Batch, documents: set[int]) -> Batch | None:
    """The rows of a batch whose documents are others than these."""
    rows = torch.tensor([int(d) not in documents for d in batch.document[:, 0]])
    if bool(rows.all()):
        return batch
    if not bool(rows.any()):
        return None
    columns = {name: getattr(batch, name)[rows] for name in ("document", "position", "offset", "token", "counts")}
    inputs = {name: x[rows] for name, x in batch.inputs.items()}
    return replace(batch, **columns, special=batch.special[rows], inputs=inputs)


def _blocks(batches: list[Batch]) -> dict[int, int]:
    """Which block each document is counted in: contiguous documents, blocks of about equally many tokens."""
    sizes: dict[int, int] = {}
    for batch in batches:
        for table in (batch, *([batch.decoder] if batch.decoder is not None else [])):
            documents, counts = table.document.unique(return_counts=True)
            for document, count in zip(documents.tolist(), counts.tolist(), strict=True):
                sizes[document] = sizes.get(document, 0) + count
    total, before = sum(sizes.values()), 0
    block: dict[int, int] = {}
    for document, size in sizes.items():
        block[document] = min(BLOCKS - 1, (before + size // 2) * BLOCKS // max(1, total))
        before += size
    return block


def _digests(side: Side) -> set[bytes]:
    """A digest of what each window says: its token ids, or the numbers of an item that has none."""
    out: set[bytes] = set()
    for batch in side.batches:
        has_ids = bool((batch.token >= 0).any())
        main = batch.token if has_ids else next(x for x in batch.inputs.values() if isinstance(x, Tensor)).cpu()
        for row, counts in zip(main, batch.counts, strict=True):
            part = row[counts] if has_ids else row
            out.add(hashlib.blake2b(part.contiguous().numpy().tobytes(), digest_size=16).digest())
    return out
