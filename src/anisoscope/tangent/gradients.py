"""Gradients at a site as sums that add, by block of documents; they can be compared with any basis afterwards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from anisoscope.errors import InputError
from anisoscope.stats.arithmetic import double, full_precision, gram, plain
from anisoscope.tangent.basis import Basis
from anisoscope.tangent.energy import Energies, shares
from anisoscope.tangent.patches import captured_by_patch
from anisoscope.tangent.site_bases import SiteBases

BLOCKS = 8
ROWS = ("plain", "unit")  # gradients as they are, and scaled to length one so that no single token decides
PLAIN, UNIT = 0, 1  # their indices in every axis of two


@dataclass(frozen=True)
class Gradients:
    """Sums over gradients g paired with activations h; `of(a) + of(b) = of(a followed by b)`.

    An axis of two holds plain and unit rows. B counts blocks of documents, K patches of the activations, R ranks,
    S strata of tokens.
    """

    count: Tensor  # (B,) rows
    second: Tensor  # (2, B, d, d) float32, Σ ggᵀ
    total: Tensor  # (2, d) Σ g
    spread: Tensor  # (2, d) Σ h·v_j and Σ (h·v_j)², h less the fit mean, v_j the principal axes
    local: Tensor  # (2, B, K, K, R) Σ‖gQ_k‖² over the gradients of patch j
    local_size: Tensor  # (2, B, K) Σ‖g‖² over the gradients of patch j
    strata: Tensor  # (2, B, S, bases) Σ‖gQ‖² over the tokens of a stratum
    strata_size: Tensor  # (2, B, S)

    @classmethod
    def of(
        cls,
        fitted: SiteBases,
        g: Tensor,
        h: Tensor,
        block: Tensor,
        *,
        blocks: int = BLOCKS,
        strata: Tensor | None = None,
    ) -> Gradients:
        """The sums of one batch.

        Args:
            fitted: The bases of the site.
            g: Gradients (n, d).
            h: Activations of the same tokens (n, d).
            block: The block of each token (n,).
            blocks: The number of blocks.
            strata: Marks (n, S) of the strata each token is in.
        """
        block = block.cpu()
        with full_precision(g.device):
            g, h = plain(g), plain(h).to(g.dtype)
            norm = torch.linalg.vector_norm(g, dim=1)  # (n,)
            unit = torch.where(norm > 0, 1 / norm.clamp(min=1e-30), 0.0)
            weight = torch.stack((torch.ones_like(norm), unit.square()))  # (2, n): of a squared length, row by row
            member = torch.nn.functional.one_hot(block.to(g.device), blocks).to(g.dtype)  # (n, B)
            member = member.T * weight[:, None]  # (2, B, n)
            y = (h - fitted.mean.to(g)) @ fitted.axes.to(g)  # (n, d)
            local, local_size = _by_patch(fitted, g, h, member, norm.square())
            marked, marked_size = _by_stratum(fitted, g, strata, member, norm.square())
            return cls(
                count=torch.bincount(block, minlength=blocks),
                second=torch.stack((_by_block(g, block, blocks), _by_block(g * unit[:, None], block, blocks))),
                total=_sums(torch.stack((g.sum(0), unit @ g))),
                spread=_sums(torch.stack((y.sum(0), y.square().sum(0)))),
                local=local,
                local_size=local_size,
                strata=marked,
                strata_size=marked_size,
            )

    def __add__(self, other: Gradients) -> Gradients:
        return Gradients(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    @property
    def n(self) -> int:
        return int(self.count.sum())

    @property
    def dim(self) -> int:
        return self.second.shape[-1]

    @property
    def pooled(self) -> Tensor:
        """GᵀG of all blocks, plain and unit, (2, d, d) float64; summed at every access."""
        whole = self.second.double().sum(1)
        if not bool(whole.isfinite().all()) or not bool((whole.diagonal(dim1=1, dim2=2).sum(1) > 0).all()):
            raise InputError("The gradients are all zero, or hold NaN or Inf. Does the loss depend on this site?")
        return whole

    @property
    def size(self) -> Tensor:
        """Σ‖g‖² of each block, (2, B) float64."""
        return self.second.diagonal(dim1=2, dim2=3).double().sum(2)

    def energies(self, bases: Sequence[Basis]) -> Energies:
        """E = Σ‖gQ‖²/Σ‖g‖² of each basis, with all blocks and without each block."""
        q = torch.cat([basis.q for basis in bases], 1).float()  # (d, Σ effective)
        each = (q * (self.second @ q)).double().sum(2)  # (2, B, Σ effective)
        parts = each.split([basis.effective for basis in bases], 2)
        captured = torch.stack([part.sum(2) for part in parts], 2)  # (2, B, bases)
        return shares(captured, self.size[:, :, None], self.count)

    def along(self, axes: Tensor) -> tuple[Tensor, Tensor]:
        """Σ (g·v)² along the columns v of `axes`: of all blocks (2, columns), of plain rows by block (B, columns)."""
        v = axes.float()
        by_block = (v * (self.second[0] @ v)).double().sum(1)  # (B, columns)
        unit = (v * (self.pooled[1].float() @ v)).double().sum(0)
        return torch.stack((by_block.sum(0), unit)), by_block

    @property
    def covariance(self) -> Tensor:
        """Covariance of the gradients, plain and unit, (2, d, d)."""
        mean = self.total / self.n
        return self.pooled / self.n - mean[:, :, None] * mean[:, None]

    @property
    def variance(self) -> Tensor:
        """Variance of the test tokens' activations along the axes that were fitted on other tokens, (d,)."""
        n = max(2, self.n)
        return ((self.spread[1] - self.spread[0].square() / n) / (n - 1)).clamp(min=0)


