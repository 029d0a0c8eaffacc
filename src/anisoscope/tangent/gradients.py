"""Gradients at a site as sums that add: by block of documents, inside every basis of a frame."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from anisoscope.stats.arith import double, full_precision, gram, plain
from anisoscope.tangent.basis import Basis
from anisoscope.tangent.frame import Frame
from anisoscope.tangent.local import captured_by_patch

ROWS = ("plain", "unit")  # gradients as they are, and each scaled to length one so that no token can decide alone


@dataclass(frozen=True)
class Gradients:
    """Sums over gradients g paired with activations h. The first axis of `captured`, … is the block of documents.

    Where an axis has two entries, they are for gradients as they are and for unit rows. `of(a) + of(b) = of(a, b)`.
    """

    count: Tensor  # (blocks,) rows
    size: Tensor  # (2, blocks) Σ‖g‖²
    second: Tensor  # (2, d, d) Σ ggᵀ
    total: Tensor  # (d,) Σ g
    captured: Tensor  # (2, blocks, bases) Σ‖gQ‖²
    along: Tensor  # (2, blocks, d) Σ (g·v_j)², v_j the principal axes of the activations
    spread: Tensor  # (2, d) Σ h·v_j and Σ (h·v_j)², h less the fit mean: the variance of the test tokens along v_j
    local: Tensor  # (2, blocks, K, K, ranks) Σ‖gQ_k‖² over gradients of cluster j
    local_size: Tensor  # (2, blocks, K)
    strata: Tensor  # (2, blocks, strata, bases) Σ‖gQ‖² over the tokens of a stratum
    strata_size: Tensor  # (2, blocks, strata)

    @classmethod
    def of(
        cls,
        frame: Frame,
        g: Tensor,
        h: Tensor,
        block: Tensor,
        *,
        blocks: int,
        strata: Tensor | None = None,
        bases: Sequence[Basis] | None = None,
    ) -> Gradients:
        """Sums over rows g, h (n, d) in blocks (n,); `strata` (n, s) marks the strata a token belongs to."""
        bases = all_bases(frame) if bases is None else bases
        with full_precision(g.device):
            g, h = plain(g), plain(h).to(g.dtype)
            norm = torch.linalg.vector_norm(g, dim=1)  # (n,)
            unit = torch.where(norm > 0, 1 / norm.clamp(min=1e-30), 0.0)
            weight = torch.stack((torch.ones_like(norm), unit.square()))  # (2, n): squares of unit rows, w·square
            member = torch.nn.functional.one_hot(block.to(g.device), blocks).to(g.dtype)  # (n, blocks)
            member = member.T * weight[:, None]  # (2, blocks, n)
            square = norm.square()
            inside = _inside(g, bases)  # (n, bases)
            axes = frame.axes.to(g)
            local, local_size = _local(frame, g, h, member, square)
            mark = torch.zeros(len(g), 0) if strata is None else strata
            marked = member[:, :, None] * mark.T.to(g)  # (2, blocks, strata, n)
            y = (h - frame.mean.to(g)) @ axes  # (n, d)
            return cls(
                count=torch.bincount(block.cpu(), minlength=blocks),
                size=_sums(member @ square),
                second=_sums(torch.stack((gram(g), gram(g * unit[:, None])))),
                total=_sums(g.sum(0)),
                captured=_sums(member @ inside),
                along=_sums(member @ (g @ axes).square()),
                spread=_sums(torch.stack((y.sum(0), y.square().sum(0)))),
                local=local,
                local_size=local_size,
                strata=_sums(marked @ inside),
                strata_size=_sums(marked @ square),
            )

    def __add__(self, other: Gradients) -> Gradients:
        return Gradients(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    @property
    def n(self) -> int:
        return int(self.count.sum())

    @property
    def variance(self) -> Tensor:
        """Variance of the test tokens' activations along the axes that were fitted on other tokens, (d,)."""
        n = max(2, self.n)
        return ((self.spread[1] - self.spread[0].square() / n) / (n - 1)).clamp(min=0)


def all_bases(frame: Frame) -> list[Basis]:
    """The frame's own bases, then those fitted elsewhere, in the order in which sums are kept."""
    return [*frame.bases, *(basis for group in frame.others.values() for basis in group)]


def _inside(g: Tensor, bases: Sequence[Basis]) -> Tensor:
    """‖gQ‖² for each basis, (n, bases)."""
    every = (g @ torch.cat([basis.q for basis in bases], 1).to(g)).square()  # (n, Σ effective)
    return torch.stack([part.sum(1) for part in every.split([basis.effective for basis in bases], 1)], 1)


def _local(frame: Frame, g: Tensor, h: Tensor, member: Tensor, square: Tensor) -> tuple[Tensor, Tensor]:
    if frame.patches is None:
        return torch.zeros(*member.shape[:2], 0, 0, 0), torch.zeros(*member.shape[:2], 0)
    k = len(frame.patches.centres)
    cluster = torch.nn.functional.one_hot(frame.patches.assign(h), k).to(g.dtype)  # (n, K)
    inside = captured_by_patch(g, frame.patches, frame.ranks)  # (n, K, ranks)
    own = member[:, :, None] * cluster.T  # (2, blocks, K, n)
    sums = own @ inside.flatten(1)  # (2, blocks, K, K · ranks)
    return _sums(sums.unflatten(-1, inside.shape[1:])), _sums(own @ square)


def _sums(x: Tensor) -> Tensor:
    return double(x).cpu()
