"""What a branch (attention or feed-forward layer) adds to the residual stream, relative to the stream."""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor

from anisoscope.stats.arithmetic import double, full_precision
from anisoscope.stats.rows import Rows


@dataclass(frozen=True)
class Writes:
    """Sums over rows b of a branch and the rows x of the stream before it, in float64.

    `directed` counts the rows of which neither b nor x is zero; only they have a cosine and a ratio.
    """

    n: int
    branch_square: Tensor  # () Σ ‖b‖²
    stream_square: Tensor  # () Σ ‖x‖²
    directed: Tensor  # ()
    ratio: Tensor  # () Σ ‖b‖/‖x‖
    cosine: Tensor  # () Σ cos(b, x)

    @classmethod
    def of(cls, rows: Rows) -> Writes:
        """Compute the sums of rows of a branch, which hold what they write."""
        assert rows.write is not None  # collected only at branches
        written, stream = (Rows(x, rows.tokens) for x in rows.write)
        with full_precision(rows.x.device):
            dot = double((written.plain * stream.plain).sum(1))  # (n,)
            b, x = double(written.norm), double(stream.norm)  # (n,)
        has = (b > 0) & (x > 0)
        one = torch.ones_like(x)
        safe_b, safe_x = torch.where(has, b, one), torch.where(has, x, one)
        return cls(
            len(b),
            b.square().sum(),
            x.square().sum(),
            double(has.sum()),
            torch.where(has, b / safe_x, 0.0).sum(),
            torch.where(has, (dot / safe_b / safe_x).clamp(-1, 1), 0.0).sum(),
        )

    def __add__(self, other: Writes) -> Writes:
        return Writes(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    def without(self, part: Writes) -> Writes:
        """Return the sums without the rows of `part`."""
        return Writes(*(getattr(self, f.name) - getattr(part, f.name) for f in fields(self)))
