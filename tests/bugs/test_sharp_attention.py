"""Where one key takes all, rounding made entropies of −5e-7 and weights above 1: a layer had no value at all."""

import torch

from anisoscope.measurement.head_blocks import HeadBlocks
from anisoscope.metrics import find
from anisoscope.stats.head_scores import Heads


def test_heads_that_look_at_one_key_have_values_inside_their_range() -> None:
    g = torch.Generator().manual_seed(0)
    q, k = (torch.randn(4, 8, 16, 8, generator=g) for _ in range(2))
    q = 2 * q + 600 * torch.nn.functional.normalize(torch.randn(1, 8, 1, 8, generator=g), dim=3)
    blocks = HeadBlocks()
    blocks.add(Heads(q, k, 8**-0.5), torch.ones(4, 16, dtype=torch.bool), torch.zeros(4, dtype=torch.int64))
    found = blocks.blocks[0]["Attention"]
    assert float(found.entropy.min()) >= 0
    assert bool((found.sink <= found.rows).all())
    assert bool((found.largest <= found.spread_rows).all())
    for metric in find(["attention_entropy", "attention_max", "sink_mass"]):
        values = [value.value for value in metric.values(blocks.cloud())]
        assert len(values) == 8
        assert all(value is not None and 0 <= value <= 1 for value in values), metric.name
