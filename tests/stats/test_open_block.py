"""The growing part of a collector survives the way through arrays."""

from __future__ import annotations

import torch

from anisoscope.stats.moments import Moments
from anisoscope.stats.open_block import OpenBlock
from anisoscope.stats.rows import Rows, bare_rows
from anisoscope.stats.sample import Reservoir


def rows(n: int) -> Rows:
    return bare_rows(torch.randn(n, 3, generator=torch.Generator().manual_seed(n)))


def test_an_open_block_is_the_same_after_the_way_through_arrays() -> None:
    reservoir = Reservoir(4)
    reservoir.add(rows(9))
    before = OpenBlock({"Moments": Moments.of(rows(5))}, {"first.": [rows(2), rows(1)]}, reservoir.sample())
    after = OpenBlock.of(before.arrays())
    assert {name: x.tolist() for name, x in after.arrays().items()} == {
        name: x.tolist() for name, x in before.arrays().items()
    }
    assert list(after.pending) == ["first."]
    assert torch.equal(after.pending["first."][0].x, torch.cat([rows(2).x, rows(1).x]))


def test_an_empty_block_stays_empty() -> None:
    assert OpenBlock.of(OpenBlock({}, {"": []}, None).arrays()) == OpenBlock({}, {}, None)
