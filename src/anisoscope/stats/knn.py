"""Exact nearest neighbours of every row, at about the cost of one triangular matrix product."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from anisoscope.errors import InputError
from anisoscope.stats.knn_blocks import Candidates, search_all, search_rows
from anisoscope.stats.knn_exact import brute_force, certified, true_distances
from anisoscope.stats.knn_space import (
    Embedding,
    SearchSpace,
    centred,
    centred_blocks,
    chunks,
    embed,
    half_square,
    principal_basis,
    robust_centre,
)
from anisoscope.stats.rows import token_key

_WIDE = 32  # candidates beyond 2k for the few rows that are searched again
_SHORT_FROM = 1000  # dimensions from which a search on principal components is tried first
_SHORT_ROWS = 8192  # rows from which preparing it can pay off
_COMPONENTS = 128
_PROBE = 512  # rows on which it is tried
_PROBE_FAILURES = 0.2  # share of them above which the full search is cheaper
_MANY = 0.25  # share of failures above which all rows are searched in float64: half as many products as row by row
_AT_ONCE = 2048  # rows searched again at once
_ORDINARY = (2.0**-40, 2.0**40)  # largest entries whose squares are safe in float32


@dataclass(frozen=True)
class Nearest:
    """The k nearest other rows of each of n rows, nearest first, on the CPU."""

    distance: Tensor  # (n, k) float64, ascending; inf if there are too few candidates
    index: Tensor  # (n, k) int64; -1 if there are too few candidates


@torch.no_grad()
def nearest(x: Tensor, k: int, *, group: Tensor | None = None) -> Nearest:
    """Find the k nearest other rows of every row, exactly as float64 brute force would.

    A copy of a row at another index is a neighbour at distance zero.

    Args:
        x: Rows (n, d), of any float dtype, on any device.
        k: Number of neighbours.
        group: A group for each row, (n,). Rows of the same group are not neighbours.

    Raises:
        InputError: There are too few rows, or rows hold NaN or Inf.

    >>> nearest(torch.tensor([[0.0], [1.0], [3.0]]), 1).distance[:, 0].tolist()
    [1.0, 1.0, 2.0]
    """
    if x.device.type == "mps":
        x = x.cpu()  # MPS has no float64
    # Off the CPU every row is merged in every block: picking the rows that gain would wait for the device each time.
    return _nearest(x, k, group, dense=x.device.type != "cpu")


@torch.no_grad()
def nearest_to(queries: Tensor, x: Tensor, k: int) -> Nearest:
    """Find the k nearest rows of each query, exactly as float64 brute force would.

    Rows that do not fit into memory can be searched in parts: merge the answers by distance.

    Args:
        queries: Queries (m, d), of any float dtype, on any device.
        x: Rows (n, d) to search, on the same device.
        k: Number of neighbours. With fewer rows, the missing ones have distance inf and index -1.

    Returns:
        Distances and indices into x, (m, k).

    Raises:
        InputError: Widths differ, or rows hold NaN or Inf.

    >>> nearest_to(torch.tensor([[0.4]]), torch.tensor([[0.0], [1.0], [3.0]]), 2).index.tolist()
    [[0, 1]]
    """
    if queries.shape[1:] != x.shape[1:]:
        raise InputError(f"Queries have {queries.shape[1]:,} numbers, rows {x.shape[1]:,}. Use the same model.")
    m = len(queries)
    both = torch.cat([queries, x.to(queries.dtype)]).detach()
    both = both.cpu() if both.device.type == "mps" else both
    _check(both, 1, None)
    both, unit = _ordinary(both)
    low = torch.zeros(len(both), dtype=torch.int64, device=both.device)
    space = SearchSpace(both, robust_centre(both), low, low + m)  # queries are not neighbours of each other
    distance = torch.empty(m, k, dtype=torch.float64, device=both.device)
    index = torch.empty(m, k, dtype=torch.int64, device=both.device)
    with _plain_float32(both.device):
        for row in torch.arange(m, device=both.device).split(_AT_ONCE):
            distance[row], index[row] = _search_some(space, row, k, dense=both.device.type != "cpu")
    return Nearest((distance * unit).cpu(), torch.where(index < 0, -1, index - m).cpu())


def unique_rows(x: Tensor) -> tuple[Tensor, int]:
    """Find the first occurrence of each distinct row.

    Rows are equal if their bits are equal; -0.0 counts as 0.0.

    Returns:
        The indices of the first occurrences, ascending, on the CPU, and the number of copies.

    >>> unique_rows(torch.tensor([[5.0], [7.0], [5.0]]))
    (tensor([0, 1]), 1)
    """
    x = x.detach()
    key = torch.empty(len(x), dtype=torch.int64, device=x.device)  # (n,)
    for part in chunks(len(x), x.shape[1]):
        key[part] = row_keys(x[part])
    index = _first_occurrences(x, key).nonzero().squeeze(1).cpu()
    return index, len(x) - len(index)


def _nearest(x: Tensor, k: int, group: Tensor | None, *, dense: bool) -> Nearest:
    _check(x, k, group)
    x, unit = _ordinary(x.detach())
    space, order = _prepare(x, group)
    with _plain_float32(x.device):
        distance, position = _search(space, k, dense=dense)  # (n, k) both, in search order
    index = torch.where(position < 0, -1, order[position.clamp(min=0)])
    back = order.argsort()
    return Nearest((distance[back] * unit).cpu(), index[back].cpu())


def _check(x: Tensor, k: int, group: Tensor | None) -> None:
    if x.ndim != 2 or not x.is_floating_point() or x.shape[1] == 0:
        raise InputError(f"Neighbours need a floating-point (n, d) array with d >= 1, not {x.dtype} {tuple(x.shape)}.")
    if k < 1:
        raise InputError(f"The number of neighbours must be at least 1, not {k}.")
    if len(x) <= k:
        raise InputError(f"{k} neighbours need at least {k + 1} rows, not {len(x)}. Give more rows.")
    if group is not None and group.shape != (len(x),):
        raise InputError(f"`group` must hold one integer for each of the {len(x)} rows, not {tuple(group.shape)}.")


def _ordinary(x: Tensor) -> tuple[Tensor, float]:
    """Rescale x by a power of two if its squares would overflow or underflow; return it with the inverse scale."""
    least, most = x.aminmax()
    largest = max(-float(least), float(most))
    if not math.isfinite(largest):
        bad = int((~x.isfinite()).any(dim=1).sum())
        raise InputError(f"{bad} of {len(x)} rows hold NaN or Inf and have no neighbours. Leave these rows out.")
    if largest == 0 or _ORDINARY[0] <= largest <= _ORDINARY[1]:
        return x, 1.0
    exponent = min(max(math.frexp(largest)[1], -1000), 1000)  # both powers below stay normal float64
    return x.double() * 2.0**-exponent, 2.0**exponent


def _prepare(x: Tensor, group: Tensor | None) -> tuple[SearchSpace, Tensor]:
    """Return the rows in search order, and their indices in x."""
    order = torch.arange(len(x), device=x.device)
    low, high = order, order + 1
    if group is not None:
        ids, order = group.to(x.device).sort(stable=True)
        x = x[order]
        # rows of a group are contiguous in this order, so the excluded rows are a range
        low, high = torch.searchsorted(ids, ids), torch.searchsorted(ids, ids, right=True)
    return SearchSpace(x, robust_centre(x), low, high), order


@contextmanager
def _plain_float32(device: torch.device) -> Iterator[None]:
    """Use true float32 products, which the certificates need, whatever the settings (TF32, bfloat16, autocast)."""
    backends: tuple[Any, ...] = (torch.backends.cuda.matmul, cast(Any, torch.backends.mkldnn).matmul)
    before = _float32_precision(), [each.fp32_precision for each in backends]
    try:
        torch.set_float32_matmul_precision("highest")  # sets the backends too
        with torch.autocast(device.type, enabled=False):
            yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        for each, value in zip(backends, before[1], strict=True):
            each.fp32_precision = value


def _float32_precision() -> str:
    """Return the process-wide setting; torch raises if backends were set separately, and then it is the default."""
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:
        return "highest"


def _search(space: SearchSpace, k: int, *, dense: bool) -> tuple[Tensor, Tensor]:
    """Search all rows in float32; those without a certificate with more candidates, in float64, then by brute force."""
    distance, index, sure = _search_all(space, _embedding(space, k, dense=dense), k, dense=dense)
    precisions = [torch.float32, torch.float64]
    if float(sure.double().mean()) < 1 - _MANY:
        distance, index, sure = _search_all(space, embed(space, dtype=torch.float64), k, dense=dense)
        precisions.remove(torch.float32)
    for dtype in precisions:
        for row in _unsure(sure):
            distance[row], index[row], sure[row] = _search_again(space, row, k, dtype, dense=dense)
    for row in _unsure(sure):
        distance[row], index[row] = brute_force(space, row, k)
    return distance, index


def _search_some(space: SearchSpace, row: Tensor, k: int, *, dense: bool) -> tuple[Tensor, Tensor]:
    """Search some rows in float32; those without a certificate in float64, then by brute force."""
    distance, index, sure = _search_again(space, row, k, torch.float32, dense=dense)
    unsure = (~sure).nonzero().squeeze(1)
    if len(unsure):
        distance[unsure], index[unsure], sure[unsure] = _search_again(space, row[unsure], k, torch.float64, dense=dense)
        unsure = (~sure).nonzero().squeeze(1)
    if len(unsure):
        distance[unsure], index[unsure] = brute_force(space, row[unsure], k)
    return distance, index


def _search_all(space: SearchSpace, e: Embedding, k: int, *, dense: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Return distances, indices and certificates of all rows."""
    candidates = search_all(space, e, k + _spare(k, e.width), dense=dense).rows(slice(0, len(space)))
    row = torch.arange(len(space), device=space.x.device)
    return _settle(space, row, candidates, e.half, e.width, k)


