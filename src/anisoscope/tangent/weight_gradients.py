"""Gradients of weights: of a linear map on its input side and its output side, and of an embedding table.

The gradient of a linear map is Σ δ xᵀ over tokens, with inputs x and errors δ at the outputs. Its rows lie in the span
of the inputs by construction, whatever the errors are: pure noise gives an energy near one. So on the input side only
the excess over errors shuffled across tokens is informative.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from anisoscope.errors import InputError
from anisoscope.stats.arithmetic import full_precision, plain
from anisoscope.tangent.basis import Basis
from anisoscope.tangent.energy import Energies
from anisoscope.tangent.gradients import BLOCKS
from anisoscope.tangent.null import WEIGHT_IN, NullLevel, null
from anisoscope.tangent.permutation import permutation_p

SHUFFLES = 99
_CHUNK = 1 << 23  # entries of shuffled matrices made at a time


@dataclass(frozen=True)
class WeightGradients:
    """The gradient of a weight as one sum per block, with rows in the space that is tested."""

    parts: Tensor  # (B, rows, d) float32
    count: Tensor  # (B,) tokens

    @classmethod
    def weight_in(cls, x: Tensor, delta: Tensor, block: Tensor, *, blocks: int = BLOCKS) -> WeightGradients:
        """Σ δ xᵀ from x (n, in) and δ (n, out): rows in the space of the inputs."""
        with full_precision(x.device):
            x, delta = plain(x).float(), plain(delta).float()
            parts = [delta[block == b].T @ x[block == b] for b in range(blocks)]  # (out, in) each
        return cls(torch.stack(parts).cpu(), torch.bincount(block.cpu(), minlength=blocks))

    @classmethod
    def weight_out(cls, x: Tensor, delta: Tensor, block: Tensor, *, blocks: int = BLOCKS) -> WeightGradients:
        """The same gradient transposed: rows in the space of the outputs."""
        return cls.weight_in(delta, x, block, blocks=blocks)

    @classmethod
    def embedding(cls, g: Tensor, token: Tensor, block: Tensor, *, blocks: int = BLOCKS) -> WeightGradients:
        """One row per token type: the sum of the gradients g (n, d) at the table's output over its occurrences."""
        types, type_of = token.unique(return_inverse=True)
        parts = torch.zeros(blocks, len(types), g.shape[1])
        parts.index_put_((block.cpu(), type_of.cpu()), plain(g).float().cpu(), accumulate=True)
        return cls(parts, torch.bincount(block.cpu(), minlength=blocks))

    @property
    def n(self) -> int:
        return int(self.count.sum())

    @property
    def dim(self) -> int:
        return self.parts.shape[2]

    @property
    def pooled(self) -> Tensor:
        """GᵀG of the whole gradient, plain and unit rows, (2, d, d) float64; computed at every access."""
        whole = self.parts.sum(0)
        both = torch.stack([(g.T @ g).double() for g in (whole, _unit(whole))])
        if not bool(both.isfinite().all()) or not float(both[0].diagonal().sum()) > 0:
            raise InputError("The gradients are all zero, or hold NaN or Inf. Does the loss depend on this weight?")
        return both

    @property
    def covariance(self) -> Tensor:
        """Covariance of the rows of the gradient, plain and unit, (2, d, d)."""
        whole = self.parts.sum(0)
        means = torch.stack([g.mean(0).double() for g in (whole, _unit(whole))])
        return self.pooled / len(whole) - means[:, :, None] * means[:, None]

    def energies(self, bases: Sequence[Basis]) -> Energies:
        """E = ‖GQ‖²/‖G‖² of each basis, with all blocks and without each block."""
        used = (self.count > 0).nonzero()[:, 0]
        whole = self.parts.sum(0)
        without = [_energies(whole - self.parts[b], bases) for b in used.tolist()]  # (2, bases) each
        return Energies(_energies(whole, bases), torch.stack(without, 1), tuple(self.count[used].tolist()))

    def along(self, axes: Tensor) -> tuple[Tensor, Tensor]:
        """Squared length along the columns of `axes`, plain and unit (2, columns); nothing by block (0, columns)."""
        whole = self.parts.sum(0)
        v = axes.float()
        both = torch.stack([(g @ v).square().double().sum(0) for g in (whole, _unit(whole))])
        return both, both[:0]


@null("which token an error belongs to does not matter", (WEIGHT_IN,), decides=True)
def error_shuffle(
    x: Tensor, delta: Tensor, bases: Sequence[Basis], *, seed: int = 0, draws: int = SHUFFLES
) -> list[NullLevel]:
    """The energy of Σ δ_π(t) x_tᵀ in each basis, with errors shuffled across tokens.

    ‖Σ δ_π(t) (Qᵀx_t)ᵀ‖² = Σ_ts (δ_π(t)·δ_π(s)) (Qᵀx_t·Qᵀx_s): one product of errors, permuted, against one of inputs.

    Args:
        x: Inputs (n, in).
        delta: Errors (n, out).
        bases: Bases of the space of the inputs.
        seed: The seed of the shuffles.
        draws: Their number.
    """
    with full_precision(x.device):
        x, delta = plain(x).float(), plain(delta).float()
        errors = delta @ delta.T  # (n, n)
        inputs = [x @ x.T] + [(y := x @ basis.q.to(x)) @ y.T for basis in bases]
        overlaps = torch.stack([overlap.flatten() for overlap in inputs], 1)  # (n·n, 1 + bases)
        unshuffled = errors.flatten() @ overlaps
        draw = torch.Generator().manual_seed(seed)
        step = max(1, _CHUNK // errors.numel())
        drawn = []
        for done in range(0, draws, step):
            order = torch.rand(min(step, draws - done), len(x), generator=draw).argsort(1).to(x.device)
            drawn.append(errors[order[:, :, None], order[:, None, :]].flatten(1) @ overlaps)
        sums = torch.cat(drawn).double().cpu()  # (draws, 1 + bases)
    shuffled = sums[:, 1:] / sums[:, :1]
    observed = (unshuffled[1:] / unshuffled[0]).double().cpu()
    return [
        NullLevel(float(shuffled[:, i].mean()), permutation_p(float(observed[i]), shuffled[:, i]))
        for i in range(len(bases))
    ]


def _unit(g: Tensor) -> Tensor:
    return torch.nn.functional.normalize(g, dim=1, eps=1e-30)


def _energies(g: Tensor, bases: Sequence[Basis]) -> Tensor:
    """Energies of plain and unit rows g (rows, d), (2, bases) float64."""
    square = (g @ torch.cat([basis.q for basis in bases], 1).float()).square()  # (rows, Σ effective)
    parts = torch.stack([p.sum(1) for p in square.split([b.effective for b in bases], 1)], 1)  # (rows, bases)
    size = g.square().sum(1, keepdim=True)  # (rows, 1)
    unit = torch.where(size > 0, parts / size.clamp(min=1e-30), 0.0).double().sum(0) / (size > 0).sum().clamp(min=1)
    return torch.stack((parts.double().sum(0) / size.double().sum().clamp(min=1e-300), unit))
