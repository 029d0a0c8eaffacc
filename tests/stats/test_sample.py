"""Kept rows: the keyed sample and the rows of largest norm."""

from __future__ import annotations

from dataclasses import replace

import torch

from anisoscope.stats.rows import bare_rows
from anisoscope.stats.sample import Extremes, has_overflowed, select_extremes


def extremes_of(*norms: float, size: int = 3, first: int = 0) -> Extremes:
    return Extremes.of(bare_rows(torch.tensor(norms)[:, None], first=first), size)


def test_extremes_overflow_if_a_block_is_filled_with_outsized_rows() -> None:
    full, quiet = extremes_of(9.0, 9.0, 9.0, 9.0), extremes_of(1.0, 1.0, 1.0, first=10)
    _, size = select_extremes([full, quiet], outsized=2.0)
    assert has_overflowed([full, quiet], outsized=2.0)
    assert size == 4  # the three outsized rows and one more


def test_extremes_do_not_overflow_if_a_block_still_holds_smaller_rows() -> None:
    blocks = [extremes_of(9.0, 9.0, 1.0, 1.0), extremes_of(9.0, 9.0, 1.0, first=10)]
    keys, size = select_extremes(blocks, outsized=2.0)
    assert not has_overflowed(blocks, outsized=2.0)
    assert size == 5
    assert len(keys) == 4  # all outsized rows, though a block's size is 3


def test_an_overflow_survives_merging_and_selecting() -> None:
    a, b = replace(extremes_of(3.0, 2.0), overflowed=True), extremes_of(1.0, first=10)
    assert (a + b).overflowed
    assert (b + a).overflowed
    assert a.keeping(torch.tensor([0])).overflowed
    assert not (b + b).overflowed