def _unsure(sure: Tensor) -> tuple[Tensor, ...]:
    """Return the rows without a certificate, in parts."""
    row = (~sure).nonzero().squeeze(1)
    return torch.split(row, _AT_ONCE) if len(row) else ()


def _embedding(space: SearchSpace, k: int, *, dense: bool) -> Embedding:
    """Embed in principal components and a residual norm if these certify most rows of a probe, else plainly."""
    if space.dim >= _SHORT_FROM and len(space) >= _SHORT_ROWS:
        short = embed(space, principal_basis(space, _COMPONENTS))
        if _failures(space, short, k, dense=dense) <= _PROBE_FAILURES:
            return short
    return embed(space)


def _failures(space: SearchSpace, e: Embedding, k: int, *, dense: bool) -> float:
    """Return the share of some evenly spread rows that a search on this embedding leaves without a certificate."""
    row = torch.arange(0, len(space), math.ceil(len(space) / _PROBE), device=space.x.device)
    half = e.half[row]
    candidates = search_rows(space, row, e.y[row], half, e.blocks(), k + _spare(k, e.width), dense=dense)
    _, _, sure = _settle(space, row, candidates, half, e.width, k)
    return 1 - float(sure.double().mean())


def _spare(k: int, width: int) -> int:
    """Return the number of candidates beyond k: the distance of the last must exceed the k-th by more than rounding.

    The gap grows with their share of k, and rounding grows with the width. With 3 at a width of 4096, 5 % of the rows
    of a Gaussian space had to be searched again.
    """
    return 3 + k // 4 + width // 2048


