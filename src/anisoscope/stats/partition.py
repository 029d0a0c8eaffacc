"""The partition function Z(v) = Σ exp(x·v) along the principal axes of the rows."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from anisoscope.stats.arithmetic import CHUNK, double, full_precision
from anisoscope.stats.moments import Moments
from anisoscope.stats.rows import Rows


@dataclass(frozen=True)
class Partition:
    """log Z along v and −v for the eigenvectors v of Σ xxᵀ, of raw rows and of rows rescaled to unit rms.

    v points to the side of the mean, so that the signs do not depend on the solver. The axes must be known, so this
    takes a second pass over the rows. Rescaling multiplies all rows by one number, so that their root mean square norm
    is √d, as if entries had unit variance.
    """

    log_z: Tensor  # (2 scales, 2 signs, d) float64: [raw, unit rms] × [+, −]

    @classmethod
    def of(cls, rows: Rows, moments: Moments) -> Partition:
        x = rows.mapped  # (n, d)
        axes = moments.axes_uncentred.to(x.device, x.dtype)
        scale = unit_scale(moments)
        total = None
        with full_precision(x.device):
            for chunk in x.split(CHUNK):
                along = chunk @ axes  # (n, d)
                part = torch.stack(
                    [torch.stack([_log_sum_exp(s * along), _log_sum_exp(-s * along)]) for s in (1.0, scale)]
                )
                total = part if total is None else torch.logaddexp(total, part)
        assert total is not None
        return cls(total)

    def __add__(self, other: Partition) -> Partition:
        return Partition(torch.logaddexp(self.log_z, other.log_z))

    def without(self, part: Partition) -> Partition:
        """Return the partition function without the rows of `part`: log(Z − Z_part)."""
        return Partition(self.log_z + torch.log1p(-torch.exp(part.log_z - self.log_z)))


def unit_scale(moments: Moments) -> float:
    """Return the factor that makes the root mean square norm of the rows √d."""
    mean_square = float(moments.second.diagonal().sum()) / moments.n
    return math.sqrt(moments.dim / mean_square) if mean_square > 0 else 1.0


def _log_sum_exp(along: Tensor) -> Tensor:
    """Return log Σ exp over rows, (n, d) -> (d,), with exponentials in (0, 1] and float64 sums."""
    top = along.amax(0)
    return double(top) + double((along - top).exp_().sum(0)).log()
