"""Lengths of queries, keys and values per head."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from anisoscope.stats.arithmetic import double, full_precision, plain
from anisoscope.stats.head_scores import Heads


@dataclass(frozen=True)
class HeadNorms:
    """Sums and maxima over the counted tokens of one layer, in float64; h query heads, g key heads.

    A maximum cannot forget tokens, so `without` keeps it.
    """

    tokens: Tensor  # () counted tokens
    q: Tensor  # (h,) Σ ‖q‖
    k: Tensor  # (g,) Σ ‖k‖
    v: Tensor  # (g,) Σ ‖v‖; (0,) if the model does not show its values
    q_max: Tensor  # (h,)
    k_max: Tensor  # (g,)
    v_max: Tensor  # (g,) or (0,)

    @classmethod
    def of(cls, heads: Heads, counts: Tensor) -> HeadNorms:
        """Compute the statistic of one batch; `counts` (b, t) is True for tokens that count."""
        real = counts.to(heads.q.device)[:, None, :]  # (b, 1, t)
        with full_precision(heads.q.device):
            lengths = [_lengths(x, real) for x in (heads.q, heads.k, heads.v)]  # (b, h or g, t) each
            sums, maxima = [x.sum((0, 2)) for x in lengths], [x.amax((0, 2)) for x in lengths]
            return cls(double(real.sum()), *sums, *maxima)

    def __add__(self, other: HeadNorms) -> HeadNorms:
        join = {f.name: torch.maximum if f.name.endswith("max") else torch.add for f in fields(self)}
        return HeadNorms(**{name: add(getattr(self, name), getattr(other, name)) for name, add in join.items()})

    def without(self, part: HeadNorms) -> HeadNorms:
        """Return the sums without the tokens of `part`, with the maxima of all."""
        sums = {name: getattr(self, name) - getattr(part, name) for name in ("tokens", "q", "k", "v")}
        return replace(self, **sums)


def _lengths(x: Tensor | None, real: Tensor) -> Tensor:
    """Return the lengths of vectors, 0 for those that do not count, (b, heads, t, d) -> (b, heads, t) float64."""
    if x is None:
        return double(real[:, :0].to(torch.float32))  # (b, 0, t)
    return double(torch.where(real, torch.linalg.vector_norm(plain(x), dim=-1), 0.0))
