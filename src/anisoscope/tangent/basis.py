"""A low-rank basis of the space that rows live in: what every tangent proxy gives and every null is compared with."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

_TINY = 1e-5  # singular values below this share of the largest are rounding of float32 rows


@dataclass(frozen=True)
class Basis:
    """Orthonormal directions fitted on activations.

    `rank` is what was asked for, `effective` how many directions the rows really had; q has that many columns.

    >>> orthonormal(torch.tensor([[2.0, 4.0], [0.0, 0.0], [0.0, 0.0]]), "mine").effective
    1
    """

    q: Tensor  # (d, effective) float64, orthonormal columns
    proxy: str
    rank: int
    effective: int
    directions: Tensor | None = None  # (d, k) what it spans where that is more than a basis: the concepts of semi-NMF

    @property
    def dim(self) -> int:
        return len(self.q)

    def first(self, rank: int) -> Basis:
        """Its first `rank` columns: for proxies whose directions come in order (PCA, SVD)."""
        q = self.q[:, :rank]
        return Basis(q, self.proxy, rank, q.shape[1])


def orthonormal(directions: Tensor, proxy: str, rank: int | None = None) -> Basis:
    """The basis of the space that the columns of `directions` (d, k) span; columns that add nothing are dropped."""
    columns = directions.detach().cpu().double()
    u, s, _ = torch.linalg.svd(columns, full_matrices=False)  # (d, k), (k,)
    keep = int((s > _TINY * s.max().clamp(min=1e-300)).sum()) if s.numel() else 0
    return Basis(u[:, :keep].contiguous(), proxy, columns.shape[1] if rank is None else rank, keep)
