"""Semi-NMF against known parts and against slow updates."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from anisoscope.errors import InputError
from anisoscope.tangent import factorise, orthonormal
from anisoscope.tangent.semi_nmf import _SLOW, ROUNDS, _solve
from tests.oracles import tangent as oracle
from tests.tangent_rows import cloud, overlap


def parts(seed: int, n: int = 600, d: int = 40, k: int = 5) -> tuple[Tensor, Tensor]:
    """Rows that are sparse non-negative mixtures of k concepts."""
    draw = torch.Generator().manual_seed(seed)
    loadings = torch.rand(n, k, generator=draw) * (torch.rand(n, k, generator=draw) < 0.4)
    concepts = torch.randn(k, d, generator=draw)
    return loadings @ concepts + 0.01 * torch.randn(n, d, generator=draw), concepts


def test_semi_nmf_loadings_are_non_negative_and_the_objective_never_rises() -> None:
    x = cloud(7, n=500, d=30).float()
    for compress in (True, False):
        result = factorise(x, 6, compress=compress)
        assert float(result.loadings.min()) >= 0
        assert all(b <= a for a, b in zip(result.trace, result.trace[1:], strict=False))
        left = x.double() - result.loadings.double() @ result.concepts.double()
        # the factors are rounded to float32: |error² − trace| ≤ 2 ‖left‖ ‖Z‖ ‖D‖ 2^-24 / ‖X‖², here under 1e-5
        assert float(left.norm() / x.double().norm()) == pytest.approx(result.error, rel=1e-5)


def test_the_objective_is_that_of_the_best_concepts_if_loadings_are_nearly_dependent() -> None:
    x = cloud(7, n=500, d=30)
    loadings = torch.rand(500, 6, generator=torch.Generator().manual_seed(1))
    loadings[:, 1] = loadings[:, 0] + 0.001 * loadings[:, 1]  # condition about 6,000
    z, size = loadings.double(), float(x.square().sum())
    concepts, objective = _solve(loadings, x, size, size)
    left = (x - z @ torch.linalg.lstsq(z, x).solution).square().sum() / size
    # float64 products err by at most condition² · 2^-53 = 4e-9, float32 ones by condition² · 2^-24 (seen: 4e-3)
    assert objective == pytest.approx(float(left), rel=1e-4)
    assert concepts.dtype == torch.float32


def test_semi_nmf_finds_the_parts_that_rows_are_made_of() -> None:
    x, concepts = parts(8)
    result = factorise(x, 5, rounds=60)
    assert result.error < 0.05
    assert overlap(orthonormal(result.concepts.T, "fitted").q, orthonormal(concepts.T, "true").q) > 0.99
    assert 3 < result.effective_rank <= 5


def test_semi_nmf_lies_between_the_svds_that_bound_it() -> None:
    x = cloud(9, n=500, d=30).float()
    values = torch.linalg.svdvals(x).square()
    result = factorise(x, 6, rounds=200)
    assert float(values[6:].sum() / values.sum()) <= result.trace[-1]
    assert result.trace[-1] <= 1.1 * float(values[5:].sum() / values.sum())


def test_semi_nmf_reaches_at_least_what_multiplicative_updates_do() -> None:
    x, _ = parts(11, n=300)
    falling_rows = cloud(12, n=300, d=30).float()
    for rows, rank in ((x, 5), (falling_rows, 6)):
        slow = oracle.semi_nmf_error(rows.double().numpy(), rank, 300)
        assert factorise(rows, rank, rounds=100).error <= 1.01 * slow


def test_semi_nmf_is_reproducible_and_continues_from_a_warm_start() -> None:
    x, _ = parts(10)
    one, two = factorise(x, 5, seed=3), factorise(x, 5, seed=3)
    assert torch.equal(one.concepts, two.concepts)
    again = factorise(x, 5, start=one.concepts)
    assert again.trace[0] < 1.2 * one.trace[-1]
    # either stops when a round gains less than _SLOW of what is left: ROUNDS · _SLOW bounds what it leaves behind
    assert again.trace[-1] <= (1 + ROUNDS * _SLOW) * one.trace[-1]


def test_semi_nmf_rejects_rows_that_it_cannot_factorise() -> None:
    with pytest.raises(InputError, match="expected 1 to 4"):
        factorise(torch.zeros(4, 9), 5)
    with pytest.raises(InputError, match="NaN"):
        factorise(torch.full((9, 4), torch.nan), 2)
