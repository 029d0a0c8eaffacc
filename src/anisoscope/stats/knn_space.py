"""A cloud made ready for the nearest-neighbour search: centred, ordered so that excluded rows are ranges, embedded."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

BLOCK = 2048  # rows of a block: 16 MB of float32 products, which stay in the last cache of a server CPU
GROUP = 8  # entries of a strided group, the fastest of 2 to 32 for 5 to 70 candidates; blocks are padded to it
_CHUNK = 1 << 19  # entries converted at once: 4 MB of float64, which stay in cache and cost no fresh pages
_CENTRE_ROWS = 255
_BASIS_ROWS = 1024


@dataclass(frozen=True)
class SearchSpace:
    """n rows in search order; row i may not meet the rows [low_i, high_i), itself among them."""

    x: Tensor  # (n, d) any float dtype, on a device that knows float64; all work is done there
    centre: Tensor  # (d,) the dtype of x
    low: Tensor  # (n,) int64
    high: Tensor  # (n,) int64

    def __len__(self) -> int:
        return len(self.x)

    @property
    def dim(self) -> int:
        return self.x.shape[1]


@dataclass(frozen=True)
class Embedding:
    """Rows whose distances are those of the cloud up to rounding, or a lower bound of them; padded to whole blocks."""

    y: Tensor  # (blocks * block, width); zero where padded
    half: Tensor  # (blocks * block,) half squared norms; inf where padded, so that no row finds a padded one
    block: int

    @property
    def width(self) -> int:
        return self.y.shape[1]

    def blocks(self) -> Iterator[tuple[int, Tensor, Tensor]]:
        """(first row, y, half) of each block."""
        for start in range(0, len(self.y), self.block):
            yield start, self.y[start : start + self.block], self.half[start : start + self.block]


def robust_centre(x: Tensor) -> Tensor:
    """A point amid the rows: the coordinatewise median of rows spread evenly over x.

    Any point serves, for it cancels in all distances; near the bulk it keeps norms, and with them rounding, small. A
    mean would be dragged away by a few rows of outsized norm. A median is one of the entries, so it is exact in the
    dtype of x and x - centre is rounded once.
    """
    step = max(1, math.ceil(len(x) / _CENTRE_ROWS))
    rows = x[::step].to(torch.promote_types(x.dtype, torch.float32))  # (at most _CENTRE_ROWS, d)
    return rows.T.contiguous().median(dim=1).values.to(x.dtype)


def centred(cloud: SearchSpace, index: Tensor | slice, dtype: torch.dtype) -> Tensor:
    """Rows minus the centre, each entry within one rounding of dtype."""
    rows = cloud.x[index]
    work = torch.promote_types(rows.dtype, dtype)
    return (rows.to(work) - cloud.centre.to(work)).to(dtype)


def block_size(n: int) -> int:
    """The smallest even cut of n rows into blocks of at most BLOCK."""
    count = math.ceil(n / BLOCK)
    return math.ceil(n / count / GROUP) * GROUP


def chunks(n: int, width: int) -> Iterator[slice]:
    """Slices over n rows that hold about _CHUNK entries each."""
    step = max(1, _CHUNK // max(1, width))
    for start in range(0, n, step):
        yield slice(start, min(start + step, n))


def embed(cloud: SearchSpace, basis: Tensor | None = None, dtype: torch.dtype = torch.float32) -> Embedding:
    """The centred rows in dtype, or with a basis their coordinates in it and the norm of what it leaves over.

    With orthonormal Q, p = Qᵀa and ρ = ‖a − Qp‖: ‖a − b‖² = ‖p_a − p_b‖² + ‖residual_a − residual_b‖²
    ≥ ‖p_a − p_b‖² + (ρ_a − ρ_b)², so distances between the short rows (p, ρ) are lower bounds. They are made in
    float64, so the final rounding to dtype is the only one that counts in float32.
    """
    width = cloud.dim if basis is None else basis.shape[1] + 1
    block = block_size(len(cloud))
    padded = math.ceil(len(cloud) / block) * block
    y = torch.zeros(padded, width, dtype=dtype, device=cloud.x.device)  # (padded, width)
    half = y.new_full((padded,), torch.inf)  # (padded,)
    _fill(cloud, 0, y[: len(cloud)], half, basis)
    return Embedding(y, half, block)


def centred_blocks(cloud: SearchSpace, dtype: torch.dtype) -> Iterator[tuple[int, Tensor, Tensor]]:
    """(first row, y, half) of each block of the centred cloud in dtype; a block lives until the next is asked for."""
    block = block_size(len(cloud))
    y = torch.zeros(block, cloud.dim, dtype=dtype, device=cloud.x.device)  # (block, d)
    half = y.new_empty(block)  # (block,)
    for start in range(0, len(cloud), block):
        half.fill_(torch.inf)
        _fill(cloud, start, y[: len(cloud) - start], half, basis=None)
        yield start, y, half


def _fill(cloud: SearchSpace, start: int, y: Tensor, half: Tensor, basis: Tensor | None) -> None:
    """Write the embedding of as many rows from `start` on as y has."""
    for part in chunks(len(y), cloud.dim):
        rows = slice(start + part.start, start + part.stop)
        y[part] = centred(cloud, rows, y.dtype) if basis is None else _short(cloud, rows, basis)
        half[part] = half_square(y[part])


def half_square(y: Tensor) -> Tensor:
    """½‖y‖² of each row, summed in float64 and rounded once."""
    return (0.5 * torch.linalg.vector_norm(y, dim=1, dtype=torch.float64).square()).to(y.dtype)


def principal_basis(cloud: SearchSpace, count: int) -> Tensor:
    """Orthonormal (d, count) float64 near the leading principal directions, from rows spread evenly over the cloud.

    Any orthonormal basis gives correct bounds; a better one certifies more rows.
    """
    step = max(1, math.ceil(len(cloud) / _BASIS_ROWS))
    rows = centred(cloud, slice(None, None, step), torch.float64).float()  # (m, d)
    _, vectors = torch.linalg.eigh(rows @ rows.T)  # ascending
    return torch.linalg.qr((rows.T @ vectors[:, -count:]).double()).Q


def _short(cloud: SearchSpace, part: slice, basis: Tensor) -> Tensor:
    a = centred(cloud, part, torch.float64)  # (m, d)
    p = a @ basis  # (m, count)
    rest = torch.linalg.vector_norm(a.addmm_(p, basis.T, alpha=-1), dim=1, keepdim=True)  # (m, 1)
    return torch.cat([p, rest], dim=1).float()
