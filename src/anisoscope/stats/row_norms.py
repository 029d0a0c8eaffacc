"""A histogram of row norms on a log scale: it adds, and gives any quantile to one per cent."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from anisoscope.stats.rows import Rows

_PER_OCTAVE = 64  # bins 1.1 % wide
_LOWEST = -64  # log2 of the lowest edge
_OCTAVES = 192  # 2^-64 … 2^128, float32's range and more


@dataclass(frozen=True)
class Norms:
    """How many rows have a norm in each bin; `zero` counts rows of norm 0, the end bins what lies beyond."""

    zero: Tensor  # ()
    count: Tensor  # (bins,) int64

    @classmethod
    def of(cls, rows: Rows) -> Norms:
        norm = rows.norm  # (n,)
        place = ((norm.log2() - _LOWEST) * _PER_OCTAVE).nan_to_num(0.0).clamp(0, _PER_OCTAVE * _OCTAVES - 1).long()
        there = (norm > 0).long()
        count = torch.zeros(_PER_OCTAVE * _OCTAVES, dtype=torch.int64, device=norm.device)
        return cls((norm == 0).sum(), count.scatter_add_(0, place, there))

    def __add__(self, other: Norms) -> Norms:
        return Norms(self.zero + other.zero, self.count + other.count)

    def without(self, part: Norms) -> Norms:
        """The histogram of the rows that are left when `part`'s rows are taken out."""
        return Norms(self.zero - part.zero, self.count - part.count)

    def quantile(self, share: float) -> float:
        """The norm below which this share of the rows lies (log-linear inside its bin).

        >>> from anisoscope.stats.rows import bare_rows
        >>> round(Norms.of(bare_rows(torch.tensor([[1.0], [2.0], [3.0]]))).quantile(0.5), 1)
        2.0
        """
        cumulated = torch.cumsum(self.count.cpu(), 0)
        below = int(self.zero)
        target = share * (int(cumulated[-1]) + below) - below
        if target <= 0:
            return 0.0
        place = min(int(torch.searchsorted(cumulated, target)), len(cumulated) - 1)
        inside = (target - (int(cumulated[place - 1]) if place else 0)) / max(int(self.count[place]), 1)
        return float(2.0 ** ((place + inside) / _PER_OCTAVE + _LOWEST))

    @property
    def median(self) -> float:
        return self.quantile(0.5)
