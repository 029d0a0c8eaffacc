"""Outlier metrics against slow numpy implementations and known answers."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from anisoscope import metrics, synthetic
from anisoscope.errors import MetricError
from tests.oracles import metrics as slow

RANDOM = np.random.default_rng(0)
X = RANDOM.standard_normal((70, 6)) * np.array([3.0, 2.0, 1.0, 1.0, 0.5, 0.2]) + np.array([1.0, 0, 0, 2.0, 0, 0])


def test_the_removal_curve_removes_the_largest_rows_exactly() -> None:
    x = X.copy()
    x[[5, 30, 31]] *= np.array([[300.0], [200.0], [100.0]])
    found = metrics.removal_curve.numbers(x)
    for removed, value in found.items():
        assert value == pytest.approx(slow.removal_curve(x, removed), rel=1e-9), removed
    assert (found[0] or 0.0) > 0.7
    assert (found[4] or 1.0) < 0.65


@pytest.mark.parametrize("massive", [1e3, 1e6, 1e9])
def test_removing_one_massive_row_is_enough_at_any_size(massive: float) -> None:
    x = synthetic.cloud("sphere", n=3000, d=24)
    x[77] *= massive
    assert metrics.tokens_to_halve(x) == pytest.approx(1 / 3000)


def test_unequal_lengths_in_random_directions_are_not_mistaken_for_outliers() -> None:
    x = synthetic.cloud("sphere", n=4000, d=64)
    x = x * torch.exp(torch.randn(4000, 1, generator=torch.Generator().manual_seed(4), dtype=torch.float64))
    assert metrics.tokens_to_halve.numbers(x) == {None: None}
    with pytest.raises(MetricError, match="halve"):
        metrics.tokens_to_halve(x)


def test_a_smooth_anisotropic_cloud_is_not_halved_by_few_rows() -> None:
    x = synthetic.cloud("power law", n=4000, d=64)
    assert metrics.tokens_to_halve.numbers(x) == {None: None}
    with pytest.raises(MetricError, match="halve"):
        metrics.tokens_to_halve(x)


def test_tyler_ignores_massive_rows_and_keeps_a_true_share() -> None:
    x = synthetic.cloud("sphere", n=3000, d=16)
    x[:, 0] *= math.sqrt(15 * 9)
    assert metrics.tyler_share(x) == pytest.approx(0.9, abs=0.01)
    y = synthetic.cloud("sphere", n=3000, d=16)
    y[9] *= 1e5
    assert metrics.tyler_share(y) < 0.08 < 0.9 < metrics.spectral_anisotropy(y)


def test_tyler_equals_its_slow_implementation() -> None:
    x = RANDOM.standard_normal((60, 4)) * np.array([2.0, 1.0, 1.0, 0.5])
    centre = x.mean(0)
    for _ in range(200):
        weight = 1 / np.linalg.norm(x - centre, axis=1)
        centre = (weight @ x) / weight.sum()
    assert metrics.tyler_share(x) == pytest.approx(slow.tyler_share(x, centre), rel=1e-4)
