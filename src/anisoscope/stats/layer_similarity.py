"""How alike the layers of two models are: CKA, neighbour overlap and information imbalance of all pairs of layers.

Row i of every layer of both models belongs to the same text. Widths and depths may differ. One pass over strips of the
kernels and distances of all layers gives every number; the kernels themselves are never stored.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from anisoscope.errors import InputError
from anisoscope.stats.knn import unique_rows

NEIGHBOURS = 10
MEASURES = ("cka", "overlap", "a_to_b", "b_to_a")
_ELEMENTS = 1 << 23  # entries of a strip over all layers: 64 MB in float64
_FLAT = 1e-20  # rows do not vary if their variance is below this share of their mean square: rounding of the mean
_COPIES = 0.05  # share of rows that are copies above which nearest rows are not determined
OnRows = Callable[[int], None]  # called with the number of rows since the last call


@dataclass(frozen=True)
class PairTable:
    """One measure of all pairs of layers; NaN if a pair has no value."""

    value: Tensor  # (A, B) float64: layer of the first model × layer of the second
    without: Tensor  # (blocks, A, B) float64: the same without the rows of one block


class Kernels(NamedTuple):
    """The linear kernel of one model's layers on a strip of rows, without the diagonal, and the squared distances."""

    kernel: Tensor  # (layers, c, m)
    distance: Tensor  # (layers, c, m), inf on the diagonal


@dataclass(frozen=True)
class CentredLayers:
    """The rows of all layers of a model, centred, in float64, with their squared lengths."""

    rows: tuple[Tensor, ...]  # (m, d) per layer
    square: Tensor  # (layers, m)

    def strip(self, start: int, end: int) -> Kernels:
        """Return kernels and distances of the rows from `start` to `end` with all rows."""
        kernel = torch.stack([x[start:end] @ x.T for x in self.rows])  # (layers, c, m)
        distance = self.square[:, start:end, None] + self.square[:, None, :] - 2 * kernel  # (layers, c, m)
        own = torch.arange(end - start)
        kernel[:, own, start + own] = 0.0
        distance[:, own, start + own] = torch.inf
        return Kernels(kernel, distance)

    def row_sums(self, edges: Sequence[tuple[int, int]]) -> Tensor:
        """Return the row sums of the kernels without their diagonals: of all rows, then without each block.

        Centred rows sum to zero, so without the sum S of a block the sum of row i is −x_i·S − |x_i|².

        Returns:
            The sums, (layers, 1 + blocks, m), 0 in rows that are left out.
        """
        sums = torch.zeros(len(self.rows), 1 + len(edges), self.square.shape[1], dtype=torch.float64)
        for layer, x in enumerate(self.rows):
            left_out = torch.stack([torch.zeros_like(x[0]), *(x[low:high].sum(0) for low, high in edges)])
            sums[layer] = -(left_out @ x.T) - self.square[layer]
            for block, (low, high) in enumerate(edges, start=1):
                sums[layer, block, low:high] = 0.0
        return sums


def centred_layers(layers: Sequence[Tensor]) -> CentredLayers:
    """Centre the rows of every layer in float64."""
    rows = tuple(x.detach().cpu().double() - x.detach().cpu().double().mean(0) for x in layers)
    return CentredLayers(rows, torch.stack([x.square().sum(1) for x in rows]))


def flat_layers(layers: Sequence[Tensor]) -> list[str | None]:
    """Return for each layer why it has no CKA; None if it has one."""
    reasons: list[str | None] = []
    for x in layers:
        y = x.detach().cpu().double()
        flat = bool((y - y.mean(0)).square().sum() <= _FLAT * y.square().sum())
        reasons.append("the rows do not vary" if flat else None)
    return reasons


def copied_layers(layers: Sequence[Tensor]) -> list[str | None]:
    """Return for each layer why its nearest rows are not determined; None if they are.

    >>> copied_layers([torch.ones(40, 2)])
    ['39 of 40 rows are copies of another row']
    """
    reasons: list[str | None] = []
    for x in layers:
        n, copies = len(x), unique_rows(x)[1]
        few = f"{n} rows are too few for {NEIGHBOURS} neighbours" if n <= 2 * NEIGHBOURS else None
        many = f"{copies} of {n} rows are copies of another row" if copies > _COPIES * n else None
        reasons.append(few or many)
    return reasons


