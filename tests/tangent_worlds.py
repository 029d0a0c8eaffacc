"""Worlds in which the tangent test must give a known answer: activations, and gradients with or without a relation."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from anisoscope.records import Record
from anisoscope.tangent.basis import Basis, orthonormal
from anisoscope.tangent.gradient_case import GradientCase
from anisoscope.tangent.gradient_records import tangent_records, with_q
from anisoscope.tangent.gradients import Gradients
from anisoscope.tangent.site_bases import SiteBases, fit_site_bases

N, D, PATCHES, RANK = 640, 24, 8, 3
DECIDING = ("orientation", "coordinates", "variance_matched", "transfer_slope", "local_test", "error_shuffle")


@dataclass(frozen=True)
class World:
    """Fit and test activations in patches, each with a tangent space, and a source of random numbers."""

    fit: Tensor  # (N, D)
    test: Tensor  # (N, D)
    patch: Tensor  # (N,) of the test tokens
    tangents: Tensor  # (PATCHES, D, RANK)
    draw: torch.Generator

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self.draw)

    def covariance_gradients(self) -> Tensor:
        """Gradients with the covariance of all activations, paired with tokens at random."""
        root = torch.linalg.cholesky(torch.cov(self.fit.T) + 1e-5 * torch.eye(D))
        return self.normal(N, D) @ root.T

    def unrelated_gradients(self) -> Tensor:
        """Anisotropic gradients whose orientation knows nothing of the activations."""
        axes = torch.linalg.qr(self.normal(D, D))[0]
        return self.normal(N, D) * torch.arange(1, D + 1) ** -0.5 @ axes.T

    def local_gradients(self, share: float) -> Tensor:
        """Covariance gradients with this share of squared length in the token's own tangent space."""
        common = torch.nn.functional.normalize(self.covariance_gradients(), dim=1)
        own = torch.einsum("nr,ndr->nd", self.normal(N, RANK), self.tangents[self.patch])
        return (1 - share) ** 0.5 * common + share**0.5 * torch.nn.functional.normalize(own, dim=1)


def world(seed: int) -> World:
    draw = torch.Generator().manual_seed(seed)
    scale = torch.arange(1, D + 1) ** -0.7
    axes = torch.linalg.qr(torch.randn(D, D, generator=draw))[0]
    patch = torch.randint(PATCHES, (2 * N,), generator=draw)
    centres = 3 * torch.randn(PATCHES, D, generator=draw) * scale
    tangents = torch.linalg.qr(scale[:, None] * torch.randn(PATCHES, D, RANK, generator=draw))[0]  # (PATCHES, D, RANK)
    along = torch.einsum("nr,ndr->nd", torch.randn(2 * N, RANK, generator=draw), tangents[patch])
    x = (centres[patch] + along + 0.3 * torch.randn(2 * N, D, generator=draw) * scale) @ axes.T
    return World(x[:N], x[N:], patch[N:], axes @ tangents, draw)


def broad(x: Tensor, rank: int, *, seed: int = 0, start: Basis | None = None) -> Basis:
    """A proxy that is no PCA: a subspace of the leading axes that depends on the rows alone."""
    axes = torch.linalg.svd(x - x.mean(0), full_matrices=False)[2][: 3 * rank].T  # (D, 3·rank)
    draw = torch.Generator().manual_seed(77)
    return orthonormal(axes @ torch.randn(3 * rank, rank, generator=draw), "broad", rank)


def examined(made: World, gradients: Tensor, *, seed: int = 0) -> list[Record]:
    """All records of the test of these gradients against the world's activations."""
    bases = fitted(made, seed)
    block = torch.arange(N) * 8 // N
    sums = Gradients.of(bases, gradients, made.test, block)
    return with_q(tangent_records(GradientCase("grad.resid.0", "hidden", bases, sums, seed=seed)))


def fitted(made: World, seed: int = 0) -> SiteBases:
    return fit_site_bases(made.fit, ["pca", broad], [RANK], clusters=PATCHES, seed=seed)
