"""The null of privileged coordinates: outlier dimensions are large in activations and gradients alike."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from anisoscope.tangent.basis import Basis
from anisoscope.tangent.null import EMBEDDING, HIDDEN, WEIGHT_OUT, NullLevel, null
from anisoscope.tangent.permutation import permutation_p
from anisoscope.tangent.site_bases import SiteBases

DRAWS = 99
_CHUNK = 11  # draws made at a time
_ENOUGH = 12  # draws above each basis after which drawing stops: its p-value can no longer be below 0.1


@null(
    "coordinates of like variance are interchangeable: signed permutations",
    (HIDDEN, WEIGHT_OUT, EMBEDDING),
    decides=True,
)
def coordinates(second: Tensor, bases: Sequence[Basis], fitted: SiteBases, seed: int = 0) -> list[NullLevel]:
    """The basis with its coordinates permuted within octaves of their variance, and with signs flipped.

    A coordinate that is alone in its octave stays. If activations and gradients share only one outlier dimension, the
    permuted bases contain it too, and the p-value is not small.
    """
    s = (second / second.diagonal().sum()).float()  # (d, d)
    projectors = torch.stack([(b.q @ b.q.T).float().flatten() for b in bases], 1)  # (d·d, bases)
    observed = s.flatten() @ projectors  # (bases,)
    draw = torch.Generator().manual_seed(seed)
    octave = _octaves(fitted.coordinates)
    drawn = torch.zeros(0, len(bases))
    while len(drawn) < DRAWS and int((drawn >= observed).sum(0).min()) < _ENOUGH:
        more = _permuted(s, octave, min(_CHUNK, DRAWS - len(drawn)), draw) @ projectors  # (chunk, bases)
        drawn = torch.cat((drawn, more))
    return [
        NullLevel(float(levels.mean()), permutation_p(float(value), levels))
        for value, levels in zip(observed, drawn.unbind(1), strict=True)
    ]


def _octaves(variance: Tensor) -> Tensor:
    """The octave of each coordinate's variance, (d,) int64."""
    return variance.clamp(min=1e-300).log2().floor().long()


def _permuted(s: Tensor, octave: Tensor, draws: int, draw: torch.Generator) -> Tensor:
    """The matrix with rows and columns permuted within octaves and signs flipped, (draws, d·d)."""
    d = len(s)
    ordered = octave.argsort(stable=True)  # (d,) coordinates, octave after octave
    shuffled = (octave + torch.rand(draws, d, generator=draw, dtype=torch.float64)).argsort(1)  # (draws, d)
    permutations = torch.empty_like(shuffled).scatter_(1, ordered.expand(draws, d), shuffled)
    signs = 2.0 * torch.randint(2, (draws, d), generator=draw) - 1  # (draws, d)
    out = torch.empty(draws, d, d)
    for moved, permutation, sign in zip(out, permutations, signs, strict=True):  # one at a time stays in the cache
        rows = s.index_select(0, permutation).mul_(sign[:, None])
        torch.mul(rows.index_select(1, permutation), sign, out=moved)
    return out.flatten(1)