def _search_again(
    space: SearchSpace, row: Tensor, k: int, dtype: torch.dtype, *, dense: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Return distances, indices and certificates of some rows, with more candidates than before."""
    y = centred(space, row, dtype)
    half = half_square(y)
    blocks = centred_blocks(space, dtype)
    candidates = search_rows(space, row, y, half, blocks, 2 * k + _WIDE, dense=dense)
    return _settle(space, row, candidates, half, space.dim, k)


def _settle(
    space: SearchSpace, row: Tensor, candidates: Candidates, half: Tensor, width: int, k: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the true k nearest of the candidates of each row, and whether no nearer row can have been missed."""
    distance, index = true_distances(space, row, candidates)
    norm = (2 * half[: len(row)].double()).sqrt()
    return distance[:, :k], index[:, :k], certified(candidates, norm, distance[:, k - 1], width)


def row_keys(rows: Tensor) -> Tensor:
    """Return a 64-bit hash of each row, (n,): the wrapping sum of the folded bits of its entries times odd numbers."""
    bits = _bits(rows).long()
    bits = bits ^ (bits >> 32)  # float64 entries of few digits differ in high bits only, which products would lose
    column = torch.arange(rows.shape[1])
    factor = token_key(column, torch.zeros_like(column)) | 1
    return (bits * factor.to(bits.device)).sum(dim=1)


def _bits(rows: Tensor) -> Tensor:
    """Return the bits of the entries as integers; adding 0.0 turns -0.0 into 0.0."""
    kind = {2: torch.int16, 4: torch.int32, 8: torch.int64}[rows.element_size()]
    return (rows + 0.0).view(kind)


def _first_occurrences(x: Tensor, key: Tensor) -> Tensor:
    """Return which rows of x are not copies of an earlier one, (n,) bool, given keys that are equal for equal rows."""
    key, order = key.sort(stable=True)  # stable: a run of equal keys starts with its earliest row
    starts = torch.ones_like(key, dtype=torch.bool)
    starts[1:] = key[1:] != key[:-1]
    first = order[starts][starts.cumsum(0) - 1]  # (n,) the earliest row of each run
    unlike = torch.empty_like(starts)
    for part in chunks(len(x), x.shape[1]):
        unlike[part] = (_bits(x[order[part]]) != _bits(x[first[part]])).any(dim=1)
    fresh = torch.empty_like(starts)
    fresh[order] = starts
    for start in torch.unique(first[unlike]).tolist():  # different rows with one key: very rare
        fresh[_distinct(x, order[first == start])] = True
    return fresh


def _distinct(x: Tensor, row: Tensor) -> list[int]:
    """Return the rows, in this order, that equal none before."""
    distinct: list[int] = []
    for each in row.tolist():
        if not any(torch.equal(_bits(x[each]), _bits(x[other])) for other in distinct):
            distinct.append(each)
    return distinct
