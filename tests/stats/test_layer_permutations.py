"""Permutation tests of pairs of layers: the slow way, and false positives on unrelated rows."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import binom
from torch import Tensor

from anisoscope.stats.layer_permutations import permutation_tests
from anisoscope.stats.layer_similarity import MEASURES, layer_similarity
from tests.oracles import drift, similarity


def normal(m: int, d: int, seed: int) -> Tensor:
    return torch.randn(m, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_p_values_agree_with_comparing_permuted_rows_again() -> None:
    m, draws = 30, 19
    a = [normal(m, 4, 0), normal(m, 6, 1)]
    b = [a[0] + 2 * normal(m, 4, 2), normal(m, 50, 3), normal(m, 3, 4)]
    generator = torch.Generator().manual_seed(7)
    orders = [torch.randperm(m, generator=generator).numpy() for _ in range(draws)]
    tests = permutation_tests(a, b, draws, seed=7)
    slow = {
        "cka": drift.cka,
        "overlap": lambda x, y: drift.neighbour_overlap(x, y, 10),
        "a_to_b": lambda x, y: -similarity.imbalance(x, y),
        "b_to_a": lambda x, y: -similarity.imbalance(y, x),
    }
    rows = [[x.numpy() for x in side] for side in (a, b)]
    for name, measure in slow.items():
        expected = similarity.permutation_p(rows[0], rows[1], orders, measure)
        assert tests[name].p.numpy() == pytest.approx(expected, abs=1e-12), name
        sign = 1 if name in ("cka", "overlap") else -1
        level = np.mean([[[measure(x, y[o]) for y in rows[1]] for x in rows[0]] for o in orders], axis=0)
        # kernels are float32 of length one: errors of a product are far below 1e-5
        assert tests[name].level.numpy() == pytest.approx(sign * level, abs=1e-5), name


def test_the_tested_values_are_those_of_layer_similarity() -> None:
    a, b = [normal(60, 5, 0)], [normal(60, 5, 1), normal(60, 200, 2)]
    tests, tables = permutation_tests(a, b, 3, seed=0), layer_similarity(a, b)
    for name in MEASURES:
        assert tests[name].value.numpy() == pytest.approx(tables[name].value.numpy(), abs=1e-5), name


def test_related_layers_are_significant_and_the_others_are_not() -> None:
    x = normal(80, 6, 0)
    seen: list[int] = []
    tests = permutation_tests([x, normal(80, 6, 1)], [x + 0.3 * normal(80, 6, 2)], 99, 0, seen.append)
    assert sum(seen) == 99
    for name in MEASURES:
        assert float(tests[name].p[0, 0]) == pytest.approx(0.01), name
        assert float(tests[name].p[1, 0]) > 0.01, name


def test_unrelated_models_are_significant_as_often_as_the_level_says() -> None:
    """The smallest p-value of 2 × 2 pairs is at most 5 % in 5 % of 160 unrelated pairs of models."""
    repeats = 160
    found = dict.fromkeys(MEASURES, 0)
    middle = dict.fromkeys(MEASURES, 0)
    for seed in range(repeats):
        a, b = ([normal(32, d, 10 * seed + d + shift) for d in (2, 4)] for shift in (0, 4))
        for name, test in permutation_tests(a, b, 19, seed).items():
            found[name] += float(test.p.min()) <= 0.05 + 1e-9
            middle[name] += float(test.p.min()) <= 0.5 + 1e-9
    for counts, level in ((found, 0.05), (middle, 0.5)):
        low, high = binom.interval(0.9995, repeats, level)
        for name, count in counts.items():
            assert low <= count <= high, (name, level)


def test_layers_that_do_not_vary_have_no_p_value() -> None:
    x = normal(40, 3, 0)
    tests = permutation_tests([x], [x, torch.ones(40, 2)], 9, seed=0)
    for name in MEASURES:
        assert tests[name].p.isnan().tolist() == [[False, True]], name
        assert float(tests[name].p[0, 0]) == pytest.approx(0.1)
