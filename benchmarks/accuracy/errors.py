"""Errors of arithmetic: every metric by the streaming path against float64, over a grid of clouds.

Both sides see the same rounded rows, so the error is that of our arithmetic, without the rounding of the input. The
effect of rounding the input is reported separately.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import torch
from torch import Tensor

from anisoscope.errors import MetricError
from anisoscope.metrics import Metric, catalogue, find
from anisoscope.stats.cloud import Cloud
from anisoscope.stats.collect import block_numbers, collect
from anisoscope.stats.rows import Rows, token_table
from tests.oracles.cloud import Given, Key, Numbers, numbers
from tests.oracles.digits import apart

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32, "fp64": torch.float64}
SPECTRA = ("flat", "power law", "massive row", "outlier dimension")
# values that can be zero: their error is absolute
ABSOLUTE = frozenset(
    {
        *("mean_cosine", "mean_cosine_centred", "mean_cosine_across_documents", "cosine_contribution"),
        *("partition_isotropy", "self_similarity", "intra_sentence_similarity", "max_explainable_variance"),
        *("cka", "mean_direction_drift", "outlier_dimensions", "massive_tokens", "subspace_angle", "trajectory"),
        *("attention_entropy", "sink_mass", "qk_cosine", "logit_budget"),
    }
)
SLOW_ROWS = 1024  # iterative metrics are compared up to this number of rows
_NOTHING = 1e-13  # a share below this is zero in float64
_BATCH = 1000  # rows per batch
_SHOWN = find(["spectral_anisotropy", "isoscore", "participation_ratio"])  # to show the rounding of the input
_DOCUMENT, _WORDS = 16, 11


@dataclass(frozen=True)
class Cell:
    """One cloud of the grid; `mean` is the norm of the mean row in units of the rows' spread."""

    n: int
    d: int
    mean: float
    spectrum: str
    dtype: str

    def __str__(self) -> str:
        return f"{self.n} × {self.d}, mean {self.mean:g}, {self.spectrum}"


@dataclass(frozen=True)
class Worst:
    """The largest error of a metric in one cell; `missing` counts values that only the oracle has."""

    metric: str
    dtype: str
    cell: str
    error: float
    number: str  # index and variant
    compared: int
    missing: int


def grid(quick: bool) -> list[Cell]:
    """List the cells, small ones first. In large cells, means and spectra are paired instead of crossed."""
    sizes = ((64, 8), (1024, 64)) if quick else tuple(product((64, 1024, 8192), (8, 64, 512)))
    means = (0.0, 100.0) if quick else (0.0, 1.0, 100.0, 1000.0)
    cells = [
        Cell(n, d, mean, spectrum, dtype) for (n, d), mean, spectrum, dtype in product(sizes, means, SPECTRA, DTYPES)
    ]
    return sorted((cell for cell in cells if _chosen(cell)), key=lambda cell: cell.n * cell.d)


def _chosen(cell: Cell) -> bool:
    steps = {0.0: 0, 1.0: 1, 100.0: 2, 1000.0: 3}[cell.mean] - SPECTRA.index(cell.spectrum)
    size = cell.n * cell.d
    return size <= 1024 * 64 or steps == 0 or (size <= 8192 * 64 and steps % 4 == 2)


