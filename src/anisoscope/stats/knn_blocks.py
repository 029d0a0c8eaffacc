"""The blocked search: half squared distances of a block by one matrix product, the smallest few of each row kept."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from anisoscope.stats.knn_space import GROUP, Embedding, SearchSpace


@dataclass(frozen=True)
class Found:
    """The `keep` smallest half squared distances seen so far from each of m rows, ascending, and where to.

    Updated in place: the last column is the threshold that a new row has to beat.
    """

    half: Tensor  # (m, keep)
    index: Tensor  # (m, keep) int64; meaningless where half is inf

    @classmethod
    def nothing(cls, m: int, keep: int, like: Tensor) -> Found:
        half = torch.full((m, keep), torch.inf, dtype=like.dtype, device=like.device)
        return cls(half, torch.full((m, keep), -1, device=like.device))

    def rows(self, part: slice) -> Found:
        """The same memory, for a slice of the rows."""
        return Found(self.half[part], self.index[part])


def search_all(cloud: SearchSpace, e: Embedding, keep: int, *, dense: bool) -> Found:
    """The nearest `keep` of every row: each block of the upper triangle is made once and serves its rows and columns.

    Diagonal blocks come first: they set thresholds that most rows of later blocks do not beat.
    """
    found = Found.nothing(len(e.y), keep, e.y)
    parts = [slice(start, start + e.block) for start, _, _ in e.blocks()]
    spans = _spans(cloud, e)
    buffer = e.y.new_empty(e.block, e.block)
    for row in parts:
        _half_distances(e.y[row], e.half[row], e.y[row], e.half[row], buffer)
        _exclude(buffer, cloud.low[row], cloud.high[row], row.start)
        _absorb(buffer, found.rows(row), row.start, dense, transposed=False)
    for number, row in enumerate(parts):
        for column in parts[number + 1 :]:
            _half_distances(e.y[row], e.half[row], e.y[column], e.half[column], buffer)
            if spans[number] > column.start:
                _exclude(buffer, cloud.low[row], cloud.high[row], column.start)
            _absorb(buffer, found.rows(row), column.start, dense, transposed=False)
            _absorb(buffer, found.rows(column), row.start, dense, transposed=True)
    return found


def search_rows(
    cloud: SearchSpace,
    index: Tensor,
    y: Tensor,
    half: Tensor,
    blocks: Iterable[tuple[int, Tensor, Tensor]],
    keep: int,
    *,
    dense: bool,
) -> Found:
    """The nearest `keep` of the rows at `index`, which are y with half squared norms `half`, among all blocks."""
    found = Found.nothing(len(y), keep, y)
    low, high = cloud.low[index], cloud.high[index]
    for start, other, other_half in blocks:
        buffer = y.new_empty(len(y), len(other))
        _half_distances(y, half, other, other_half, buffer)
        _exclude(buffer, low, high, start)
        _absorb(buffer, found, start, dense, transposed=False)
    return found


def _half_distances(a: Tensor, half_a: Tensor, b: Tensor, half_b: Tensor, out: Tensor) -> None:
    """½‖a_i − b_j‖² = ½‖a_i‖² + ½‖b_j‖² − a_i·b_j, the sum laid down first so that the product subtracts in place."""
    torch.add(half_a[:, None], half_b, out=out)
    out.addmm_(a, b.T, beta=1, alpha=-1)


def _spans(cloud: SearchSpace, e: Embedding) -> list[int]:
    """The end of the range that each block's rows may not meet: one transfer, so that no block asks the device."""
    last = [min(start + e.block, len(cloud)) - 1 for start, _, _ in e.blocks()]
    return [int(end) for end in cloud.high[last].tolist()]


def _exclude(block: Tensor, low: Tensor, high: Tensor, start: int) -> None:
    """Set the pairs that may not meet to inf."""
    column = torch.arange(start, start + block.shape[1], device=block.device)  # (c,)
    mask = (column >= low[:, None]) & (column < high[:, None])  # (m, c)
    block[: len(low)].masked_fill_(mask, torch.inf)


def _absorb(block: Tensor, found: Found, start: int, dense: bool, *, transposed: bool) -> None:
    """Merge a block of half squared distances, whose columns are rows from `start` on, into what was found."""
    side = block.T if transposed else block  # (m, c)
    if dense:
        half, column = side.topk(min(found.half.shape[1], side.shape[1]), dim=1, largest=False)
        _merge(found, slice(None), half, column, start)
    else:
        _absorb_sparsely(block, side, found, start, transposed)


def _absorb_sparsely(block: Tensor, side: Tensor, found: Found, start: int, transposed: bool) -> None:
    """The same, looking only where something can be gained.

    Columns fall into strided groups, whose minima cost one pass at memory speed. A row whose least minimum does not
    beat its threshold gains nothing. For the others the `keep` smallest entries lie in the `keep` groups of smallest
    minimum: an entry of any other group has `keep` minima that are no larger.
    """
    keep = found.half.shape[1]
    count = side.shape[1] // GROUP  # groups
    # reduced along the block's own rows or columns: the same reduction of a transposed view is 30 times slower
    minima = block.unflatten(0, (GROUP, count)).amin(0).T if transposed else block.unflatten(1, (GROUP, count)).amin(1)
    hit = (minima.amin(1) < found.half[:, -1]).nonzero().squeeze(1)  # (h,)
    group = minima[hit].topk(min(keep, count), dim=1, largest=False, sorted=False).indices  # (h, keep)
    step = count * torch.arange(GROUP, device=group.device)
    column = (group[:, :, None] + step).flatten(1)  # (h, keep * GROUP)
    row_step, column_step = side.stride()
    place = hit[:, None] * row_step + column * column_step
    half = block.view(-1).index_select(0, place.flatten()).view_as(place)  # several times faster than side[hit, column]
    _merge(found, hit, half, column, start)


def _merge(found: Found, hit: Tensor | slice, half: Tensor, column: Tensor, start: int) -> None:
    """Keep the smallest of what the rows at `hit` had found and what a block offers them in these columns."""
    keep = found.half.shape[1]
    least, place = torch.cat([found.half[hit], half], dim=1).topk(keep, dim=1, largest=False)
    old = found.index[hit].gather(1, place.clamp(max=keep - 1))
    new = column.gather(1, (place - keep).clamp(min=0)) + start
    found.index[hit] = torch.where(place < keep, old, new)
    found.half[hit] = least
