"""A low-rank basis of the space that rows live in: the result of every tangent proxy."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

_TINY = 1e-5  # singular values below this share of the largest are rounding of float32 rows


@dataclass(frozen=True)
class Basis:
    """Orthonormal directions fitted on activations.

    `rank` is the requested number of directions, `effective` the number that the rows have: the columns of q.

    >>> orthonormal(torch.tensor([[2.0, 4.0], [0.0, 0.0], [0.0, 0.0]]), "mine").effective
    1
    """

    q: Tensor  # (d, effective) float64, orthonormal columns
    proxy: str
    rank: int
    effective: int
    directions: Tensor | None = None  # (d, k) what it spans, if that is more than a basis: the concepts of semi-NMF

    @property
    def dim(self) -> int:
        return len(self.q)

    def first(self, rank: int) -> Basis:
        """The first `rank` columns, for proxies with ordered directions (PCA, SVD)."""
        q = self.q[:, :rank]
        return Basis(q, self.proxy, rank, q.shape[1])


def orthonormal(directions: Tensor, proxy: str, rank: int | None = None) -> Basis:
    """Make a basis from any directions.

    Args:
        directions: Columns (d, k); columns that add nothing are dropped.
        proxy: The name of the proxy.
        rank: The requested rank; by default the number of columns.

    Returns:
        The basis of the space that the columns span.
    """
    columns = directions.detach().cpu().double()
    u, s, _ = torch.linalg.svd(columns, full_matrices=False)  # (d, k), (k,)
    keep = int((s > _TINY * s.max().clamp(min=1e-300)).sum()) if s.numel() else 0
    return Basis(u[:, :keep].contiguous(), proxy, columns.shape[1] if rank is None else rank, keep)
