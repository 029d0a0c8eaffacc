"""A block whose documents had just begun held one zero three times; wide blocks, which go to disk, then failed."""

from __future__ import annotations

import torch

from anisoscope.stats.collector import Collector
from anisoscope.stats.rows import Rows, token_table


def test_a_wide_block_of_one_document_can_be_spilled() -> None:
    rows = torch.randn(64, 1100, generator=torch.Generator().manual_seed(0))
    collector = Collector({"Moments", "Documents"}, extremes=8)
    for number in range(2):  # the second block closes the first, which is wide enough for the scratch folder
        tokens = token_table(torch.full((64,), number), torch.arange(64), block=torch.full((64,), number))
        collector.add(Rows(rows, tokens))
    cloud = collector.finish()
    assert [block.number for block in cloud.blocks] == [0, 1]
    assert cloud.n == 128
