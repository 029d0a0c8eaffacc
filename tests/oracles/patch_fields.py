"""Simulated worlds of the local tangent test: patches that are unrelated, or alike in a chain."""

from __future__ import annotations

import math
from statistics import fmean

import torch
from torch import Tensor
from torch.nn import functional

from anisoscope.tangent.patches import local_test

DIM, RANK, TOKENS = 32, 4, 96  # dimensions, rank of a basis, tokens of a patch


def energy_matrices(
    worlds: int, patches: int, *, turn: float | None = None, share: float = 0.0, seed: int = 0
) -> Tensor:
    """Energy of every patch's gradients in every patch's basis, relative to their size, (worlds, patches, patches).

    Gradients have heavy-tailed lengths and a decaying spectrum. Bases are fitted with some error.

    Args:
        worlds: Number of worlds.
        patches: Number of patches.
        turn: None: the bases of the patches are independent, and all patches share one law of gradients. Otherwise the
            patches are a chain along which bases and gradients turn slowly, independently of each other, by about this
            angle in all.
        share: Share of the squared length of a gradient that lies in the true basis of its own patch.
        seed: Seed.
    """
    draw = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=draw)

    def frames() -> Tensor:
        """Orthonormal axes by world and patch, (worlds, patches, DIM, DIM)."""
        start = torch.linalg.qr(normal(worlds, DIM, DIM))[0][:, None]
        if turn is None:
            return start.expand(worlds, patches, DIM, DIM)
        skew = normal(worlds, 1, DIM, DIM)
        skew = turn * (skew - skew.mT) / math.sqrt(2 * DIM)
        return torch.linalg.matrix_exp(skew * torch.linspace(0, 1, patches)[:, None, None]) @ start

    axes = torch.linalg.qr(normal(worlds, patches, DIM, DIM))[0] if turn is None else frames()
    tangent = axes[..., :RANK]  # (worlds, patches, DIM, RANK)
    basis = torch.linalg.qr(tangent + 0.08 * normal(*tangent.shape))[0]
    root = frames() * torch.arange(1, DIM + 1) ** -0.7
    rows = functional.normalize(normal(worlds, patches, TOKENS, DIM) @ root.mT, dim=-1)
    own = functional.normalize(normal(worlds, patches, TOKENS, RANK) @ tangent.mT, dim=-1)
    rows = math.sqrt(1 - share) * rows + math.sqrt(share) * own
    rows = rows * torch.exp(0.8 * normal(worlds, patches, TOKENS, 1))
    second = rows.mT @ rows  # (worlds, patches, DIM, DIM)
    captured = torch.einsum("wkdr,wjde,wker->wjk", basis, second, basis)
    return captured / second.diagonal(dim1=2, dim2=3).sum(2)[..., None]


def rejections(worlds: int, patches: int, *, turn: float | None = None, share: float = 0.0) -> float:
    """The share of worlds in which the local test rejects at the 5 % level."""
    size = torch.ones(patches)
    matrices = energy_matrices(worlds, patches, turn=turn, share=share)
    return fmean(local_test(m, size, draws=199, seed=number).p <= 0.05 for number, m in enumerate(matrices))
