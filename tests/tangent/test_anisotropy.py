"""Anisotropy with and without a basis, against explicit projections."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from anisoscope.metrics.isotropy import ZETA
from anisoscope.tangent import energy, orthonormal
from anisoscope.tangent.anisotropy import isoscore_star, removal_controls, removal_gains, split
from tests.oracles import tangent as oracle
from tests.tangent_rows import falling, normal


def test_removal_gains_are_those_of_explicit_projections() -> None:
    c = falling(14, 1.3)
    bases = [orthonormal(normal(seed, 14, r), "mine") for seed, r in ((62, 2), (63, 5))]
    before = oracle.isoscore_star(c.numpy(), ZETA)
    assert isoscore_star(c) == pytest.approx(before, rel=1e-9)
    gains = removal_gains(c, bases)
    for i, basis in enumerate(bases):
        for at, reduced in enumerate((False, True)):
            after = oracle.isoscore_star(c.numpy(), ZETA, basis.q.numpy(), reduced=reduced)
            assert float(gains[i, at]) == pytest.approx(after - before, rel=1e-8)


def test_removing_from_a_sphere_reaches_the_ambient_ceiling() -> None:
    basis = orthonormal(normal(64, 10, 3), "mine")
    ambient, reduced = removal_gains(torch.eye(10), [basis])[0].tolist()
    assert ambient == pytest.approx((10 - 3 - 1) / 9 - 1)
    assert reduced == pytest.approx(0, abs=1e-12)


def test_the_split_of_the_squared_covariance_is_exact() -> None:
    c, basis = falling(14, 1.3), orthonormal(normal(65, 14, 4), "mine")
    p = (basis.q @ basis.q.T).numpy()
    n, m = np.eye(14) - p, c.numpy()
    whole = np.square(m).sum()
    result = split(c, basis)
    assert result.tangent == pytest.approx(np.square(p @ m @ p).sum() / whole)
    assert result.mixed == pytest.approx(2 * np.square(p @ m @ n).sum() / whole)
    assert result.normal == pytest.approx(np.square(n @ m @ n).sum() / whole)


@pytest.mark.parametrize("where", ["leading", "random", "last"])
def test_controls_of_equal_energy_have_equal_energy(where: str) -> None:
    c = falling(30, 1.0)
    axes = torch.linalg.eigh(c)[1]
    start = {"leading": axes[:, -4:], "random": torch.zeros(30, 4), "last": axes[:, :4]}[where]
    basis = orthonormal(start + 0.2 * normal(66, 30, 4), "mine")
    (controls,) = removal_controls(c, [basis])
    assert controls["equal_energy"].energy == pytest.approx(energy(c, basis), rel=1e-3)
    expected = (1 - energy(c, basis)) * 4 / 26
    assert controls["normal_control"].energy == pytest.approx(expected, rel=0.5)


def test_a_control_removes_what_an_explicit_subspace_removes() -> None:
    """Many random normal subspaces taken out one by one agree with the closed traces."""
    c, basis = falling(30, 1.0), orthonormal(normal(67, 30, 3), "mine")
    closed = [removal_controls(c, [basis], seed=s)[0]["normal_control"].ambient for s in range(40)]
    gains = []
    for seed in range(200):
        z = normal(2000 + seed, 30, 3)
        gains.append(float(removal_gains(c, [orthonormal(z - basis.q @ (basis.q.T @ z), "normal")])[0, 0]))
    assert np.mean(closed) == pytest.approx(np.mean(gains), abs=4 * np.std(gains) / np.sqrt(100))
