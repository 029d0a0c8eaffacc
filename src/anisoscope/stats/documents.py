"""Sums of unit rows per document, from which pairs of rows in different documents follow; and blocks of documents."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from anisoscope.stats.arithmetic import GROUP, double, full_precision, weighted_sums
from anisoscope.stats.rows import Rows

_LONG = 32  # rows per document, on average


@dataclass(frozen=True)
class Documents:
    """Sums over complete documents b; the first and the last document may continue and are kept separately.

    With U_b = Σ u over document b and n_b its number of rows with a direction: `square` = Σ n_b² and `unit_square` =
    Σ ‖U_b‖². The rows of a document must be contiguous. Adding joins the last document of one side and the first of the
    other if they are the same.
    """

    count: int  # complete documents
    rows: Tensor  # () Σ n_b
    square: Tensor  # ()
    unit_square: Tensor  # ()
    open_id: Tensor  # (k,) int64, k = 0, 1 or 2
    open_n: Tensor  # (k,)
    open_unit: Tensor  # (k, d)

    @classmethod
    def of(cls, rows: Rows) -> Documents:
        x = rows.plain
        starts, ids = segments(rows.tokens.document)
        length = starts.diff(append=torch.tensor([len(x)]))
        segment = torch.repeat_interleave(torch.arange(len(ids)), length)
        with full_precision(x.device):
            sums = _unit_sums(x, rows.inverse_norm, length, segment)  # (k, d)
            directed = (rows.norm > 0).to(x.dtype)
            number = double(x.new_zeros(len(ids)).index_add_(0, segment.to(x.device), directed))
        zero = sums.new_zeros(())
        return _close(cls(0, zero, zero, zero, ids, number, sums))

    def __add__(self, other: Documents) -> Documents:
        ids = torch.cat((self.open_id, other.open_id))
        number = torch.cat((self.open_n, other.open_n))
        unit = torch.cat((self.open_unit, other.open_unit))
        k = len(self.open_id)
        if k and len(other.open_id) and ids[k - 1] == ids[k]:
            number = torch.cat((number[: k - 1], number[k - 1 : k + 1].sum(0, keepdim=True), number[k + 1 :]))
            unit = torch.cat((unit[: k - 1], unit[k - 1 : k + 1].sum(0, keepdim=True), unit[k + 1 :]))
            ids = torch.cat((ids[:k], ids[k + 1 :]))
        return _close(
            Documents(
                self.count + other.count,
                self.rows + other.rows,
                self.square + other.square,
                self.unit_square + other.unit_square,
                ids,
                number,
                unit,
            )
        )

    def without(self, part: Documents) -> Documents:
        """Return the sums without the documents of `part`, all of them whole."""
        zero = self.open_n[:0]
        return Documents(
            self.documents - part.documents,
            torch.tensor(self.all_rows - part.all_rows, dtype=torch.float64),
            torch.tensor(self.all_square - part.all_square, dtype=torch.float64),
            torch.tensor(self.all_unit_square - part.all_unit_square, dtype=torch.float64),
            self.open_id[:0],
            zero,
            self.open_unit[:0],
        )

    @property
    def documents(self) -> int:
        """Number of documents, including the first and the last."""
        return self.count + len(self.open_id)

    @property
    def all_rows(self) -> float:
        """Σ n_b over all documents, including the first and the last."""
        return float(self.rows + self.open_n.sum())

    @property
    def all_square(self) -> float:
        """Σ n_b² over all documents, including the first and the last."""
        return float(self.square + self.open_n.square().sum())

    @property
    def all_unit_square(self) -> float:
        """Σ ‖U_b‖² over all documents, including the first and the last."""
        return float(self.unit_square + self.open_unit.square().sum())


def _unit_sums(x: Tensor, weight: Tensor, length: Tensor, segment: Tensor) -> Tensor:
    """Return Σ u of each document, (n, d), (n,) -> (k, d); one product per document if they are long."""
    if len(x) > _LONG * len(length):
        parts = zip(x.split(length.tolist()), weight.split(length.tolist()), strict=True)
        return torch.cat([weighted_sums(weights[None], part) for part, weights in parts])
    inside = torch.arange(len(x)) - torch.repeat_interleave(length.cumsum(0) - length, length)  # index in the document
    opens = inside % GROUP == 0  # (n,) True at the start of a short run of rows of one document
    run, home = (opens.cumsum(0) - 1).to(x.device), segment[opens]
    runs = double(x.new_zeros(len(home), x.shape[1]).index_add_(0, run, x * weight[:, None]))  # (runs, d)
    return runs.new_zeros(len(length), x.shape[1]).index_add_(0, home.to(runs.device), runs)


def segments(document: Tensor) -> tuple[Tensor, Tensor]:
    """Return where each run of equal document ids starts, and its id."""
    change = torch.ones(len(document), dtype=torch.bool)
    change[1:] = document[1:] != document[:-1]
    starts = change.nonzero()[:, 0]
    return starts, document[starts]


def _close(open_: Documents) -> Documents:
    """Complete all open documents except the first and the last."""
    k = len(open_.open_id)
    if k <= 2:
        return open_
    ends = torch.tensor([0, k - 1])
    return Documents(
        open_.count + k - 2,
        open_.rows + open_.open_n[1:-1].sum(),
        open_.square + open_.open_n[1:-1].square().sum(),
        open_.unit_square + open_.open_unit[1:-1].square().sum(),
        open_.open_id[ends],
        open_.open_n[ends.to(open_.open_n.device)],
        open_.open_unit[ends.to(open_.open_unit.device)],
    )


class BlockNumbers:
    """Numbers the blocks of a stream of tokens: (tokens before the document) // unit."""

    def __init__(self, unit: int, before: int = 0, document: int | None = None, number: int = 0) -> None:
        self._unit = unit
        self._before = before
        self._document = document
        self._number = number

    def state(self) -> list[int | None]:
        """Return the arguments of a constructor that continues from here."""
        return [self._unit, self._before, self._document, self._number]

    def of(self, document: Tensor) -> Tensor:
        """Return the block numbers of the next tokens, given their documents, (n,) -> (n,)."""
        starts, ids = segments(document)
        numbers = []
        for start, each in zip(starts.tolist(), ids.tolist(), strict=True):
            if each != self._document:
                self._document, self._number = each, (self._before + start) // self._unit
            numbers.append(self._number)
        lengths = starts.diff(append=torch.tensor([len(document)]))
        self._before += len(document)
        return torch.repeat_interleave(torch.tensor(numbers, dtype=torch.int64), lengths)
