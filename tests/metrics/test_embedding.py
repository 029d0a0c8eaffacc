"""Uniformity and hubness against plain numpy, closed forms and planted hubs."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.integrate import quad

from anisoscope import measure_rows, metrics
from anisoscope.metrics.embedding import sphere_uniformity
from tests.oracles import embeddings as oracle


def draw(n: int, d: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_uniformity_is_that_of_all_pairs() -> None:
    x = draw(60, 5) + 0.7
    assert metrics.uniformity(x) == pytest.approx(oracle.uniformity(x), rel=1e-12)


@pytest.mark.parametrize("d", [3, 8, 64])
def test_uniformity_of_the_sphere_is_the_integral_over_the_cosine(d: int) -> None:
    def weight(c: float) -> float:
        return float((1 - c * c) ** ((d - 3) / 2))

    mean = quad(lambda c: math.exp(4 * (c - 1)) * weight(c), -1, 1)[0] / quad(weight, -1, 1)[0]
    assert sphere_uniformity(d) == pytest.approx(math.log(mean), abs=1e-7)
    # 2,048 rows: a U-statistic whose standard error is below 0.01 for these d
    assert metrics.uniformity(draw(2048, d)) == pytest.approx(sphere_uniformity(d), abs=0.05)


def test_zero_rows_have_no_direction() -> None:
    x = draw(50, 4)
    with_zeros = torch.cat([x, torch.zeros(5, 4, dtype=torch.float64)])
    assert metrics.uniformity(with_zeros) == pytest.approx(metrics.uniformity(x), rel=1e-12)


def test_hubness_is_that_of_brute_force() -> None:
    x = draw(150, 12)
    numbers = {label.split("=")[1].rsplit(",", 1)[0]: v for label, v in metrics.hubness.numbers(x).items()}
    assert numbers == pytest.approx(oracle.hubness(x), rel=1e-12)


def test_a_planted_hub_is_found_by_every_row() -> None:
    around = draw(300, 40)
    around = around / around.norm(dim=1, keepdim=True)  # any two are about √2 apart, and 1 from the centre
    with_hub = torch.cat([around, torch.zeros(1, 40, dtype=torch.float64) + 1e-6])
    skewness = [metrics.hubness.numbers(x)["of=skewness, 10"] for x in (around, with_hub)]
    assert skewness[0] is not None
    assert skewness[1] is not None
    assert skewness[1] > 10 > 2 * skewness[0]


def test_rows_on_a_ring_have_no_hubs() -> None:
    angle = torch.arange(64, dtype=torch.float64) * (2 * math.pi / 64)
    ring = torch.stack([angle.cos(), angle.sin()], 1)
    numbers = metrics.hubness.numbers(ring)
    assert numbers["of=anti-hubs, 10"] == 0
    assert numbers["of=robin hood, 10"] == pytest.approx(0.0, abs=0.02)  # rounding decides between equal distances


def test_errors_of_hubness_match_the_spread_over_samples() -> None:
    values, errors = [], []
    for seed in range(12):
        records = [r for r in measure_rows(draw(400, 24, seed), ["hubness"]) if r.variant["of"] == "skewness"]
        values.append(records[0].value)
        errors.append(records[0].error)
    ratio = np.std(np.array(values, dtype=float), ddof=1) / np.mean(np.array(errors, dtype=float))
    assert 0.4 < ratio < 1.6  # of 12 draws: a chi with 11 degrees of freedom stays within a third, twice
