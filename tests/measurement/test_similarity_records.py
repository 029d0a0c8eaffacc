"""Records of the similarity of two models: their errors, and what they say about layers without a value."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from anisoscope.measurement.similarity_records import (
    ComparedRows,
    p_records,
    similarity_cards,
    similarity_error,
    similarity_records,
)
from anisoscope.metrics import catalogue
from anisoscope.records import Record, Site
from anisoscope.stats.layer_permutations import permutation_tests
from anisoscope.stats.layer_similarity import MEASURES, layer_similarity


def normal(m: int, d: int, seed: int) -> Tensor:
    return torch.randn(m, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def records(m: int = 60, *, independent: bool = True, blocks: int = 6) -> list[Record]:
    a, b = [normal(m, 4, 0), torch.ones(m, 3)], [normal(m, 5, 1)]
    sites = [Site("embed"), Site("resid", 0)], [Site("resid", 7)]
    compared = ComparedRows(sites, (a, b), torch.arange(m), "documents", "no-sink", independent)
    sizes = [m // blocks] * blocks
    tests = permutation_tests(a, b, 9, seed=0)
    return [*similarity_records(compared, layer_similarity(a, b, sizes), sizes), *p_records(compared, tests, m)]


def test_a_pair_has_four_numbers_and_four_p_values() -> None:
    found = [r for r in records() if r.site == "embed"]
    assert [r.metric for r in found] == ["layer_cka", "layer_overlap", *["layer_imbalance"] * 2, *["similarity_p"] * 4]
    assert all(r.variant["other"] == "resid.7" and r.tokens == "no-sink" and r.n == 60 for r in found)
    assert [r.variant.get("direction") for r in found[2:4]] == ["a to b", "b to a"]
    assert [r.variant["of"] for r in found[4:]] == ["layer_cka", "layer_overlap", *["layer_imbalance"] * 2]
    assert [r.null for r in found[:4]] == [0.0, 10 / 59, 1.0, 1.0]
    assert all(r.error_kind == "jackknife-6-documents" and r.error for r in found[:4])


def test_a_layer_that_does_not_vary_has_a_reason_instead_of_a_value() -> None:
    found = [r for r in records() if r.site == "resid.0"]
    assert [r.value for r in found] == [None] * 4
    assert found[0].note == "resid.0 of model a: the rows do not vary"
    assert found[1].note == "resid.0 of model a: 59 of 60 rows are copies of another row"
    assert all(r.error is None for r in found)


def test_several_rows_of_one_document_have_no_null_value() -> None:
    assert {r.null for r in records(independent=False)} == {None}


def test_three_blocks_have_no_error() -> None:
    assert {r.error for r in records(blocks=3)} == {None}


def test_every_metric_has_a_card_and_a_name_of_its_own() -> None:
    cards = similarity_cards()
    assert {r.metric for r in records()} == set(cards)
    assert not set(cards) & set(catalogue())
    for record in records():
        if record.value is not None:
            assert cards[record.metric]["low"] <= record.value <= cards[record.metric]["high"]


@pytest.mark.parametrize("strength", [0.5, 2.0])
def test_errors_match_the_spread_over_repeated_samples(strength: float) -> None:
    """The spread over 60 samples has a standard error of 9 %; without stretching, the ratio of overlap is near 1.4."""
    m, d, sizes = 150, 6, [10] * 15
    mix = normal(d, 9, 5)
    values: dict[str, list[float]] = {name: [] for name in MEASURES}
    errors: dict[str, list[float]] = {name: [] for name in MEASURES}
    for seed in range(60):
        x = normal(m, d, 2 * seed) * torch.linspace(2, 0.3, d, dtype=torch.float64)
        tables = layer_similarity([x], [(strength * x + normal(m, d, 2 * seed + 1)) @ mix], sizes)
        for name, table in tables.items():
            values[name].append(float(table.value))
            error = similarity_error(name, values[name][-1], table.without[:, 0, 0].tolist(), sizes)
            assert error is not None
            errors[name].append(error)
    for name in MEASURES:
        ratio = np.std(values[name], ddof=1) / np.mean(errors[name])
        assert 0.6 < ratio < 1.4, (name, ratio)
