"""Samples of one text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from anisoscope.errors import InputError
from anisoscope.measurement.sample_plan import SampleDesign, batch_units, first_units, shuffled_units

DOCUMENT = np.repeat(np.arange(40), np.random.default_rng(0).integers(1, 5, 40))
ROWS = np.random.default_rng(1).integers(1, 30, len(DOCUMENT))


def test_a_shuffle_keeps_the_units_of_a_document_together_and_in_order() -> None:
    order = shuffled_units(DOCUMENT, 1, seed=0)
    assert sorted(order) == list(range(len(DOCUMENT)))
    documents = DOCUMENT[order]
    assert len(np.flatnonzero(np.diff(documents))) == 39
    assert all((np.diff(order[documents == number]) == 1).all() for number in range(40))
    assert documents.tolist() != sorted(documents)


def test_shuffles_differ_by_number_and_by_seed_and_repeat() -> None:
    orders = [shuffled_units(DOCUMENT, shuffle, seed).tolist() for shuffle, seed in ((1, 0), (2, 0), (1, 1))]
    assert len(set(map(tuple, orders))) == 3
    assert shuffled_units(DOCUMENT, 1, 0).tolist() == orders[0]


def test_a_sample_is_the_shortest_beginning_that_is_long_enough() -> None:
    order = shuffled_units(DOCUMENT, 3, seed=0)
    for size in (2, 100, int(ROWS.sum())):
        chosen = first_units(order, ROWS, size)
        assert chosen.tolist() == order[: len(chosen)].tolist()
        assert ROWS[chosen].sum() >= size > ROWS[chosen[:-1]].sum()


def test_batches_are_disjoint_in_order_and_long_enough() -> None:
    order = shuffled_units(DOCUMENT, 3, seed=0)
    batches = batch_units(order, ROWS, 150)
    joined = np.concatenate(batches)
    assert joined.tolist() == order[: len(joined)].tolist()
    assert all(ROWS[batch].sum() >= 150 > ROWS[batch[:-1]].sum() for batch in batches)
    assert ROWS[order[len(joined) :]].sum() < 150


def test_sizes_that_were_not_requested_follow_the_length_of_the_text() -> None:
    assert SampleDesign().sizes(16_384) == [1024, 4096, 16_384]
    assert SampleDesign().sizes(3000) == [1024, 3000]
    assert SampleDesign().batch_sizes(3000) == [1024]
    assert SampleDesign((500, 100, 500), (50,)).sizes(600) == [100, 500]


@pytest.mark.parametrize(
    ("design", "words"),
    [
        (lambda: SampleDesign(tokens=(1,)), "--tokens takes numbers from 2 on"),
        (lambda: SampleDesign(batch_tokens=()), "--batch-tokens takes numbers from 2 on"),
        (lambda: SampleDesign(shuffles=-1), "cannot be negative"),
        (lambda: SampleDesign(tokens=(100, 900)).sizes(800), "holds 800 rows, fewer than 900"),
        (lambda: SampleDesign(batch_tokens=(500,)).batch_sizes(800), "800 rows hold no two batches of 500"),
    ],
)
def test_sizes_that_cannot_be_met_are_refused(design: Callable[[], Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        design()
