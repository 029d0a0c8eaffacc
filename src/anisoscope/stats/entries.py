"""The largest entry of all rows."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from anisoscope.stats.arithmetic import double
from anisoscope.stats.rows import Rows


@dataclass(frozen=True)
class Entries:
    """Number of entries and the largest magnitude among them. A maximum cannot forget rows, so `without` keeps it."""

    n: int
    largest: Tensor  # ()

    @classmethod
    def of(cls, rows: Rows) -> Entries:
        low, high = torch.aminmax(rows.x.detach())  # unlike abs().max(), without a copy
        return cls(rows.x.numel(), torch.maximum(-double(low), double(high)))

    def __add__(self, other: Entries) -> Entries:
        return Entries(self.n + other.n, torch.maximum(self.largest, other.largest))

    def without(self, part: Entries) -> Entries:
        """Return the statistic with the entries of `part` not counted; its largest entry is an upper bound."""
        return Entries(self.n - part.n, self.largest)
