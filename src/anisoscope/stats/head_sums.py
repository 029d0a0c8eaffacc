"""Sums of queries and keys per head."""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor

from anisoscope.stats.arithmetic import double, full_precision, plain
from anisoscope.stats.head_scores import Heads


@dataclass(frozen=True)
class HeadSums:
    """Sums over the counted tokens of one layer, in float64; h query heads, g key heads, h a multiple of g."""

    tokens: Tensor  # () counted tokens
    q: Tensor  # (h, d) Σ q
    qq: Tensor  # (h, d, d) Σ qqᵀ
    k: Tensor  # (g, d) Σ k
    k_square: Tensor  # (g,) Σ ‖k‖²
    k_within: Tensor  # (g, d, d) Σ (k − k̄)(k − k̄)ᵀ, k̄ the mean of the token's window

    @classmethod
    def of(cls, heads: Heads, counts: Tensor) -> HeadSums:
        """Compute the sums of one batch; `counts` (b, t) is True for tokens that count."""
        real = counts.to(heads.q.device)[:, None, :, None]  # (b, 1, t, 1)
        with full_precision(heads.q.device):
            q, k = plain(heads.q) * real, plain(heads.k) * real  # (b, h, t, d), (b, g, t, d)
            number = real.sum(2, keepdim=True).clamp(min=1)  # (b, 1, 1, 1)
            within = (k - k.sum(2, keepdim=True) / number) * real  # (b, g, t, d)
            return cls(
                tokens=double(real.sum()),
                q=double(q.sum((0, 2))),
                qq=double(torch.einsum("bhti,bhtj->hij", q, q)),
                k=double(k.sum((0, 2))),
                k_square=double(k.square().sum((0, 2, 3))),
                k_within=double(torch.einsum("bgti,bgtj->gij", within, within)),
            )

    def __add__(self, other: HeadSums) -> HeadSums:
        return HeadSums(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    def without(self, part: HeadSums) -> HeadSums:
        """Return the sums without the tokens of `part`."""
        return HeadSums(*(getattr(self, f.name) - getattr(part, f.name) for f in fields(self)))
