"""Sums of unit rows: mean cosine over all pairs, drift and norms, in one pass."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from anisoscope.stats.arithmetic import double, full_precision, weighted_sums
from anisoscope.stats.moments import Moments
from anisoscope.stats.rows import Rows

_CHUNK = 1024  # rows per step: they stay in the cache while they are used


@dataclass(frozen=True)
class Directions:
    """Sums over rows x and their directions u = x/‖x‖. Zero rows have no direction and are only counted."""

    n: int
    zero: Tensor  # () rows of norm 0
    bad: Tensor  # () rows with NaN or Inf
    unit: Tensor  # (d,) Σ u
    total: Tensor  # (d,) Σ x
    norm: Tensor  # () Σ ‖x‖
    norm_square: Tensor  # () Σ ‖x‖²

    @classmethod
    def of(cls, rows: Rows) -> Directions:
        x = rows.plain  # (n, d)
        sums = torch.zeros(2, x.shape[1], dtype=torch.float64, device="cpu" if x.device.type == "mps" else x.device)
        with full_precision(x.device):
            weight = torch.stack((rows.inverse_norm, torch.ones_like(rows.norm)))  # (2, n)
            for chunk, weights in zip(x.split(_CHUNK), weight.split(_CHUNK, 1), strict=True):
                sums += weighted_sums(weights, chunk)  # Σ u and Σ x in one product
            norm = double(rows.norm)
        zero, bad = double((norm == 0).sum()), double((~norm.isfinite()).sum())
        return cls(len(x), zero, bad, sums[0], sums[1], norm.sum(), norm.square().sum())

    def __add__(self, other: Directions) -> Directions:
        return self._combine(other, 1)

    def without(self, part: Directions) -> Directions:
        """Return the sums without the rows of `part`."""
        return self._combine(part, -1)

    def _combine(self, other: Directions, sign: int) -> Directions:
        return Directions(
            self.n + sign * other.n,
            self.zero + sign * other.zero,
            self.bad + sign * other.bad,
            self.unit + sign * other.unit,
            self.total + sign * other.total,
            self.norm + sign * other.norm,
            self.norm_square + sign * other.norm_square,
        )

    @property
    def dim(self) -> int:
        return len(self.unit)

    @property
    def directed(self) -> int:
        """Number of rows that have a direction."""
        return self.n - int(self.zero)


@dataclass(frozen=True)
class UnitSquares:
    """Σ u² per dimension: with Σ u it gives the contribution of each dimension to the mean cosine."""

    n: int
    square: Tensor  # (d,)

    @classmethod
    def of(cls, rows: Rows) -> UnitSquares:
        x = rows.plain  # (n, d)
        square = torch.zeros(x.shape[1], dtype=torch.float64, device="cpu" if x.device.type == "mps" else x.device)
        with full_precision(x.device):
            for chunk, weight in zip(x.split(_CHUNK), rows.inverse_norm.split(_CHUNK), strict=True):
                square += weighted_sums(weight.square()[None], chunk.square())[0]
        return cls(len(x), square)

    def __add__(self, other: UnitSquares) -> UnitSquares:
        return UnitSquares(self.n + other.n, self.square + other.square)

    def without(self, part: UnitSquares) -> UnitSquares:
        """Return the sum without the rows of `part`."""
        return UnitSquares(self.n - part.n, self.square - part.square)


@dataclass(frozen=True)
class CentredDirections:
    """Sum of the directions of rows about the mean of the cloud, which takes a second pass over the rows."""

    n: int
    zero: Tensor  # ()
    unit: Tensor  # (d,)

    @classmethod
    def of(cls, rows: Rows, moments: Moments) -> CentredDirections:
        x = rows.plain
        centre = moments.mean.to(x.device, x.dtype if x.device.type == "mps" else torch.float64)
        y = torch.cat([(chunk - centre).to(x.dtype) for chunk in x.split(_CHUNK)])  # (n, d), subtracted in float64
        directions = Directions.of(Rows(y, rows.tokens))
        return cls(directions.n, directions.zero, directions.unit)

    def __add__(self, other: CentredDirections) -> CentredDirections:
        return CentredDirections(self.n + other.n, self.zero + other.zero, self.unit + other.unit)

    def without(self, part: CentredDirections) -> CentredDirections:
        """Return the sum without the rows of `part`."""
        return CentredDirections(self.n - part.n, self.zero - part.zero, self.unit - part.unit)

    @property
    def directed(self) -> int:
        """Number of rows that have a direction."""
        return self.n - int(self.zero)
