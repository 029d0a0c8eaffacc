"""Errors of attention metrics: each one against a float64 softmax of the same rounded queries and keys."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import product

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from anisoscope.measurement.head_blocks import HeadBlocks
from anisoscope.metrics import catalogue
from anisoscope.stats.head_scores import Heads
from benchmarks.accuracy.errors import DTYPES, Worst, apart_from, worst_by_metric
from tests.oracles.attention import head_numbers

_SEQUENCES, _QUERY_HEADS, _KEY_HEADS = 4, 4, 2


@dataclass(frozen=True)
class HeadCell:
    """Queries and keys of one layer; `drift` is the norm of both means in units of their spread."""

    length: int
    d: int
    drift: float
    causal: bool
    dtype: str

    def __str__(self) -> str:
        return f"heads of {self.length} × {self.d}, drift {self.drift:g}, {'causal' if self.causal else 'both sides'}"


def grid(quick: bool) -> list[HeadCell]:
    sizes = ((16, 8),) if quick else ((16, 8), (64, 32), (256, 64))
    return [
        HeadCell(length, d, drift, causal, dtype)
        for (length, d), drift, causal, dtype in product(sizes, (0.0, 1.0, 10.0, 100.0), (True, False), DTYPES)
    ]


def queries_and_keys(cell: HeadCell) -> tuple[Tensor, Tensor]:
    """Return queries (b, h, t, d) and keys (b, g, t, d), rounded to the cell's dtype; heads differ in sharpness."""
    g = torch.Generator().manual_seed(cell.length + 31 * cell.d)
    made = []
    for heads in (_QUERY_HEADS, _KEY_HEADS):
        x = torch.randn(_SEQUENCES, heads, cell.length, cell.d, generator=g, dtype=torch.float64)
        mean = torch.randn(1, heads, 1, cell.d, generator=g, dtype=torch.float64)
        x = x + cell.drift * math.sqrt(cell.d) * mean / mean.norm(dim=3, keepdim=True)
        made.append((x * torch.linspace(0.5, 2.0, heads, dtype=torch.float64)[:, None, None]).to(DTYPES[cell.dtype]))
    return made[0], made[1]


def worst_of(cell: HeadCell) -> list[Worst]:
    """Return the largest error of each attention metric in a cell."""
    q, k = queries_and_keys(cell)
    v = k.flip(3)  # values: any rows of the keys' shape
    scaling = 1 / math.sqrt(cell.d)
    blocks = HeadBlocks()
    for index in torch.arange(_SEQUENCES).split(2):
        counts = torch.ones(len(index), cell.length, dtype=torch.bool)
        blocks.add(Heads(q[index], k[index], scaling, causal=cell.causal, v=v[index]), counts, index)
    cloud = blocks.cloud()
    found = {
        name: {(v.index, *v.variant.items()): v.value for v in metric.values(cloud) if v.value is not None}
        for name, metric in catalogue().items()
        if "heads" in metric.requires and "reference" not in metric.requires
    }
    wanted = head_numbers(_numpy(q), _numpy(k), scaling, causal=cell.causal, v=_numpy(v))
    missed = sorted(set(found) - set(wanted))
    if missed:
        raise AssertionError(f"the oracle has no values for {', '.join(missed)}")
    return worst_by_metric(apart_from(wanted, found), cell.dtype, str(cell))


def _numpy(x: Tensor) -> NDArray[np.float64]:
    return x.double().numpy()
