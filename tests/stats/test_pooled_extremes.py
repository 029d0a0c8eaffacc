"""The largest rows of all blocks are chosen together, first tokens of windows among them."""

from __future__ import annotations

import torch

from anisoscope.stats.cloud import Stats
from anisoscope.stats.pooled_extremes import PooledExtremes
from anisoscope.stats.rows import bare_rows
from anisoscope.stats.sample import Extremes


def extremes_of(*norms: float, first: int) -> Extremes:
    return Extremes.of(bare_rows(torch.tensor(norms)[:, None], first=first), 3)


def two_blocks() -> list[Stats]:
    return [
        {"Extremes": extremes_of(9.0, 2.0, 1.0, first=0), "first.Extremes": extremes_of(7.0, 0.5, first=10)},
        {"Extremes": extremes_of(8.0, 3.0, first=20)},
    ]


def test_the_largest_rows_stay_and_the_others_return_to_their_sums() -> None:
    blocks = two_blocks()
    pooled = PooledExtremes.of(blocks, outsized=100.0)
    stay, lower = pooled.take(blocks, 0)
    assert {name: each.x[:, 0].tolist() for name, each in stay.items()} == {
        "Extremes": [9.0, 8.0],
        "first.Extremes": [7.0],
    }
    assert {prefix: sorted(rows.x[:, 0].tolist()) for prefix, rows in lower.items()} == {
        "": [1.0, 2.0, 3.0],
        "first.": [0.5],
    }
    assert blocks == [{}, {}]


def test_all_outsized_rows_stay_whatever_their_number() -> None:
    blocks = two_blocks()
    pooled = PooledExtremes.of(blocks, outsized=2.0)
    stay, lower = pooled.take(blocks, 0)
    assert sum(len(each.x) for each in stay.values()) == 5 < pooled.size
    assert list(lower) == ["", "first."]


def test_an_overflow_of_first_tokens_is_not_one_of_the_others() -> None:
    blocks: list[Stats] = [
        {"Extremes": extremes_of(1.0, first=0), "first.Extremes": extremes_of(9.0, 9.0, 9.0, first=10)}
    ]
    assert PooledExtremes.of(blocks, outsized=2.0).overflowed == {"Extremes": False, "first.Extremes": True}
