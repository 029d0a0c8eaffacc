"""Sums of gradients: they add, and their energies are those of the rows."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest
import torch

from anisoscope.tangent.basis import Basis
from anisoscope.tangent.gradients import Gradients
from anisoscope.tangent.site_bases import fit_site_bases
from tests.oracles import tangent as oracle
from tests.tangent_rows import cloud, made, normal


def test_gradients_of_two_halves_add_to_the_whole() -> None:
    fitted, g, h, block = made()
    strata = (torch.arange(240)[:, None] % 2 == torch.arange(2)).float()
    whole = Gradients.of(fitted, g, h, block, strata=strata)
    half = [Gradients.of(fitted, g[s], h[s], block[s], strata=strata[s]) for s in (slice(0, 100), slice(100, 240))]
    for field in fields(Gradients):
        one, two = getattr(whole, field.name), getattr(half[0] + half[1], field.name)
        assert torch.allclose(one.double(), two.double(), rtol=1e-5, atol=1e-6), field.name


def test_energies_and_their_jackknife_are_those_of_the_rows() -> None:
    fitted, g, h, block = made()
    result = Gradients.of(fitted, g, h, block).energies(fitted.bases)
    unit = g / g.norm(dim=1, keepdim=True)
    for i, basis in enumerate(fitted.bases):
        for kind, rows in enumerate((g.numpy(), unit.numpy())):
            assert float(result.value[kind, i]) == pytest.approx(oracle.energy(rows, basis.q.numpy()), rel=1e-5)
            without = oracle.energy_without(rows, basis.q.numpy(), block.numpy())
            assert result.without[kind, :, i].tolist() == pytest.approx(without, rel=1e-5)
            spread = np.sqrt(7 / 8 * np.square(np.array(without) - np.mean(without)).sum())
            assert result.error(kind, i) == pytest.approx(spread, rel=1e-3)


def test_energy_error_bars_cover_the_truth() -> None:
    """Gradients of one document share a direction: over 100 repetitions t-intervals hold the true energy."""
    d, documents, hits = 12, 32, 0
    basis = Basis(torch.eye(d, dtype=torch.float64)[:, :3], "mine", 3, 3)
    fitted = fit_site_bases(cloud(30, 200, d), ["pca"], [3], clusters=0)
    for seed in range(100):
        shared = normal(seed, documents, d).repeat_interleave(4, 0)
        g = shared + 0.5 * normal(seed + 500, 4 * documents, d)
        result = Gradients.of(fitted, g, g, torch.arange(4 * documents) // 16).energies([basis])
        error = result.error(0, 0)
        assert error is not None
        hits += abs(float(result.value[0, 0]) - 0.25) < 2.365 * error
    assert 87 <= hits <= 100


def test_the_variance_along_axes_is_that_of_the_test_tokens() -> None:
    fitted, g, h, block = made()
    result = Gradients.of(fitted, g, h, block).variance
    assert torch.allclose(result, (h @ fitted.axes).var(0), rtol=1e-4)


def test_the_energy_of_a_stratum_is_that_of_its_tokens() -> None:
    fitted, g, h, block = made()
    strata = (torch.arange(240)[:, None] % 3 == torch.arange(2)).float()
    sums = Gradients.of(fitted, g, h, block, strata=strata)
    unit = g / g.norm(dim=1, keepdim=True)
    for s in range(2):
        for kind, rows in enumerate((g, unit)):
            result = sums.strata[kind, :, s].sum(0) / sums.strata_size[kind, :, s].sum()
            exact = [oracle.energy(rows[s::3].numpy(), basis.q.numpy()) for basis in fitted.bases]
            assert result.tolist() == pytest.approx(exact, rel=1e-4)
