"""Kurtosis of features, largest entries and the mean over the spread, against plain numpy and simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from anisoscope import metrics
from anisoscope.stats.collect import cloud_of
from anisoscope.synthetic import cloud


def test_feature_kurtosis_equals_numpy_from_one_to_the_width() -> None:
    x = cloud("outlier dimension").double().numpy()
    square = (x**2).mean(0)
    assert metrics.feature_kurtosis(x) == pytest.approx((square**2).mean() / square.mean() ** 2)
    one = np.zeros((20, 8))
    one[:, 3] = 2.0
    assert metrics.feature_kurtosis(one) == pytest.approx(8)
    assert metrics.feature_kurtosis(np.ones((20, 8))) == pytest.approx(1)


def test_the_null_of_feature_kurtosis_is_that_of_gaussian_rows() -> None:
    """Of 400 clouds of 20 rows; the mean has a standard error of about 0.2 %."""
    draw = torch.Generator().manual_seed(0)
    values = [metrics.feature_kurtosis(torch.randn(20, 12, generator=draw)) for _ in range(400)]
    assert np.mean(values) == pytest.approx(12 * 22 / (20 * 12 + 2), rel=0.01)


def test_entry_max_finds_an_entry_that_is_not_in_the_longest_row() -> None:
    x = torch.ones(1000, 64)
    x[7] = 6.0  # a long row
    x[9, 3] = -20.0  # the largest entry, in a shorter one
    numbers = metrics.entry_max.numbers(x)
    assert numbers == {"in=units": 20.0, "in=medians": 20.0}


def test_the_null_of_entry_max_is_that_of_gaussian_entries() -> None:
    """200 clouds of 50 × 20 entries: the median of the maximum over the median has a standard error under 2 %."""
    draw, ratios = torch.Generator().manual_seed(0), []
    for _ in range(200):
        values = metrics.entry_max.values(cloud_of(torch.randn(50, 20, generator=draw), metrics.entry_max.sources))
        ratios.append(float(values[1].value or 0.0))
    assert np.median(ratios) == pytest.approx(values[1].null, rel=0.04)


def test_mean_over_spread_is_the_unbounded_form_of_relative_drift() -> None:
    x = torch.randn(300, 10, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 0.7
    r = metrics.relative_drift(x)
    assert metrics.mean_over_spread(x) == pytest.approx(r / math.sqrt(1 - r**2))


def test_dimensions_for_equal_numpy() -> None:
    x = (torch.randn(500, 30, generator=torch.Generator().manual_seed(0)) * torch.logspace(0, -2, 30)).double()
    share = np.cumsum(np.linalg.svd(x.numpy() - x.numpy().mean(0), compute_uv=False) ** 2)
    share = share / share[-1]
    levels = {"share=90 %": 0.9, "share=99 %": 0.99}
    expected = {name: float(np.searchsorted(share, level) + 1) for name, level in levels.items()}
    assert metrics.dimensions_for.numbers(x) == expected


@pytest.mark.parametrize("exponent", [2.0, 3.0])
def test_tail_alpha_recovers_the_exponent_of_a_power_law_and_not_that_of_ranks(exponent: float) -> None:
    """λ_j = j^−a with a = 1/(α − 1) are quantiles of p(λ) ∝ λ^−α; the 64 ranges that are tried miss α by under 5 %."""
    d = 400
    eigenvalues = torch.arange(1, d + 1, dtype=torch.float64).pow(-1 / (exponent - 1))
    x = torch.linalg.qr(torch.randn(2 * d, d, generator=torch.Generator().manual_seed(0), dtype=torch.float64)).Q
    x = (x - x.mean(0)) * eigenvalues.sqrt()
    assert metrics.tail_alpha(x) == pytest.approx(exponent, rel=0.05)
    assert metrics.power_law_alpha(x) == pytest.approx(1 / (exponent - 1), rel=0.02)


def test_information_imbalance_equals_ranks_by_hand() -> None:
    g = torch.Generator().manual_seed(0)
    now = torch.randn(60, 4, generator=g, dtype=torch.float64)
    then = torch.cat((now[:, :2], torch.randn(60, 3, generator=g, dtype=torch.float64)), 1)

    def by_hand(a: np.ndarray, b: np.ndarray) -> float:
        ranks = []
        for i in range(len(a)):
            others = [j for j in range(len(a)) if j != i]
            nearest = min(others, key=lambda j: np.linalg.norm(a[i] - a[j]))
            order = sorted(others, key=lambda j: np.linalg.norm(b[i] - b[j]))
            ranks.append(order.index(nearest) + 1)
        return float(2 * np.mean(ranks) / len(a))

    numbers = metrics.information_imbalance.numbers(now, then)
    assert numbers["from=now"] == pytest.approx(by_hand(now.numpy(), then.numpy()))
    assert numbers["from=reference"] == pytest.approx(by_hand(then.numpy(), now.numpy()))
    same = metrics.information_imbalance.numbers(now, 3 * now + 1)
    assert set(same.values()) == {2 / 60}
    projected = metrics.information_imbalance.numbers(now, now[:, :1].expand(-1, 4))
    assert (projected["from=now"] or 0) < (projected["from=reference"] or 0)


@pytest.mark.parametrize(("name", "sizes"), [("entry_max", (128, 512)), ("tail_alpha", (40, 4000))])
def test_the_number_of_rows_changes_noisy_metrics(name: str, sizes: tuple[int, int]) -> None:
    """Over 60 clouds each, the means differ by more than five standard errors."""
    (metric,), draw = metrics.find([name]), torch.Generator().manual_seed(0)
    assert metric.row_effect == "any"
    few, many = (
        [float(next(iter(metric.numbers(torch.randn(n, 16, generator=draw)).values())) or 0.0) for _ in range(60)]
        for n in sizes
    )
    error = np.hypot(np.std(few), np.std(many)) / np.sqrt(60)
    assert abs(np.mean(few) - np.mean(many)) > 5 * error
