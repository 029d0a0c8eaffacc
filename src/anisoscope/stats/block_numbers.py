"""Which block of documents each token of a stream belongs to."""

from __future__ import annotations

import torch
from torch import Tensor

from anisoscope.stats.documents import segments


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
