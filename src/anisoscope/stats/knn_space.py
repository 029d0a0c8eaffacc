"""Rows prepared for the nearest-neighbour search: centred, ordered so that excluded rows are ranges, embedded."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

BLOCK = 2048  # rows per block: 16 MB of float32 products, which stay in the last cache of a server CPU
GROUP = 8  # entries per strided group, the fastest of 2 to 32 for 5 to 70 candidates; blocks are padded to it
_CHUNK = 1 << 19  # entries converted at once: 4 MB of float64, which stay in cache and cost no fresh pages
_CENTRE_ROWS = 255
_BASIS_ROWS = 1024


@dataclass(frozen=True)
class SearchSpace:
    """n rows in search order. The rows [low_i, high_i), with row i itself, are not neighbours of row i."""

    x: Tensor  # (n, d) any float dtype, on a device with float64, where all work is done
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
    """Rows whose distances equal those of the original rows up to rounding, or bound them below; padded to blocks."""

    y: Tensor  # (blocks * block, width); zero in the padding
    half: Tensor  # (blocks * block,) half squared norms; inf in the padding, so that it is never near
    block: int

    @property
    def width(self) -> int:
        return self.y.shape[1]

    def blocks(self) -> Iterator[tuple[int, Tensor, Tensor]]:
        """Yield (first row, y, half) of each block."""
        for start in range(0, len(self.y), self.block):
            yield start, self.y[start : start + self.block], self.half[start : start + self.block]


def robust_centre(x: Tensor) -> Tensor:
    """Return the coordinatewise median of rows spread evenly over x.

    Any point would do, because it cancels in all distances; one near most rows keeps norms, and so rounding, small. A
    few rows of large norm would move a mean away. A median is one of the entries, so it is exact in the dtype of x and
    x - centre is rounded once.
    """
    step = max(1, math.ceil(len(x) / _CENTRE_ROWS))
    rows = x[::step].to(torch.promote_types(x.dtype, torch.float32))  # (at most _CENTRE_ROWS, d)
    return rows.T.contiguous().median(dim=1).values.to(x.dtype)


def centred(space: SearchSpace, index: Tensor | slice, dtype: torch.dtype) -> Tensor:
    """Return rows minus the centre, each entry within one rounding of dtype."""
    rows = space.x[index]
    work = torch.promote_types(rows.dtype, dtype)
    return (rows.to(work) - space.centre.to(work)).to(dtype)


def block_size(n: int) -> int:
    """Return the size of equal blocks of at most BLOCK rows that hold n rows."""
    count = math.ceil(n / BLOCK)
    return math.ceil(n / count / GROUP) * GROUP


def chunks(n: int, width: int) -> Iterator[slice]:
    """Yield slices of n rows with about _CHUNK entries each."""
    step = max(1, _CHUNK // max(1, width))
    for start in range(0, n, step):
        yield slice(start, min(start + step, n))


def embed(space: SearchSpace, basis: Tensor | None = None, dtype: torch.dtype = torch.float32) -> Embedding:
    """Embed as centred rows in dtype, or with a basis as coordinates in it and the norm of the residual.

    With orthonormal Q, p = Qᵀa and ρ = ‖a − Qp‖: ‖a − b‖² = ‖p_a − p_b‖² + ‖residual_a − residual_b‖²
    ≥ ‖p_a − p_b‖² + (ρ_a − ρ_b)², so distances between the short rows (p, ρ) are lower bounds. They are made in
    float64, so the final rounding to dtype is the only one that counts in float32.
    """
    width = space.dim if basis is None else basis.shape[1] + 1
    block = block_size(len(space))
    padded = math.ceil(len(space) / block) * block
    y = torch.zeros(padded, width, dtype=dtype, device=space.x.device)  # (padded, width)
    half = y.new_full((padded,), torch.inf)  # (padded,)
    _fill(space, 0, y[: len(space)], half, basis)
    return Embedding(y, half, block)


def centred_blocks(space: SearchSpace, dtype: torch.dtype) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Yield (first row, y, half) of each block of the centred rows in dtype; the next block overwrites the last."""
    block = block_size(len(space))
    y = torch.zeros(block, space.dim, dtype=dtype, device=space.x.device)  # (block, d)
    half = y.new_empty(block)  # (block,)
    for start in range(0, len(space), block):
        half.fill_(torch.inf)
        _fill(space, start, y[: len(space) - start], half, basis=None)
        yield start, y, half


def _fill(space: SearchSpace, start: int, y: Tensor, half: Tensor, basis: Tensor | None) -> None:
    """Write the embedding of the rows from `start` on into y."""
    for part in chunks(len(y), space.dim):
        rows = slice(start + part.start, start + part.stop)
        y[part] = centred(space, rows, y.dtype) if basis is None else _short(space, rows, basis)
        half[part] = half_square(y[part])


def half_square(y: Tensor) -> Tensor:
    """Return ½‖y‖² of each row, summed in float64 and rounded once."""
    return (0.5 * torch.linalg.vector_norm(y, dim=1, dtype=torch.float64).square()).to(y.dtype)


def principal_basis(space: SearchSpace, count: int) -> Tensor:
    """Return an orthonormal (d, count) float64 basis near the leading principal directions, from evenly spread rows.

    Any orthonormal basis gives correct bounds; a better one certifies more rows.
    """
    step = max(1, math.ceil(len(space) / _BASIS_ROWS))
    rows = centred(space, slice(None, None, step), torch.float64).float()  # (m, d)
    _, vectors = torch.linalg.eigh(rows @ rows.T)  # ascending
    return torch.linalg.qr((rows.T @ vectors[:, -count:]).double()).Q


def _short(space: SearchSpace, part: slice, basis: Tensor) -> Tensor:
    a = centred(space, part, torch.float64)  # (m, d)
    p = a @ basis  # (m, count)
    rest = torch.linalg.vector_norm(a.addmm_(p, basis.T, alpha=-1), dim=1, keepdim=True)  # (m, 1)
    return torch.cat([p, rest], dim=1).float()
