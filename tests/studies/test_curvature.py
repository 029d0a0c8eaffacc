"""The curvature simulation: its estimators against the theory."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from anisoscope.studies.curvature import (
    RADII,
    Surface,
    counterexample,
    curvature_records,
    curvature_snr,
    gradient_bound,
    radius_slope,
    sample_surface,
    visible,
)

SMALL = Surface(tokens=2000)


def mean_snr(surface: Surface, seeds: int = 6) -> float:
    return sum(visible(sample_surface(surface, seed), surface.tangent).snr for seed in range(seeds)) / seeds


def test_a_cloud_without_noise_lies_on_the_surface() -> None:
    """Without noise the normal part is an exact quadratic of the tangent part, and the rest of space is empty."""
    cloud = sample_surface(replace(SMALL, noise=0.0), 0)
    y = cloud.x @ cloud.axes
    assert float(y[:, 8:].abs().max()) < 1e-12
    assert curvature_snr(y[:, :3], y[:, 3:8]) > 1e6


def test_visibility_is_the_variance_outside_the_tangent_space() -> None:
    cloud = sample_surface(SMALL, 1)
    y = (cloud.x - cloud.x.mean(0)) @ cloud.axes
    expected = float(y[:, 3:].var(0).sum() / y.var(0).sum())
    assert visible(cloud, 3).visibility == pytest.approx(expected)


def test_normal_parts_are_second_order_in_the_radius() -> None:
    slopes = [radius_slope(SMALL, RADII, seed) for seed in range(6)]
    assert sum(slopes) / 6 == pytest.approx(2, abs=0.05)


def test_a_flat_cloud_shows_no_curvature() -> None:
    flat = replace(SMALL, curvature=0.0)
    assert mean_snr(flat) < 0.01
    assert visible(sample_surface(flat, 0), 3).visibility < 0.01


def test_pinning_attenuates_curvature_and_reweighting_alone_does_not() -> None:
    plain, zipf = mean_snr(replace(SMALL, zipf=0.0)), mean_snr(SMALL)
    assert zipf == pytest.approx(plain, rel=1e-9)  # paired seeds: types that sit alike are the same sample
    pinned = [mean_snr(replace(SMALL, pinning=gamma)) for gamma in (0.25, 0.5)]
    assert pinned[0] < 0.5 * zipf
    assert pinned[1] < 0.5 * pinned[0] + 0.2 * zipf
    assert mean_snr(replace(SMALL, zipf=0.0, pinning=0.5)) > pinned[1]


def test_the_drop_is_not_a_smaller_sample() -> None:
    """An unpinned cloud of as many tokens as count in the pinned one still shows its curvature."""
    seen = visible(sample_surface(replace(SMALL, pinning=0.5), 0), 3)
    assert seen.effective < 1000
    fewer = replace(SMALL, tokens=round(seen.effective))
    assert visible(sample_surface(fewer, 0), 3).snr > 3 * seen.snr


def test_the_signal_is_the_variance_over_the_noise() -> None:
    """One tangent, one normal direction: n = κu²/2, Var n = κ²t⁴/2, so the ratio is κ²/(2σ²)."""
    draw = torch.Generator().manual_seed(0)
    u = torch.randn(40_000, 1, generator=draw, dtype=torch.float64)
    noise = 0.3 * torch.randn(40_000, 1, generator=draw, dtype=torch.float64)
    assert curvature_snr(u, 0.8 * u.square() / 2 + noise) == pytest.approx(0.64 / 2 / 0.09, rel=0.1)


def test_the_bound_holds_for_second_moments_and_not_for_the_mean() -> None:
    """x = (u, u²), w = 0, y = −1 with u uniform on ±t: E u⁴/E u² = 0.6 t²; the mean gradient has no tangent part."""
    for radius in (0.1, 0.5, 1.0):
        bound = counterexample(radius)
        assert bound.second == pytest.approx(0.6 * radius**2, rel=1e-3)
        assert bound.mean > 1e12


def test_the_bound_holds_for_both_where_the_mean_has_a_tangent_part() -> None:
    u = torch.linspace(-1, 1, 4001, dtype=torch.float64)[:, None]
    ratios = []
    for radius in (0.1, 0.2, 0.4):
        x = radius * u
        ratios.append(gradient_bound(x, x.square(), 3 * x[:, 0], torch.zeros(2, dtype=torch.float64)))
    assert all(bound.mean < 1e-12 for bound in ratios)
    assert ratios[2].second / ratios[0].second == pytest.approx(16, rel=0.01)


def test_the_study_has_every_part() -> None:
    records = curvature_records(Surface(tokens=600), seeds=4)
    found = {record.metric for record in records}
    assert found == {
        "curvature_visibility",
        "pca_residual",
        "curvature_snr",
        "effective_tokens",
        "curvature_drop",
        "curvature_slope",
        "gradient_bound",
    }
    drops = [r for r in records if r.metric == "curvature_drop"]
    assert all((r.value or 0.0) - 3.2 * (r.error or 0.0) > 0.2 for r in drops)
    flat = next(r for r in records if r.metric == "curvature_snr" and "kappa" in r.variant)
    assert (flat.value or 0.0) < 0.05
