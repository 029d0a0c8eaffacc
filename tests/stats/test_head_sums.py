"""Sums of queries and keys per head."""

from __future__ import annotations

import torch

from anisoscope.stats.head_scores import Heads
from anisoscope.stats.head_sums import HeadSums

G = torch.Generator().manual_seed(0)
Q = torch.randn(3, 4, 10, 6, generator=G, dtype=torch.float64) + torch.randn(1, 4, 1, 6, generator=G).double()
K = torch.randn(3, 2, 10, 6, generator=G, dtype=torch.float64) + 0.5
COUNTS = torch.ones(3, 10, dtype=torch.bool)
COUNTS[2, 7:] = False


def sums(part: slice = slice(0, 3)) -> HeadSums:
    return HeadSums.of(Heads(Q[part], K[part], 1.0), COUNTS[part])


def test_head_sums_of_batches_add_and_subtract() -> None:
    both = sums(slice(0, 1)) + sums(slice(1, 3))
    for name in ("tokens", "q", "qq", "k", "k_square", "k_within"):
        torch.testing.assert_close(getattr(both, name), getattr(sums(), name))
        torch.testing.assert_close(getattr(sums().without(sums(slice(0, 1))), name), getattr(sums(slice(1, 3)), name))
