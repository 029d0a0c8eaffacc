"""Fit tokens and test tokens: the two sides of a test, which must not share a window or a document."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from anisoscope.data.inputs import as_batch
from anisoscope.data.token_table import Batch, TokenTable, table_of_length
from anisoscope.errors import InputError
from anisoscope.measurement.policies import FlaggedTokens
from anisoscope.records import Site
from anisoscope.stats.rows import Tokens, token_table
from anisoscope.tangent.gradients import BLOCKS


class Side:
    """The batches of one side, and which of their tokens count.

    Batches are kept in memory: token ids are small compared with activations.

    Attributes:
        batches: The batches.
        block: The block of each document; blocks hold about equally many tokens.
        sinks: Whether first tokens of windows and massive tokens count.
        numbered: Whether the caller numbered the documents.
        seed: The seed of the token keys.
        flagged: The massive tokens so far, filled site by site.
    """

    def __init__(self, batches: Iterable[Batch], *, sinks: bool, numbered: bool, seed: int) -> None:
        self.batches = tuple(batches)
        self.block = _blocks(self.batches)
        self.sinks = sinks
        self.numbered = numbered
        self.seed = seed
        self.flagged = FlaggedTokens()
        self._tokens: dict[tuple[int, str, int], tuple[Tensor, Tokens]] = {}

    def tokens(self, number: int, stack: str, length: int) -> tuple[Tensor, Tokens]:
        """The tokens of a batch that may count, before any is flagged.

        Args:
            number: The number of the batch.
            stack: The stack of layers.
            length: The number of positions in that stack.

        Returns:
            Their indices (n,) into the flattened batch, and their table.
        """
        key = (number, stack, length)
        if key not in self._tokens:
            table = self._table(number, stack, length)
            counts = table.counts if self.sinks else table.counts & (table.offset > 0)
            document = table.document[counts]
            self._tokens[key] = (
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
        return self._tokens[key]

    def flag(self, number: int, site: Site, h: Tensor, longest: float) -> None:
        """Flag the tokens of a batch whose activations h (b, T, d) at a site are longer than `longest`."""
        if self.sinks:
            return
        index, tokens = self.tokens(number, site.stack, h.shape[1])
        norm = torch.linalg.vector_norm(h.reshape(-1, h.shape[-1])[index.to(h.device)], dim=1)  # (n,)
        self.flagged.flag(site, tokens.key[~(norm <= longest).cpu()])  # NaN is massive too

    def unflagged(self, number: int, site: Site, length: int) -> Tensor:
        """Which of the `tokens` of a batch count at a site: their indices (n,) in that list."""
        _, tokens = self.tokens(number, site.stack, length)
        return (~torch.isin(tokens.key, self.flagged.at(site))).nonzero()[:, 0]

    def counts(self, number: int, stack: str, length: int) -> Tensor:
        """The indices (n,) of all tokens of a batch, first tokens of windows included."""
        return self._table(number, stack, length).counts.flatten().nonzero()[:, 0]

    def _table(self, number: int, stack: str, length: int) -> TokenTable:
        batch = self.batches[number]
        whole: TokenTable = batch.decoder if stack == "dec" and batch.decoder is not None else batch
        return table_of_length(whole, length)

    @property
    def documents(self) -> set[int]:
        return set(self.block)

    @property
    def unit(self) -> str:
        """What documents are: documents, windows, images."""
        return self.batches[0].unit

    def __len__(self) -> int:
        return sum(int(batch.counts.sum()) for batch in self.batches)


def make_side(batches: Iterable[Any], name: str, *, sinks: bool, seed: int) -> Side:
    """Make one side of a test.

    Args:
        batches: Batches of any kind that `tangent_test` takes.
        name: "fit" or "test", for the message if there are none.
        sinks: Whether first tokens and massive tokens count.
        seed: The seed of the token keys.

    Raises:
        InputError: If there are no batches.
    """
    kept: list[Batch] = []
    numbered = True
    for item in batches:
        first = int(kept[-1].document.max()) + 1 if kept else 0
        numbered &= isinstance(item, Batch)
        batch = as_batch(item, first)
        if isinstance(item, Tensor):
            batch = replace(batch, inputs={"input_ids": item})
        kept.append(batch)
    if not kept:
        raise InputError(f"{name}= holds no batches. Pass at least one batch of tokens to {name} on.")
    return Side(kept, sinks=sinks, numbered=numbered, seed=seed)


def make_sides(fit: Iterable[Any], test: Iterable[Any], *, sinks: bool, seed: int) -> tuple[Side, Side]:
    """Make both sides of a test, which must share no tokens; see `make_side` and `require_apart`."""
    sides = make_side(fit, "fit", sinks=sinks, seed=seed), make_side(test, "test", sinks=sinks, seed=seed)
    require_apart(*sides)
    return sides


def require_apart(fit: Side, test: Side) -> None:
    """Check that two sides share no tokens: a gradient lies in the span of its own batch's activations by construction.

    Raises:
        InputError: If a window, or a document whose number the caller chose, is in both sides.
    """
    same = _digests(fit) & _digests(test)
    if same:
        raise InputError(
            f"{len(same)} windows are in both fit= and test=. A basis must be tested on other tokens than it was "
            "fitted on: split the documents first."
        )
    shared = fit.documents & test.documents
    if fit.numbered and test.numbered and shared:
        raise InputError(
            f"Document {min(shared)} and {len(shared) - 1} more are in both fit= and test=. Windows of one document "
            "are not independent: split by document, or number the documents of the two sides differently."
        )


def split_batches(batches: Iterable[Batch]) -> tuple[list[Batch], list[Batch]]:
    """Split batches into two halves that share no document.

    Windows of the document that would be cut in two are left out of the second half.

    Raises:
        InputError: If there are too few batches, or only one document.
    """
    every = list(batches)
    if len(every) < 2:
        raise InputError(
            f"The text fills {len(every)} batch, and a test needs at least two. Use more text or tokens, or a smaller "
            "batch or window."
        )
    fit, rest = every[: len(every) // 2], every[len(every) // 2 :]
    known = {int(d) for batch in fit for d in batch.document[batch.counts].unique()}
    test = [kept for batch in rest if (kept := _without(batch, known)) is not None]
    if not test:
        raise InputError("All windows belong to one document. Mark documents (--document-mark), or pass several.")
    return fit, test


def _without(batch: Batch, documents: set[int]) -> Batch | None:
    """The windows of a batch that belong to none of these documents."""
    rows = torch.tensor([int(d) not in documents for d in batch.document[:, 0]])
    if bool(rows.all()):
        return batch
    if not bool(rows.any()):
        return None
    columns = {name: getattr(batch, name)[rows] for name in ("document", "position", "offset", "token", "counts")}
    inputs = {name: x[rows] for name, x in batch.inputs.items()}
    return replace(batch, **columns, special=batch.special[rows], inputs=inputs)


def _blocks(batches: Iterable[Batch]) -> dict[int, int]:
    """The block of each document: contiguous documents, blocks of about equally many tokens."""
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
    """A digest of each window: of its token ids, or of its numbers if it has no ids."""
    out: set[bytes] = set()
    for batch in side.batches:
        has_ids = bool((batch.token >= 0).any())
        main = batch.token if has_ids else next(x for x in batch.inputs.values() if isinstance(x, Tensor)).cpu()
        for row, counts in zip(main, batch.counts, strict=True):
            part = row[counts] if has_ids else row
            out.add(hashlib.blake2b(part.contiguous().numpy().tobytes(), digest_size=16).digest())
    return out
