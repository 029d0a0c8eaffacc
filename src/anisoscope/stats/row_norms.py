"""A histogram of row norms on a log scale, which gives every quantile within one per cent."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from anisoscope.stats.rows import Rows

_PER_OCTAVE = 64  # bins 1.1 % wide
_LOWEST = -64  # log2 of the lowest edge
_OCTAVES = 192  # 2^-64 … 2^128, float32's range and more


@dataclass(frozen=True)
class Norms:
    """Number of rows per bin of the norm; `zero` counts rows of norm 0, the end bins everything beyond."""

    zero: Tensor  # ()
    count: Tensor  # (bins,) int64

    @classmethod
    def of(cls, rows: Rows) -> Norms:
        norm = rows.norm  # (n,)
        bin_index = ((norm.log2() - _LOWEST) * _PER_OCTAVE).nan_to_num(0.0).clamp(0, _PER_OCTAVE * _OCTAVES - 1).long()
        nonzero = (norm > 0).long()
        count = torch.zeros(_PER_OCTAVE * _OCTAVES, dtype=torch.int64, device=norm.device)
        return cls((norm == 0).sum(), count.scatter_add_(0, bin_index, nonzero))

    def __add__(self, other: Norms) -> Norms:
        return Norms(self.zero + other.zero, self.count + other.count)

    def without(self, part: Norms) -> Norms:
        """Return the histogram without the rows of `part`."""
        return Norms(self.zero - part.zero, self.count - part.count)

    def quantile(self, share: float) -> float:
        """Return the norm below which a share of the rows lies, log-linear inside its bin.

        >>> from anisoscope.stats.rows import bare_rows
        >>> round(Norms.of(bare_rows(torch.tensor([[1.0], [2.0], [3.0]]))).quantile(0.5), 1)
        2.0
        """
        cumulated = torch.cumsum(self.count.cpu(), 0)
        below = int(self.zero)
        target = share * (int(cumulated[-1]) + below) - below
        if target <= 0:
            return 0.0
        bin_index = min(int(torch.searchsorted(cumulated, target)), len(cumulated) - 1)
        inside = (target - (int(cumulated[bin_index - 1]) if bin_index else 0)) / max(int(self.count[bin_index]), 1)
        return float(2.0 ** ((bin_index + inside) / _PER_OCTAVE + _LOWEST))

    @property
    def median(self) -> float:
        """Median of the norms."""
        return self.quantile(0.5)

    @property
    def median_is_inside(self) -> bool:
        """Whether the median is not in one of the end bins, which hold everything beyond."""
        return _LOWEST + 1 / _PER_OCTAVE < math.log2(self.median or 1.0) < _LOWEST + _OCTAVES - 1 / _PER_OCTAVE
