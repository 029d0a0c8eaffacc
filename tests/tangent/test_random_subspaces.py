"""The distribution of the energy in random subspaces."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from anisoscope.errors import InputError
from anisoscope.tangent import energy, haar, orthonormal
from anisoscope.tangent.random_subspaces import normal_control
from tests.oracles import tangent as oracle
from tests.tangent_rows import falling, normal


@pytest.mark.parametrize("rank", [1, 3, 8])
def test_the_law_has_the_moments_and_the_tail_of_random_subspaces(rank: int) -> None:
    second, draw = falling(12), np.random.default_rng(rank)
    root = np.linalg.cholesky(second.numpy())
    drawn = np.array([oracle.energy(root.T, oracle.random_subspace(12, rank, draw)) for _ in range(4000)])
    law = haar(second, rank)
    assert law.mean == pytest.approx(rank / 12)
    assert drawn.mean() == pytest.approx(law.mean, abs=4 * np.sqrt(law.variance / 4000))
    assert drawn.var() == pytest.approx(law.variance, rel=0.1)
    third = np.mean((drawn - law.mean) ** 3) / law.variance**1.5
    assert third == pytest.approx(law.skew, abs=0.25)
    for tail in (0.2, 0.05, 0.01):
        assert 0.7 * tail <= law.p_value(float(np.quantile(drawn, 1 - tail))) <= 2.5 * tail


def test_on_one_line_the_beta_law_is_exact() -> None:
    from scipy.stats import beta

    law = haar(torch.diag(torch.tensor([1.0] + [0.0] * 9)), 2)
    assert (law.alpha, law.beta) == pytest.approx((1.0, 4.0))
    for at in (0.1, 0.5, 0.9):
        assert law.p_value(at) == pytest.approx(beta(1, 4).sf(at), rel=1e-6)


def test_isotropic_gradients_have_a_p_value_of_one() -> None:
    law = haar(torch.eye(9), 3)
    assert law.p_value(1 / 3) == 1.0
    with pytest.raises(InputError, match="nothing to vary"):
        haar(torch.eye(9), 9)


def test_the_normal_control_is_a_transform_of_the_energy() -> None:
    second, basis = falling(30), orthonormal(normal(41, 30, 3), "mine")
    levels = [normal_control(second, [basis], None, seed)[0].level or 0.0 for seed in range(200)]  # type: ignore[arg-type]
    expected = (1 - energy(second, basis)) * 3 / 27
    assert np.mean(levels) == pytest.approx(expected, rel=0.02)


def test_the_published_control_is_significant_far_too_often_at_large_ranks() -> None:
    """Random bases know nothing of the gradients, yet the published p of 1/21 comes up in a twelfth to half of them."""
    second = falling(24, 0.8)
    rates = []
    for rank in (2, 12):
        bases = [orthonormal(normal(3000 + seed, 24, rank), "mine") for seed in range(300)]
        result = [normal_control(second, [b], None, seed)[0].p or 1.0 for seed, b in enumerate(bases)]  # type: ignore[arg-type]
        rates.append(np.mean(np.array(result) <= 0.05))
    assert rates[0] > 0.05
    assert rates[1] > 0.35


def test_the_published_control_at_half_of_the_dimensions_is_what_the_basis_leaves() -> None:
    """There the normal space is filled by every draw. The error is eps·κ² ≈ 2e-16·1e10 for the worst draw."""
    second = falling(24, 0.8)
    for seed in range(300):
        basis = orthonormal(normal(3000 + seed, 24, 12), "mine")
        (control,) = normal_control(second, [basis], None, seed)  # type: ignore[arg-type]
        assert control.level == pytest.approx(1 - energy(second, basis), abs=1e-5)


def test_there_is_no_normal_control_without_enough_normal_dimensions() -> None:
    (level,) = normal_control(falling(6), [orthonormal(normal(42, 6, 4), "mine")], None, 0)  # type: ignore[arg-type]
    assert level.level is None
    assert "no 4 dimensions" in (level.note or "")