def rows_of(cell: Cell) -> tuple[Tensor, Tensor]:
    """Return the rows of a cell and those of the same tokens at another step, (n, d) each, rounded to its dtype."""
    g = torch.Generator().manual_seed(cell.n + 31 * cell.d)
    n, d = cell.n, cell.d

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=g, dtype=torch.float64)

    number = torch.arange(n)
    document, word = normal(n // _DOCUMENT + 1, d)[number // _DOCUMENT], normal(_WORDS, d)[number % _WORDS]
    shape = torch.ones(d, dtype=torch.float64)
    frame = torch.eye(d, dtype=torch.float64)
    if cell.spectrum == "power law":
        shape = torch.arange(1, d + 1, dtype=torch.float64).rsqrt()
        frame = torch.linalg.qr(normal(d, d)).Q
    if cell.spectrum == "outlier dimension":
        shape[d // 2] = 30.0
    y = (0.7 * normal(n, d) + 0.5 * document + 0.5 * word) * shape @ frame
    then = 0.8 * y + 0.6 * (normal(n, d) * shape @ frame)
    spread = float(y.square().sum(1).mean().sqrt())
    mean, turned = (each / each.norm() for each in (normal(d), normal(d)))
    if cell.spectrum == "massive row":
        y[n // 3] *= 1000.0
    y = y + cell.mean * spread * mean
    then = then + cell.mean * spread * (mean + 0.1 * turned)
    return y.to(DTYPES[cell.dtype]), then.to(DTYPES[cell.dtype])


def ours(cell: Cell, metrics: Sequence[Metric]) -> dict[str, Numbers]:
    """Return our values of the metrics, from rows in batches."""
    now, then = rows_of(cell)
    names = set().union(*(metric.sources for metric in metrics)) | {"Moments"}
    cloud = _cloud(now, names).with_reference(_cloud(then, names))
    found: dict[str, Numbers] = {}
    for metric in metrics:
        try:
            found[metric.name] = {v.key: v.value for v in metric.values(cloud) if v.value is not None}
        except MetricError:
            found[metric.name] = {}
    return found


def _cloud(x: Tensor, names: set[str]) -> Cloud:
    def batches() -> Iterator[Rows]:
        for first in range(0, len(x), _BATCH):
            part = slice(first, first + _BATCH)
            yield Rows(x[part], table.take(part))

    number = torch.arange(len(x))
    document = number // _DOCUMENT
    block = block_numbers(len(x), document)
    table = token_table(document, number % _DOCUMENT, offset=1 + number % _DOCUMENT, token=number % _WORDS, block=block)
    return collect(batches, names)


def theirs(cell: Cell) -> dict[str, Numbers]:
    """Return the oracle's values, from the same rounded rows."""
    number = np.arange(cell.n)
    document = number // _DOCUMENT
    block = block_numbers(cell.n, torch.from_numpy(document)).numpy()
    now, then = (Given(x.double().numpy(), document, number % _DOCUMENT, number % _WORDS, block) for x in rows_of(cell))
    return numbers(now, then, slow=cell.n <= SLOW_ROWS)


def oracle_apart(cell: Cell) -> float:
    """Return the error of the float64 oracle against 50 digits in a small cell."""
    return apart(rows_of(cell)[0].double().numpy(), theirs(cell))


def compared(cell: Cell) -> Iterator[tuple[str, Key, float]]:
    """Yield (metric, key, error) for all values of a cell that the oracle has."""
    wanted = theirs(cell)
    yield from apart_from(wanted, ours(cell, [metric for name, metric in catalogue().items() if name in wanted]))


def apart_from(
    wanted: Mapping[str, Numbers], found: Mapping[str, Mapping[Any, float | None]]
) -> Iterator[tuple[str, Key, float]]:
    """Yield (metric, key, error) for all values that the oracle has; the error is inf if ours is missing."""
    for name, answers in wanted.items():
        for key, true in answers.items():
            ours = found[name].get(key)
            if ours is None:
                yield name, key, math.inf
            else:
                absolute = name in ABSOLUTE or abs(true) < _NOTHING
                yield name, key, abs(ours - true) / (1.0 if absolute else abs(true))


def worst_of(cell: Cell) -> list[Worst]:
    """Return the largest error of each metric in a cell."""
    return worst_by_metric(compared(cell), cell.dtype, str(cell))


def worst_by_metric(found: Iterable[tuple[str, Key, float]], dtype: str, cell: str) -> list[Worst]:
    """Return the largest error of each metric."""
    by_metric: dict[str, list[tuple[float, Key]]] = {}
    for name, key, error in found:
        by_metric.setdefault(name, []).append((error, key))
    out = []
    for name, errors in by_metric.items():
        finite = [each for each in errors if math.isfinite(each[0])]
        error, key = max(finite, key=lambda each: each[0], default=(0.0, ()))
        missing = len(errors) - len(finite)
        out.append(Worst(name, dtype, cell, error, _number(key), len(errors), missing))
    return out


def _number(key: Key) -> str:
    parts = [] if not key or key[0] is None else [str(key[0])]
    return ", ".join([*parts, *(f"{name}={value}" for name, value in key[1:])])


def rounding(dtype: str) -> float:
    """Return the effect of rounding the input alone: the largest relative change of three metrics."""
    changes = []
    for mean in (0.0, 1.0):
        true, rounded = (ours(Cell(1024, 64, mean, "power law", kind), _SHOWN) for kind in ("fp64", dtype))
        for metric in _SHOWN:
            (a,), (b,) = true[metric.name].values(), rounded[metric.name].values()
            changes.append(abs(b - a) / abs(a))
    return max(changes)