@torch.no_grad()
def layer_similarity(
    a: Sequence[Tensor], b: Sequence[Tensor], sizes: Sequence[int] = (), on_rows: OnRows | None = None
) -> dict[str, PairTable]:
    """Compare every layer of one model with every layer of another.

    - `cka`: linear CKA with the unbiased HSIC, HSIC(K, L)/√(HSIC(K, K)·HSIC(L, L)). Its replicates are exact.
    - `overlap`: average share of a row's ten nearest rows that are among its ten nearest in the other layer.
    - `a_to_b`, `b_to_a`: information imbalance, 2/m times the average rank in the second layer of a row's nearest row
      in the first. Replicates of the last three leave out a block's rows as queries and keep them as neighbours.

    Args:
        a: Rows (m, d) of each layer of the first model.
        b: Rows (m, d') of each layer of the second model, in the same order.
        sizes: Numbers of rows of the blocks to leave out; blocks are contiguous.
        on_rows: Called with the number of rows since the last call.

    Returns:
        A table per measure.

    Raises:
        InputError: The models have different numbers of rows, or fewer than four.

    >>> x = torch.randn(64, 5, generator=torch.Generator().manual_seed(0))
    >>> tables = layer_similarity([x], [3 * x.flip(1)])
    >>> {name: round(float(table.value), 6) for name, table in tables.items()}
    {'cka': 1.0, 'overlap': 1.0, 'a_to_b': 0.03125, 'b_to_a': 0.03125}
    """
    m = _require_rows(a, b)
    first, second = centred_layers(a), centred_layers(b)
    ends = torch.tensor([0, *sizes]).cumsum(0).tolist()
    edges = list(pairwise(ends))
    parts = edges or [(0, m)]
    sums = _Sums(len(parts), len(a), len(b))
    step = max(1, _ELEMENTS // ((len(a) + len(b)) * m))
    for block, (low, high) in enumerate(parts):
        for start in range(low, high, step):
            end = min(start + step, high)
            sums.add(block, first.strip(start, end), second.strip(start, end), slice(low, high))
            if on_rows is not None:
                on_rows(end - start)
    tables = {"cka": _cka(sums, first, second, edges)}
    for name, scale in (("overlap", 1.0), ("a_to_b", 2 / m), ("b_to_a", 2 / m)):
        tables[name] = _means(scale * sums.ranked[name], m, sizes)
    return _with_gaps(tables, a, b)


class _Sums:
    """Sums over rows of one block, for every block: products of kernels, overlaps and ranks."""

    def __init__(self, blocks: int, a: int, b: int) -> None:
        self.products = torch.zeros(2, blocks, a, b, dtype=torch.float64)  # with all rows; with rows of the block
        self.own = [torch.zeros(2, blocks, n, dtype=torch.float64) for n in (a, b)]  # the same of K∘K
        self.ranked = {name: torch.zeros(blocks, a, b, dtype=torch.float64) for name in MEASURES[1:]}

    def add(self, block: int, a: Kernels, b: Kernels, columns: slice) -> None:
        for part, cut in enumerate((slice(None), columns)):
            flat = [each.kernel[:, :, cut].flatten(1) for each in (a, b)]
            self.products[part, block] += flat[0] @ flat[1].T
            for own, kernel in zip(self.own, flat, strict=True):
                own[part, block] += kernel.square().sum(1)
        if a.kernel.shape[2] <= 2 * NEIGHBOURS:
            return
        near, other = (each.distance.topk(NEIGHBOURS, largest=False).indices for each in (a, b))  # (layers, c, k)
        self.ranked["overlap"][block] += overlaps(near, other, a.kernel.shape[2])
        self.ranked["a_to_b"][block] += ranks(near[:, :, 0], b.distance)
        self.ranked["b_to_a"][block] += ranks(other[:, :, 0], a.distance).T


def overlaps(a: Tensor, b: Tensor, m: int) -> Tensor:
    """Return the summed share of common neighbours, (A, B), given indices of neighbours (A, c, k) and (B, c, k)."""
    _, c, k = a.shape
    member = torch.zeros(len(b), c, m, dtype=torch.bool).scatter_(2, b, True)  # (B, c, m)
    shared = [member.gather(2, each.expand(len(b), c, k)).sum((1, 2)) for each in a]  # (B,) per layer of a
    return torch.stack(shared).double() / k


def ranks(nearest: Tensor, distance: Tensor) -> Tensor:
    """Return the summed ranks, (A, B), of rows `nearest` (A, c) by `distance` (B, c, m); the nearest row has rank 1."""
    total = []
    for each in distance:
        limits = each.gather(1, nearest.T)  # (c, A)
        ordered = torch.from_numpy(np.sort(each.numpy(), axis=1))  # three times as fast as torch on one core
        closer = torch.searchsorted(ordered, limits)  # (c, A) strictly closer rows
        total.append((closer + 1).sum(0).double())
    return torch.stack(total, dim=1)


def _cka(sums: _Sums, a: CentredLayers, b: CentredLayers, edges: Sequence[tuple[int, int]]) -> PairTable:
    """CKA of all rows and without each block, from sums of products and row sums of the kernels."""
    m = a.square.shape[1]
    counts = torch.tensor([m, *(m - (high - low) for low, high in edges)], dtype=torch.float64)  # (1 + blocks,)
    rows = a.row_sums(edges), b.row_sums(edges)
    totals = [each.sum(2).T for each in rows]  # (1 + blocks, layers)
    cross = _unbiased(
        _left_out(sums.products, edges),
        totals[0][:, :, None] * totals[1][:, None, :],
        torch.einsum("igm,jgm->gij", *rows),
        counts[:, None, None],
    )
    own = [
        _unbiased(_left_out(part, edges), total.square(), each.square().sum(2).T, counts[:, None])
        for part, total, each in zip(sums.own, totals, rows, strict=True)
    ]
    scale = (own[0].clamp(min=0)[:, :, None] * own[1].clamp(min=0)[:, None, :]).sqrt()  # (1 + blocks, A, B)
    value = (cross / scale).clamp(-1.0, 1.0)  # NaN or inf if a layer does not vary
    value = torch.where(scale > 0, value, torch.nan)
    return PairTable(value[0], value[1:])


def _left_out(sums: Tensor, edges: Sequence[tuple[int, int]]) -> Tensor:
    """Return a sum over all pairs of rows, then without the rows and columns of each block: T − 2·S + W."""
    whole = sums[0].sum(0, keepdim=True)
    return whole if not edges else torch.cat([whole, whole - 2 * sums[0] + sums[1]])


def _unbiased(products: Tensor, totals: Tensor, row_products: Tensor, m: Tensor) -> Tensor:
    """Return m(m − 3) times the unbiased HSIC, from kernels without diagonals (Song et al. 2012)."""
    return products + totals / ((m - 1) * (m - 2)) - 2 / (m - 2) * row_products


def _means(sums: Tensor, m: int, sizes: Sequence[int]) -> PairTable:
    """Return the mean over all rows, and over the rows that are not in each block."""
    whole = sums.sum(0)
    kept = m - torch.tensor(list(sizes), dtype=torch.float64)
    without = (whole - sums) / kept[:, None, None] if len(sizes) else sums[:0]
    return PairTable(whole / m, without)


def _with_gaps(tables: dict[str, PairTable], a: Sequence[Tensor], b: Sequence[Tensor]) -> dict[str, PairTable]:
    """Return the tables with NaN for layers that have no value."""
    out = {}
    for name, table in tables.items():
        reasons = flat_layers if name == "cka" else copied_layers
        rows, columns = (torch.tensor([r is not None for r in reasons(layers)]) for layers in (a, b))
        gap = rows[:, None] | columns[None, :]
        out[name] = PairTable(table.value.masked_fill(gap, torch.nan), table.without.masked_fill(gap, torch.nan))
    return out


def _require_rows(a: Sequence[Tensor], b: Sequence[Tensor]) -> int:
    counts = {len(x) for x in (*a, *b)}
    if len(counts) != 1:
        raise InputError(f"Layers have different numbers of rows: {', '.join(map(str, sorted(counts)))}.")
    m = counts.pop()
    if m < 4:
        raise InputError(f"Only {m} rows can be compared, and four are needed. Use more documents.")
    return m
