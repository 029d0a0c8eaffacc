"""A stream of rows in batches of any size, cut into pieces of one size: results then do not depend on the batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from anisoscope.errors import InputError
from anisoscope.stats.collect import BLOCKS, as_rows
from anisoscope.stats.documents import BlockNumbers, segments
from anisoscope.stats.rows import Rows, bare_rows

PIECE = 8192  # rows that are collected at once, as `measure_rows` reads a file
_UNIT = 1024  # rows of the smallest block if the total is not known
_WORKER_ROWS = 1 << 40  # rows that one worker may number


class RowStream:
    """Numbers rows, assigns them to blocks of documents, and cuts them into pieces of `PIECE` rows.

    Args:
        worker: The worker whose rows these are. Its number is part of every row's number.
        seed: Seed of the rows' keys.
        expected: Number of rows that will come, if known.
    """

    def __init__(self, worker: int, seed: int, expected: int | None) -> None:
        self._first = worker * _WORKER_ROWS
        self._seed = seed
        self._expected = expected
        self.rows = 0  # so far
        self.sequences = 0  # so far
        self.documented = False
        self._buffer: Tensor | None = None  # (PIECE, d), of which the first `_used` rows wait
        self._used = 0
        self._documents = torch.zeros(PIECE, dtype=torch.int64)
        self._last: int | None = None  # the document of the last row
        self._known: set[int] = set()  # documents so far
        self._numbers: BlockNumbers | None = None  # of the rows that were given out

    @property
    def unit(self) -> str:
        """What blocks consist of."""
        return "documents" if self.documented else "rows"

    def next_sequence(self, count: int) -> Tensor:
        """Number the sequences of a batch: each is a document of its own."""
        first = self._first + self.sequences
        self.sequences += count
        return torch.arange(first, first + count)

    def add(self, x: Tensor, document: Tensor | None) -> Iterator[Rows]:
        """Add rows (n, d) with their documents, and yield the pieces that are full."""
        if self.rows and self.documented != (document is not None):
            raise InputError(
                "Some batches came with documents and some without. Give documents with all, or with none."
            )
        if self._buffer is not None and x.shape[1] != self._buffer.shape[1]:
            raise InputError(f"Rows of {x.shape[1]} numbers follow rows of {self._buffer.shape[1]}. Use one width.")
        self.documented = document is not None
        if document is not None:
            self._check_order(document)
        if self._buffer is not None and self._buffer.dtype != x.dtype and self._used:
            yield self._piece()
        start = 0
        while start < len(x):
            if self._used == PIECE:  # not before more rows come: a total of one piece has smaller blocks
                yield self._piece()
            if self._buffer is None or self._buffer.dtype != x.dtype:  # collectors copy what they keep of a piece
                device = x.device if self._buffer is None else self._buffer.device
                self._buffer = torch.empty(PIECE, x.shape[1], dtype=x.dtype, device=device)
            count = min(PIECE - self._used, len(x) - start)
            into = slice(self._used, self._used + count)
            self._buffer[into] = x[start : start + count]
            if document is not None:
                self._documents[into] = document[start : start + count]
            self._used += count
            self.rows += count
            start += count

    def rest(self) -> Iterator[Rows]:
        """Yield the rows that wait for a full piece. They stay in the stream."""
        if self._used:
            numbers = self._numbers or BlockNumbers(self._block_rows())
            yield self._made(BlockNumbers(*numbers.state()))  # type: ignore[arg-type]

    def seen(self) -> dict[str, Any]:
        """What the sum of two streams needs to know."""
        return {"rows": self.rows, "documented": self.documented, "documents": self._known}

    def absorb(self, seen: dict[str, Any]) -> None:
        """Count the rows of another worker."""
        if self.rows and self.documented != seen["documented"]:
            raise InputError("Only one of the two came with documents. Give documents to both, or to none.")
        both = self._known & seen["documents"]
        if both:
            raise InputError(f"Document {min(both)} is in both. Give all rows of a document to one worker.")
        self.rows += seen["rows"]
        self.documented = seen["documented"]
        self._known = self._known | seen["documents"]

    def state(self) -> dict[str, Any]:
        """Return everything as tensors and numbers."""
        return {
            "rows": self.rows,
            "sequences": self.sequences,
            "documented": self.documented,
            "last": self._last,
            "known": torch.tensor(sorted(self._known), dtype=torch.int64),
            "numbers": None if self._numbers is None else self._numbers.state(),
            "waiting": None if self._buffer is None else self._buffer[: self._used].clone(),
            "documents": self._documents[: self._used].clone(),
        }

    def load(self, state: dict[str, Any]) -> None:
        """Continue from what `state` returned."""
        self.rows, self.sequences = state["rows"], state["sequences"]
        self.documented, self._last = state["documented"], state["last"]
        self._known = set(state["known"].tolist())
        self._numbers = None if state["numbers"] is None else BlockNumbers(*state["numbers"])
        waiting = state["waiting"]
        if waiting is not None:
            self._used = len(waiting)
            self._buffer = waiting.new_empty(PIECE, waiting.shape[1])
            self._buffer[: self._used] = waiting
            self._documents[: self._used] = state["documents"]

    def _block_rows(self) -> int:
        """Rows of the smallest block. A total below one piece is known at the end: `measure_rows` does the same."""
        if self._expected is None and self.rows > PIECE:
            return _UNIT
        return max(1, -(-(self._expected or self.rows) // BLOCKS))

    def _piece(self) -> Rows:
        if self._numbers is None:
            self._numbers = BlockNumbers(_UNIT if self._expected is None else self._block_rows())
        rows = self._made(self._numbers)
        self._used = 0
        return rows

    def _made(self, numbers: BlockNumbers) -> Rows:
        """The waiting rows with their numbers, documents, keys and blocks."""
        assert self._buffer is not None
        x = self._buffer[: self._used]
        before = self.rows - self._used  # in `add`, `rows` counts the rows of the buffer already
        number = torch.arange(before, self.rows)
        document = self._documents[: self._used].clone() if self.documented else None
        block = number // (numbers.state()[0] or 1) if document is None else numbers.of(document)
        return bare_rows(x, first=self._first + before, document=document, block=block, seed=self._seed)

    def _check_order(self, document: Tensor) -> None:
        """Require that the rows of each document follow each other."""
        _, ids = segments(document)
        listed = ids.tolist()
        new = listed[1:] if listed[0] == self._last else listed
        again = next((each for each in new if each in self._known), None)
        if again is not None or len(set(new)) != len(new):
            which = f"Document {again}" if again is not None else "A document"
            raise InputError(f"{which} continues after another one. Sort the rows by document.")
        self._known.update(new)
        self._last = listed[-1]


def flat_rows(
    rows: Any, mask: Any, documents: Any, next_sequence: Callable[[int], Tensor]
) -> tuple[Tensor, Tensor | None]:
    """Return the rows that count as (n, d), and the document of each.

    Args:
        rows: Rows (n, d) or (batch, time, d).
        mask: Which rows count, in the shape of the rows without d; None for all.
        documents: A document for each row, or for each sequence; None if there are none.
        next_sequence: Returns new document numbers for sequences that have none.

    >>> flat_rows([[1.0], [2.0]], [True, False], None, torch.arange)[0].tolist()
    [[1.0]]
    """
    x = rows.detach() if isinstance(rows, Tensor) else torch.as_tensor(_array(rows))
    shape = tuple(x.shape[:-1])
    if x.ndim not in (2, 3):
        raise InputError(f"Rows have the shape (n, d) or (batch, time, d), not {tuple(x.shape)}.")
    if not x.numel():
        return x.reshape(0, x.shape[-1]), None
    document = None if documents is None else _ids(documents)
    if x.ndim == 3:
        document = next_sequence(shape[0]) if document is None else document
        if document.shape == shape[:1]:
            document = document[:, None].expand(shape)
    if document is not None and tuple(document.shape) != shape:
        raise InputError(f"The documents have the shape {tuple(document.shape)}, the rows {shape}. Give one per row.")
    flat = as_rows(x.reshape(-1, x.shape[-1]))
    ids = None if document is None else document.reshape(-1)
    if mask is None:
        return flat, ids
    keep = torch.as_tensor(mask)
    if tuple(keep.shape) != shape:
        raise InputError(f"The mask has the shape {tuple(keep.shape)}, the rows {shape}. Give one entry per row.")
    keep = keep.reshape(-1).bool()
    return flat[keep.to(flat.device)], None if ids is None else ids[keep.cpu()]


def _ids(documents: Any) -> Tensor:
    try:
        ids = torch.as_tensor(documents)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"Documents are whole numbers, one per row ({error}). Number them.") from None
    if ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool:
        raise InputError(f"Documents are whole numbers, one per row, not {ids.dtype}. Number them.")
    return ids.to("cpu", torch.int64)


def _array(rows: Any) -> Any:
    if hasattr(rows, "select_dtypes"):  # a data frame
        return as_rows(rows)
    array = np.asarray(rows)
    return array if array.flags.writeable else array.copy()
