"""Pairs of unit rows by block: leaving out a block equals never having had its rows."""

from __future__ import annotations

import pytest
import torch

from anisoscope.stats.collect import cloud_of
from anisoscope.stats.sphere_pairs import SpherePairs


def test_leaving_out_a_block_equals_the_rows_without_it() -> None:
    x = torch.randn(160, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    pairs = cloud_of(x, ["Sample"]).get(SpherePairs)
    block = torch.arange(160) // 10  # 16 blocks
    for number in (0, 7):
        left = pairs.without_block(torch.tensor([number]))
        rest = cloud_of(x[block != number], ["Sample"]).get(SpherePairs)
        assert float(left.kernel.sum()) == pytest.approx(float(rest.kernel.sum()), rel=1e-12)
        assert float(left.rows.sum()) == 150
