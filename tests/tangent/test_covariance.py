"""Nulls of covariance."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from anisoscope.tangent.basis import Basis
from anisoscope.tangent.covariance import matched_covariance, next_band, transfer_slope, variance_matched
from anisoscope.tangent.site_bases import fit_site_bases
from tests.oracles import tangent as oracle
from tests.tangent_rows import cloud, falling, normal


def test_the_transfer_slope_is_the_power_of_the_variance() -> None:
    variance = torch.arange(1, 60, dtype=torch.float64) ** -1.5
    for power in (0.0, 0.5, 1.0):
        noisy = variance**power * torch.exp(0.1 * normal(47, 59))
        result = transfer_slope(noisy, variance)
        assert result.beta == pytest.approx(power, abs=0.05)
        assert (result.p <= 0.002) == (power > 0)


def test_variance_matched_subspaces_are_those_of_the_leading_axes() -> None:
    """A basis inside the top 12 axes: the level is the energy of random subspaces of as many axes, drawn for real."""
    fitted = fit_site_bases(cloud(48, 2000, 30, power=0.3), ["pca"], [3], clusters=0)
    second, draw = falling(30), np.random.default_rng(0)
    basis = Basis(fitted.axes[:, :12] @ torch.linalg.qr(normal(49, 12, 3))[0], "mine", 3, 3)
    (level,) = variance_matched(second, [basis], fitted)
    m = int((level.note or "").split()[1])
    root = np.linalg.cholesky(second.numpy())
    top = fitted.axes[:, :m].numpy()
    drawn = [oracle.energy(root.T, top @ oracle.random_subspace(m, 3, draw)) for _ in range(2000)]
    assert level.level == pytest.approx(np.mean(drawn), rel=0.02)
    captured = float((fitted.axes.T @ basis.q).square().sum(1) @ fitted.variance)
    assert 3 / m * float(fitted.variance[:m].sum()) == pytest.approx(captured, rel=0.1)
    (level,) = variance_matched(second, fitted.bases, fitted)
    assert level.p is None


def test_reference_bases_have_the_energies_that_their_names_promise() -> None:
    fitted = fit_site_bases(cloud(50, 400, 16), ["pca"], [3], clusters=0)
    band = next_band(fitted, fitted.bases[0])
    assert band is not None
    assert torch.equal(band.q, fitted.axes[:, 3:6])
    assert next_band(fitted, fitted.bases[0].first(3)) is not None
    (level,) = matched_covariance(falling(16), fitted.bases, fitted)
    assert level.p is None
    assert 0 < (level.level or 0.0) < 1
