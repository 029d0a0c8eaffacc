"""Patches and the local test."""

from __future__ import annotations

import pytest
import torch

from anisoscope.tangent.gradients import Gradients
from anisoscope.tangent.patches import captured_by_patch, fit_patches, likeness, local_test
from tests.oracles import tangent as oracle
from tests.oracles.patch_fields import rejections
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


# A share of 300 that is 5 % in truth exceeds 10 % with a probability of 1e-4. Permuted labels alone give 16 %.
@pytest.mark.parametrize("turn", [None, 4.0])
def test_the_local_test_is_calibrated_where_neighbouring_patches_are_alike(turn: float | None) -> None:
    assert rejections(300, 16, turn=turn) <= 0.1


def test_the_local_test_keeps_its_power() -> None:
    assert rejections(100, 8, share=0.05) >= 0.9  # 98 % of 1,000
    assert rejections(100, 16, share=0.1, turn=4.0) >= 0.9


@pytest.mark.slow
@pytest.mark.parametrize("patches", [4, 8, 16])
@pytest.mark.parametrize("turn", [None, 0.7, 1.5, 3.0, 6.0])
def test_the_local_test_rejects_at_most_its_level(patches: int, turn: float | None) -> None:
    # 1,000 worlds: a deviation of 0.0069 at 5 %, so 0.07 leaves three of them
    assert rejections(1000, patches, turn=turn) <= 0.07


def test_only_alike_patches_widen_the_null() -> None:
    k = 8
    noise = normal(60, k, k)
    alone = noise - noise.mean(0) - noise.mean(1, keepdim=True) + noise.mean()
    assert likeness(alone) < 1.6
    assert likeness(alone + 10 * (torch.eye(k) - 1 / k)) < 1.6  # gradients that follow their own patch
    chain = torch.linspace(-1, 1, k)
    assert likeness(torch.outer(chain, chain)) > 4  # at most 8: rows and columns all alike
    assert likeness(torch.zeros(k, k)) == 1
