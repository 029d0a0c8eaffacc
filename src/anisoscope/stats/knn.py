"""The exact nearest neighbours of every row, at about the price of one triangular matrix product."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from anisoscope.errors import InputError
from anisoscope.stats.knn_blocks import Found, search_all, search_rows
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

_WIDE = 32  # candidates beyond 2k for the few rows that are searched a second time
_SHORT_FROM = 1000  # dimensions from which a search on principal components is tried first
_SHORT_ROWS = 8192  # rows from which its preparation can pay
_COMPONENTS = 128
_PROBE = 512  # rows on which it is tried
_PROBE_FAILURES = 0.2  # share of them above which the full search is cheaper
_MANY = 0.25  # share of failures above which all rows are searched in float64: half as many products as row by row
_AT_ONCE = 2048  # rows searched again at once
_ORDINARY = (2.0**-40, 2.0**40)  # largest entries whose squares are safe in float32


@dataclass(frozen=True)
class Nearest:
    """The k nearest other rows of each of n rows, nearest first, on the CPU."""

    distance: Tensor  # (n, k) float64, ascending; inf where there is no further candidate
    index: Tensor  # (n, k) int64; -1 where there is no further candidate


@torch.no_grad()
def nearest(x: Tensor, k: int, *, group: Tensor | None = None) -> Nearest:
    """The k nearest other rows of every row of x (n, d), exactly, as float64 brute force would find them.

    r_ij = ‖x_i − x_j‖. Rows of the same `group` (n,) are left out, as is the row itself; a copy at another index is a
    neighbour at distance zero. The rows 0, 1, 3 on a line have nearest distances 1, 1, 2.
    """
    if x.device.type == "mps":
        x = x.cpu()  # MPS has no float64
    # Off the CPU every row is merged in every block: picking the rows that gain would wait for the device each time.
    return _nearest(x, k, group, dense=x.device.type != "cpu")


def unique_rows(x: Tensor) -> tuple[Tensor, int]:
    """The indices of the first occurrence of each distinct row, ascending on the CPU, and how many rows were copies.

    Rows are equal when their bits are, with -0.0 counted as 0.0. The rows 5, 7, 5 give ([0, 1], 1).
    """
    x = x.detach()
    key = torch.empty(len(x), dtype=torch.int64, device=x.device)  # (n,)
    for part in chunks(len(x), x.shape[1]):
        key[part] = _row_keys(x[part])
    index = _first_occurrences(x, key).nonzero().squeeze(1).cpu()
    return index, len(x) - len(index)


def _nearest(x: Tensor, k: int, group: Tensor | None, *, dense: bool) -> Nearest:
    _check(x, k, group)
    x, unit = _ordinary(x.detach())
    cloud, order = _prepare(x, group)
    with _plain_float32(x.device):
        distance, place = _search(cloud, k, dense=dense)  # (n, k) both, in search order
    index = torch.where(place < 0, -1, order[place.clamp(min=0)])
    back = order.argsort()
    return Nearest((distance[back] * unit).cpu(), index[back].cpu())


def _check(x: Tensor, k: int, group: Tensor | None) -> None:
    if x.ndim != 2 or not x.is_floating_point() or x.shape[1] == 0:
        raise InputError(f"neighbours need a floating-point (n, d) array with d >= 1; got {x.dtype} {tuple(x.shape)}")
    if k < 1:
        raise InputError(f"the number of neighbours must be at least 1; got {k}")
    if len(x) <= k:
        raise InputError(f"{k} neighbours need at least {k + 1} rows; got {len(x)}: give more rows or ask for fewer")
    if group is not None and group.shape != (len(x),):
        raise InputError(f"group must hold one integer for each of the {len(x)} rows; got shape {tuple(group.shape)}")


def _ordinary(x: Tensor) -> tuple[Tensor, float]:
    """x, or where its squares would overflow or vanish a float64 copy scaled by a power of two; and the way back."""
    least, most = x.aminmax()
    largest = max(-float(least), float(most))
    if not math.isfinite(largest):
        bad = int((~x.isfinite()).any(dim=1).sum())
        raise InputError(f"{bad} of {len(x)} rows hold NaN or Inf, which have no neighbours: leave those rows out")
    if largest == 0 or _ORDINARY[0] <= largest <= _ORDINARY[1]:
        return x, 1.0
    exponent = min(max(math.frexp(largest)[1], -1000), 1000)  # both powers below stay normal float64
    return x.double() * 2.0**-exponent, 2.0**exponent


def _prepare(x: Tensor, group: Tensor | None) -> tuple[SearchSpace, Tensor]:
    """The cloud in search order, and the caller's index of each of its rows."""
    order = torch.arange(len(x), device=x.device)
    low, high = order, order + 1
    if group is not None:
        ids, order = group.to(x.device).sort(stable=True)
        x = x[order]
        # rows of a group are neighbours in this order, so what a row may not meet is a range
        low, high = torch.searchsorted(ids, ids), torch.searchsorted(ids, ids, right=True)
    return SearchSpace(x, robust_centre(x), low, high), order


@contextmanager
def _plain_float32(device: torch.device) -> Iterator[None]:
    """True float32 products, as certificates need, whatever the caller allows elsewhere (TF32, bfloat16, autocast)."""
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
    """The process-wide setting; torch refuses to tell where backends were set one by one, which leaves it untouched."""
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:
        return "highest"


