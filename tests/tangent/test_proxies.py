"""Proxies against a plain SVD."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from anisoscope.errors import InputError
from anisoscope.tangent import PROXIES, Tangent, fit_bases, orthonormal
from anisoscope.tangent.basis import Basis
from tests.oracles import tangent as oracle
from tests.tangent_rows import cloud, normal, overlap


def test_pca_spans_the_leading_principal_axes() -> None:
    x = cloud(0)
    for basis in fit_bases(x, ["pca"], [2, 5]):
        assert overlap(basis.q, oracle.principal_subspace(x.numpy(), basis.rank)) == pytest.approx(1, abs=1e-9)
    assert overlap(PROXIES["pca"](x, 5).q, oracle.principal_subspace(x.numpy(), 5)) == pytest.approx(1, abs=1e-9)


def test_svd_keeps_the_mean_that_pca_removes() -> None:
    x = cloud(1) + 5 * torch.eye(20, dtype=torch.float64)[3]
    assert float(PROXIES["svd"](x, 1).q[3].abs()) > 0.99
    assert float(PROXIES["pca"](x, 1).q[3].abs()) < 0.9
    assert float(PROXIES["mean"](x).q[3].abs()) > 0.99


def test_a_smaller_rank_is_the_beginning_of_a_larger_one() -> None:
    small, large = fit_bases(cloud(2), ["pca"], [3, 6])
    assert torch.equal(small.q, large.q[:, :3])
    assert (small.rank, small.effective) == (3, 3)


def test_a_user_function_can_be_a_proxy() -> None:
    def first_coordinates(x: Tensor, rank: int, *, seed: int = 0, start: Basis | None = None) -> Basis:
        return orthonormal(torch.eye(x.shape[1])[:, :rank], "first", rank)

    (basis,) = fit_bases(cloud(3), [first_coordinates], [4])
    assert (basis.proxy, basis.effective) == ("first", 4)
    assert Tangent(proxies=[first_coordinates]).proxies == [first_coordinates]


def test_a_proxy_that_is_not_orthonormal_is_rejected() -> None:
    def skewed(x: Tensor, rank: int, *, seed: int = 0, start: Basis | None = None) -> Basis:
        return Basis(torch.ones(x.shape[1], rank, dtype=torch.float64), "skewed", rank, rank)

    with pytest.raises(InputError, match="not orthonormal"):
        fit_bases(cloud(4), [skewed], [2])


def test_a_basis_has_no_more_directions_than_its_rows() -> None:
    thin = torch.zeros(50, 6, dtype=torch.float64)
    thin[:, :2] = normal(5, 50, 2)
    assert orthonormal(thin.T[:, :4], "rows").effective == 2
    assert [b.effective for b in fit_bases(thin, ["pca"], [1, 4])] == [1, 2]
    assert PROXIES["svd"](thin, 4).effective == 2
