"""Blocked search: half squared distances of a block by one matrix product, of which the smallest per row are kept."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from anisoscope.stats.knn_space import GROUP, Embedding, SearchSpace


@dataclass(frozen=True)
class Candidates:
    """The `keep` smallest half squared distances so far from each of m rows, ascending, and the rows they lead to.

    Updated in chosen. The last column is the threshold for new candidates.
    """

    half: Tensor  # (m, keep)
    index: Tensor  # (m, keep) int64; meaningless if half is inf

    @classmethod
    def nothing(cls, m: int, keep: int, like: Tensor) -> Candidates:
        half = torch.full((m, keep), torch.inf, dtype=like.dtype, device=like.device)
        return cls(half, torch.full((m, keep), -1, device=like.device))

    def rows(self, part: slice) -> Candidates:
        """Return a slice of the rows that shares memory."""
        return Candidates(self.half[part], self.index[part])


def search_all(space: SearchSpace, e: Embedding, keep: int, *, dense: bool) -> Candidates:
    """Find the nearest `keep` rows of every row. Each block of the upper triangle serves its rows and its columns.

    Diagonal blocks come first: they set thresholds that exclude most rows of later blocks.
    """
    candidates = Candidates.nothing(len(e.y), keep, e.y)
    parts = [slice(start, start + e.block) for start, _, _ in e.blocks()]
    spans = _spans(space, e)
    buffer = e.y.new_empty(e.block, e.block)
    for row in parts:
        _half_distances(e.y[row], e.half[row], e.y[row], e.half[row], buffer)
        _exclude(buffer, space.low[row], space.high[row], row.start)
        _absorb(buffer, candidates.rows(row), row.start, dense, transposed=False)
    for number, row in enumerate(parts):
        for column in parts[number + 1 :]:
            _half_distances(e.y[row], e.half[row], e.y[column], e.half[column], buffer)
            if spans[number] > column.start:
                _exclude(buffer, space.low[row], space.high[row], column.start)
            _absorb(buffer, candidates.rows(row), column.start, dense, transposed=False)
            _absorb(buffer, candidates.rows(column), row.start, dense, transposed=True)
    return candidates


def search_rows(
    space: SearchSpace,
    index: Tensor,
    y: Tensor,
    half: Tensor,
    blocks: Iterable[tuple[int, Tensor, Tensor]],
    keep: int,
    *,
    dense: bool,
) -> Candidates:
    """Find the nearest `keep` rows, in all blocks, of the rows at `index`: y with half squared norms `half`."""
    candidates = Candidates.nothing(len(y), keep, y)
    low, high = space.low[index], space.high[index]
    for start, other, other_half in blocks:
        buffer = y.new_empty(len(y), len(other))
        _half_distances(y, half, other, other_half, buffer)
        _exclude(buffer, low, high, start)
        _absorb(buffer, candidates, start, dense, transposed=False)
    return candidates


def _half_distances(a: Tensor, half_a: Tensor, b: Tensor, half_b: Tensor, out: Tensor) -> None:
    """Write ½‖a_i − b_j‖² = ½‖a_i‖² + ½‖b_j‖² − a_i·b_j, the sum first so that the product subtracts in chosen."""
    torch.add(half_a[:, None], half_b, out=out)
    out.addmm_(a, b.T, beta=1, alpha=-1)


def _spans(space: SearchSpace, e: Embedding) -> list[int]:
    """Return the end of the excluded range of the rows of each block, in one transfer from the device."""
    last = [min(start + e.block, len(space)) - 1 for start, _, _ in e.blocks()]
    return [int(end) for end in space.high[last].tolist()]


def _exclude(block: Tensor, low: Tensor, high: Tensor, start: int) -> None:
    """Set excluded pairs to inf."""
    column = torch.arange(start, start + block.shape[1], device=block.device)  # (c,)
    mask = (column >= low[:, None]) & (column < high[:, None])  # (m, c)
    block[: len(low)].masked_fill_(mask, torch.inf)


def _absorb(block: Tensor, candidates: Candidates, start: int, dense: bool, *, transposed: bool) -> None:
    """Merge a block of half squared distances, whose columns are rows from `start` on, into the candidates."""
    side = block.T if transposed else block  # (m, c)
    if dense:
        half, column = side.topk(min(candidates.half.shape[1], side.shape[1]), dim=1, largest=False)
        _merge(candidates, slice(None), half, column, start)
    else:
        _absorb_sparsely(block, side, candidates, start, transposed)


def _absorb_sparsely(block: Tensor, side: Tensor, candidates: Candidates, start: int, transposed: bool) -> None:
    """Merge a block into the candidates, reading only the entries that can matter.

    Columns form strided groups, whose minima cost one pass at memory speed. A row whose smallest minimum is not below
    its threshold gains nothing. For other rows the `keep` smallest entries are in the `keep` groups of smallest
    minimum: for an entry of any other group there are `keep` minima that are no larger.
    """
    keep = candidates.half.shape[1]
    count = side.shape[1] // GROUP  # groups
    # reduced along rows or columns in memory: the same reduction of a transposed view is 30 times slower
    minima = block.unflatten(0, (GROUP, count)).amin(0).T if transposed else block.unflatten(1, (GROUP, count)).amin(1)
    hit = (minima.amin(1) < candidates.half[:, -1]).nonzero().squeeze(1)  # (h,)
    group = minima[hit].topk(min(keep, count), dim=1, largest=False, sorted=False).indices  # (h, keep)
    step = count * torch.arange(GROUP, device=group.device)
    column = (group[:, :, None] + step).flatten(1)  # (h, keep * GROUP)
    row_step, column_step = side.stride()
    address = hit[:, None] * row_step + column * column_step
    # several times faster than side[hit, column]
    half = block.view(-1).index_select(0, address.flatten()).view_as(address)
    _merge(candidates, hit, half, column, start)


def _merge(candidates: Candidates, hit: Tensor | slice, half: Tensor, column: Tensor, start: int) -> None:
    """Keep the smallest of the candidates of the rows at `hit` and of the entries of a block in these columns."""
    keep = candidates.half.shape[1]
    least, chosen = torch.cat([candidates.half[hit], half], dim=1).topk(keep, dim=1, largest=False)
    old = candidates.index[hit].gather(1, chosen.clamp(max=keep - 1))
    new = column.gather(1, (chosen - keep).clamp(min=0)) + start
    candidates.index[hit] = torch.where(chosen < keep, old, new)
    candidates.half[hit] = least