def _by_block(g: Tensor, block: Tensor, blocks: int) -> Tensor:
    """GᵀG of each block, (B, d, d) float32."""
    out = torch.zeros(blocks, g.shape[1], g.shape[1])
    for number in block.unique().tolist():
        rows = (block == number).nonzero()[:, 0].to(g.device)
        out[number] = gram(g[rows]).float().cpu()
    return out


def _by_patch(fitted: SiteBases, g: Tensor, h: Tensor, member: Tensor, square: Tensor) -> tuple[Tensor, Tensor]:
    if fitted.patches is None:
        return torch.zeros(*member.shape[:2], 0, 0, 0), torch.zeros(*member.shape[:2], 0)
    cluster = torch.nn.functional.one_hot(fitted.patches.assign(h), len(fitted.patches.centres)).to(g.dtype)  # (n, K)
    inside = captured_by_patch(g, fitted.patches, fitted.ranks)  # (n, K, R)
    in_patch = member[:, :, None] * cluster.T  # (2, B, K, n)
    sums = in_patch @ inside.flatten(1)  # (2, B, K, K·R)
    return _sums(sums.unflatten(-1, inside.shape[1:])), _sums(in_patch @ square)


def _by_stratum(
    fitted: SiteBases, g: Tensor, strata: Tensor | None, member: Tensor, square: Tensor
) -> tuple[Tensor, Tensor]:
    if strata is None:
        return torch.zeros(*member.shape[:2], 0, len(fitted.bases)), torch.zeros(*member.shape[:2], 0)
    q = torch.cat([basis.q for basis in fitted.bases], 1).to(g)
    parts = (g @ q).square().split([basis.effective for basis in fitted.bases], 1)
    inside = torch.stack([part.sum(1) for part in parts], 1)  # (n, bases)
    marked = member[:, :, None] * strata.T.to(g)  # (2, B, S, n)
    return _sums(marked @ inside), _sums(marked @ square)


def _sums(x: Tensor) -> Tensor:
    return double(x).cpu()