def _search(cloud: SearchSpace, k: int, *, dense: bool) -> tuple[Tensor, Tensor]:
    """All rows in float32; those without a certificate again with more candidates, then in float64, then by force."""
    distance, index, sure = _search_all(cloud, _embedding(cloud, k, dense=dense), k, dense=dense)
    precisions = [torch.float32, torch.float64]
    if float(sure.double().mean()) < 1 - _MANY:
        distance, index, sure = _search_all(cloud, embed(cloud, dtype=torch.float64), k, dense=dense)
        precisions.remove(torch.float32)
    for dtype in precisions:
        for row in _unsure(sure):
            distance[row], index[row], sure[row] = _search_again(cloud, row, k, dtype, dense=dense)
    for row in _unsure(sure):
        distance[row], index[row] = brute_force(cloud, row, k)
    return distance, index


def _search_all(cloud: SearchSpace, e: Embedding, k: int, *, dense: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Distances, indices and certificates of all rows."""
    found = search_all(cloud, e, k + _spare(k, e.width), dense=dense).rows(slice(0, len(cloud)))
    row = torch.arange(len(cloud), device=cloud.x.device)
    return _settle(cloud, row, found, e.half, e.width, k)


def _unsure(sure: Tensor) -> tuple[Tensor, ...]:
    """The rows without a certificate, some at a time."""
    row = (~sure).nonzero().squeeze(1)
    return torch.split(row, _AT_ONCE) if len(row) else ()


def _embedding(cloud: SearchSpace, k: int, *, dense: bool) -> Embedding:
    """Principal components and a residual norm where they certify most rows of a probe, else the centred rows."""
    if cloud.dim >= _SHORT_FROM and len(cloud) >= _SHORT_ROWS:
        short = embed(cloud, principal_basis(cloud, _COMPONENTS))
        if _failures(cloud, short, k, dense=dense) <= _PROBE_FAILURES:
            return short
    return embed(cloud)


def _failures(cloud: SearchSpace, e: Embedding, k: int, *, dense: bool) -> float:
    """The share of rows, spread evenly over the cloud, that a search on this embedding leaves without a certificate."""
    row = torch.arange(0, len(cloud), math.ceil(len(cloud) / _PROBE), device=cloud.x.device)
    half = e.half[row]
    found = search_rows(cloud, row, e.y[row], half, e.blocks(), k + _spare(k, e.width), dense=dense)
    _, _, sure = _settle(cloud, row, found, half, e.width, k)
    return 1 - float(sure.double().mean())


def _spare(k: int, width: int) -> int:
    """Candidates beyond k, whose distance must exceed the k-th by more than rounding.

    The gap goes with the share they add to k, and rounding with the width. With 3 at a width of 4096, 5 % of the rows
    of a Gaussian cloud had to be searched again.
    """
    return 3 + k // 4 + width // 2048


def _search_again(
    cloud: SearchSpace, row: Tensor, k: int, dtype: torch.dtype, *, dense: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Distances, indices and certificates of some rows, with more candidates than at first."""
    y = centred(cloud, row, dtype)
    half = half_square(y)
    blocks = centred_blocks(cloud, dtype)
    found = search_rows(cloud, row, y, half, blocks, 2 * k + _WIDE, dense=dense)
    return _settle(cloud, row, found, half, cloud.dim, k)


def _settle(
    cloud: SearchSpace, row: Tensor, found: Found, half: Tensor, width: int, k: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The true k nearest of what each row found, and whether nothing nearer can have been missed."""
    distance, index = true_distances(cloud, row, found)
    norm = (2 * half[: len(row)].double()).sqrt()
    return distance[:, :k], index[:, :k], certified(found, norm, distance[:, k - 1], width)


def _row_keys(rows: Tensor) -> Tensor:
    """A 64-bit key of each row: the wrapping sum of its entries' bits, folded and times well-mixed odd numbers."""
    bits = _bits(rows).long()
    bits = bits ^ (bits >> 32)  # float64 entries of few digits differ in high bits only, which products would push out
    place = torch.arange(rows.shape[1])
    factor = token_key(place, torch.zeros_like(place)) | 1
    return (bits * factor.to(bits.device)).sum(dim=1)


def _bits(rows: Tensor) -> Tensor:
    """The entries' bits as integers; adding 0.0 turns -0.0 into 0.0."""
    kind = {2: torch.int16, 4: torch.int32, 8: torch.int64}[rows.element_size()]
    return (rows + 0.0).view(kind)


def _first_occurrences(x: Tensor, key: Tensor) -> Tensor:
    """Which rows of x are no copy of an earlier one (n,) bool, given keys that are equal wherever rows are."""
    key, order = key.sort(stable=True)  # stable: a run of equal keys starts with its earliest row
    starts = torch.ones_like(key, dtype=torch.bool)
    starts[1:] = key[1:] != key[:-1]
    first = order[starts][starts.cumsum(0) - 1]  # (n,) the earliest row of the run that each place is in
    unlike = torch.empty_like(starts)
    for part in chunks(len(x), x.shape[1]):
        unlike[part] = (_bits(x[order[part]]) != _bits(x[first[part]])).any(dim=1)
    fresh = torch.empty_like(starts)
    fresh[order] = starts
    for start in torch.unique(first[unlike]).tolist():  # different rows with one key: next to never
        fresh[_distinct(x, order[first == start])] = True
    return fresh


def _distinct(x: Tensor, row: Tensor) -> list[int]:
    """Those of the rows, in this order, that equal none before."""
    distinct: list[int] = []
    for each in row.tolist():
        if not any(torch.equal(_bits(x[each]), _bits(x[other])) for other in distinct):
            distinct.append(each)
    return distinct
