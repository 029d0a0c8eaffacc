"""Gradients of weights, and the null of shuffled errors."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import binom

from anisoscope.tangent import PROXIES, orthonormal
from anisoscope.tangent.proxies import svd
from anisoscope.tangent.weight_gradients import WeightGradients, error_shuffle
from tests.oracles import tangent as oracle
from tests.tangent_rows import cloud, normal
from tests.tangent_worlds import RANK, world


def test_a_weights_gradient_is_the_sum_over_tokens() -> None:
    x, delta, block = normal(31, 40, 6), normal(32, 40, 5), torch.arange(40) // 5
    basis = orthonormal(normal(33, 6, 2), "mine")
    exact = oracle.weight_gradient(x.numpy(), delta.numpy())
    result = WeightGradients.weight_in(x, delta, block)
    assert torch.allclose(result.parts.sum(0).double(), torch.tensor(exact), atol=1e-4)
    energies = result.energies([basis])
    assert float(energies.value[0, 0]) == pytest.approx(oracle.energy(exact, basis.q.numpy()), rel=1e-4)
    left = oracle.weight_gradient(x[5:].numpy(), delta[5:].numpy())
    assert float(energies.without[0, 0, 0]) == pytest.approx(oracle.energy(left, basis.q.numpy()), rel=1e-4)
    out = WeightGradients.weight_out(x, delta, block)
    assert torch.allclose(out.parts.sum(0), result.parts.sum(0).T, atol=1e-5)


def test_an_embeddings_gradient_sums_over_a_types_occurrences() -> None:
    g, token = normal(34, 30, 4), torch.arange(30) % 7
    result = WeightGradients.embedding(g, token, torch.arange(30) // 15)
    for t in range(7):
        assert torch.allclose(result.parts.sum(0)[t].double(), g[token == t].sum(0), atol=1e-5)


def test_shuffled_errors_keep_the_energy_of_the_inputs_and_lose_the_pairing() -> None:
    """Noise errors: a large energy by construction, and no p below chance. Errors that know the input: result."""
    x = cloud(56, 600, 24, power=1.0) * 3
    basis = PROXIES["svd"](x[:300], 4)
    noise = normal(57, 300, 10)
    energies = WeightGradients.weight_in(x[300:], noise, torch.arange(300) // 40).energies([basis])
    (level,) = error_shuffle(x[300:], noise, [basis], seed=9)
    assert float(energies.value[0, 0]) > 0.8 > 4 * 4 / 24
    assert level.level == pytest.approx(float(energies.value[0, 0]), abs=0.1)
    assert (level.p or 0.0) > 0.05
    knows = x[300:] @ basis.q @ normal(58, 4, 10)
    assert (error_shuffle(x[300:], knows, [basis], seed=9)[0].p or 1.0) <= 0.02


def test_the_shuffle_is_that_of_explicit_weight_gradients() -> None:
    x, delta = normal(59, 12, 5), normal(60, 12, 3)
    basis, draw = orthonormal(normal(61, 5, 2), "mine"), np.random.default_rng(1)
    exact = [
        oracle.energy(oracle.weight_gradient(x.numpy(), delta.numpy()[draw.permutation(12)]), basis.q.numpy())
        for _ in range(2000)
    ]
    (level,) = error_shuffle(x, delta, [basis], draws=2000)
    assert level.level == pytest.approx(np.mean(exact), abs=4 * np.std(exact) / np.sqrt(1000))


def test_weight_gradients_of_noise_are_not_significant() -> None:
    """Noise errors through inputs with a strong mean: energy far above chance, and the shuffle calls it nothing."""
    calls = 0
    for seed in range(20):
        made = world(50_000 + seed)
        x = made.test[:256] + 4 * made.fit.mean(0)
        basis = svd(made.fit + 4 * made.fit.mean(0), RANK)
        (level,) = error_shuffle(x, made.normal(256, 8), [basis], seed=seed)
        assert (level.level or 0.0) > 3 * RANK / 24
        calls += (level.p or 0.0) <= 0.05
    assert calls <= int(binom.ppf(0.999, 20, 0.05))
