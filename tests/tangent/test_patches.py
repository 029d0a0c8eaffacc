"""Patches and the local test."""

from __future__ import annotations

import pytest
import torch

from anisoscope.tangent.gradients import Gradients
from anisoscope.tangent.patches import captured_by_patch, fit_patches, local_test
from tests.oracles import tangent as oracle
from tests.tangent_rows import cloud, made, normal


def test_the_energy_matrix_of_patches_is_that_of_the_rows() -> None:
    fitted, g, h, block = made()
    patches = fitted.patches
    assert patches is not None
    sums = Gradients.of(fitted, g, h, block)
    patch = patches.assign(h.float()).numpy()
    unit = g / g.norm(dim=1, keepdim=True)
    for at, rank in enumerate(fitted.ranks):
        bases = [patches.bases[k][:, :rank].double().numpy() for k in range(len(patches.centres))]
        for kind, rows in enumerate((g, unit)):
            matrix = oracle.energy_matrix(rows.numpy(), patch, bases)
            result = sums.local[kind, ..., at].sum(0) / sums.local_size[kind].sum(0)[:, None]
            assert torch.allclose(result, torch.tensor(matrix), rtol=1e-4)


def test_the_local_test_finds_a_diagonal_and_no_rows_or_columns() -> None:
    k = 8
    size = torch.full((k,), 50.0)
    uneven = torch.rand(k, 1, generator=torch.Generator().manual_seed(1)) + torch.arange(k) / 4
    noise = 0.05 * normal(51, k, k)
    assert local_test(uneven + noise, size).p > 0.05
    result = local_test(uneven + noise + torch.eye(k), size)
    assert result.p <= 0.002
    assert result.excess == pytest.approx(1 / 50, rel=0.2)
    assert result.own_patch - result.level == pytest.approx(result.excess * (k - 1) / k, rel=1e-6)


def test_patches_need_enough_rows() -> None:
    assert fit_patches(cloud(52, 20, 8), 6) is None
    patches = fit_patches(torch.cat([cloud(53, 60, 8), cloud(54, 60, 8) + 10]), 2, clusters=2)
    assert patches is not None
    assert patches.assign(cloud(53, 60, 8).float()).unique().numel() == 1
    captured = captured_by_patch(normal(55, 5, 8).float(), patches, [1, 2])
    assert captured.shape == (5, 2, 2)
    assert bool((captured[..., 1] >= captured[..., 0]).all())
