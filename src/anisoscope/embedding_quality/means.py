"""Means with standard errors over queries, rows or blocks of rows."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from anisoscope.stats.inference import jackknife

FEWEST = 4  # units that an error bar needs


class MeanError(NamedTuple):
    """A mean, its standard error and the number of units that were left out in turn."""

    value: float
    error: float | None
    units: int


def mean_of(values: Tensor, block: Tensor | None = None) -> MeanError:
    """Return the mean of values (n,) with a jackknife error over single values, or over blocks of them.

    >>> mean_of(torch.tensor([1.0, 2.0, 3.0, 4.0])).value
    2.5
    """
    values = values.double()
    if block is None:
        sums, sizes = values, torch.ones_like(values)
    else:
        number, which = block.unique(return_inverse=True)
        sums = torch.zeros(len(number), dtype=torch.float64).index_add_(0, which, values)
        sizes = torch.bincount(which, minlength=len(number)).double()
    n, total = float(sizes.sum()), float(sums.sum())
    if len(sums) < FEWEST:
        return MeanError(total / n, None, len(sums))
    without = ((total - sums) / (n - sizes)).tolist()
    return MeanError(total / n, jackknife(total / n, without, [int(size) for size in sizes.tolist()]), len(sums))
