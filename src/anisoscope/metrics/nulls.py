"""Null values: what a metric would give for isotropic rows of the same documents.

A finite sample of a perfect sphere is not perfectly round, and dependent tokens reduce the effective sample size. The
null of a cloud rotates every document independently, which keeps only the structure inside documents. With S_b the
scatter of document b about the common mean and t_b its trace, the expected participation ratio is
PR₀ = (Σ t_b)² / [Σ ‖S_b‖² + ((Σ t_b)² − Σ t_b²)/d]. Solving 1/PR₀ = 1/d + 1/rows gives the effective number of
independent isotropic rows, and the Marchenko–Pastur law for that number gives the other null values.

That number describes the largest eigenvalues: a few documents, or a few rows of large norm, make it small although the
rows still fill all dimensions. So the small eigenvalues follow the law only if the rows really are independent and of
similar length, or if the number is several times d, when all eigenvalues are similar (`Isotropic.describes_tail`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from anisoscope.stats.cloud import Cloud
from anisoscope.stats.documents import Documents, segments
from anisoscope.stats.moments import Moments
from anisoscope.stats.sample import Extremes, Sample

_POINTS = 4096  # quadrature points of the Marchenko–Pastur law
_INDEPENDENT = 0.9  # effective rows per row from which rows count as independent and of similar length


@dataclass(frozen=True)
class Isotropic:
    """`rows` independent isotropic rows in `dim` dimensions: the cloud without structure.

    `heaviest` is the share of the largest row in the total squared length: that much lies on one line in any case.
    """

    dim: int
    rows: float
    heaviest: float = 0.0

    def describes_tail(self, n: int, rows_per_dimension: float) -> bool:
        """Whether the small eigenvalues of n such rows follow the law, given the rows per dimension that are needed."""
        return self.rows >= rows_per_dimension * self.dim or self.rows >= _INDEPENDENT * n

    @property
    def participation_ratio(self) -> float:
        return 1 / (1 / self.dim + 1 / self.rows)

    @property
    def isoscore(self) -> float:
        return (self.participation_ratio - 1) / (self.dim - 1)

    @property
    def top_share(self) -> float:
        """λ1/Σλ: the upper edge (1 + √(d/rows))²/d, or more if the heaviest row alone has more."""
        edge = (1 + math.sqrt(self.dim / self.rows)) ** 2 / self.dim
        return min(1.0, max(edge, self.heaviest + (1 - self.heaviest) / self.dim))

    @cached_property
    def eigenvalues(self) -> Tensor:
        """Expected eigenvalues, descending, with sum 1: quantiles of the Marchenko–Pastur law, (d,)."""
        d, rows = self.dim, self.rows
        nonzero = min(d, max(1, round(rows)))
        ratio = d / rows
        low, high = (1 - math.sqrt(ratio)) ** 2, (1 + math.sqrt(ratio)) ** 2
        # λ = centre + radius·cos θ makes the density smooth at both edges
        theta = (torch.arange(_POINTS, dtype=torch.float64) + 0.5) * (math.pi / _POINTS)
        at = (low + high) / 2 + (high - low) / 2 * torch.cos(theta)  # descending
        weight = torch.sin(theta).square() / at.clamp(min=1e-300)
        cumulated = torch.cumsum(weight / weight.sum(), 0)
        wanted = (torch.arange(nonzero, dtype=torch.float64) + 0.5) / nonzero
        values = at[torch.searchsorted(cumulated, wanted).clamp(max=_POINTS - 1)]
        full = torch.zeros(d, dtype=torch.float64)
        full[:nonzero] = values / values.sum()
        return full


def isotropic(cloud: Cloud) -> Isotropic:
    """The null of this cloud, from its exact fourth moment and, where documents are known, pairs inside documents.

    Σ_b ‖S_b‖² = Σ_i ‖y_i‖⁴ + Σ_b Σ_{i≠j in b} (y_i·y_j)²: the first sum is exact; the second is the mean over the
    sample's pairs times the exact number of pairs.
    """
    moments = cloud.get(Moments)
    extremes = cloud.get(Extremes) if cloud.has(Extremes) else None
    return null_of(moments, extremes, _pairs_inside_documents(cloud, moments))


def null_of(moments: Moments, extremes: Extremes | None = None, inside: tuple[float, float] = (0.0, 0.0)) -> Isotropic:
    """Return the null of rows with these moments.

    Args:
        moments: Moments of all rows.
        extremes: The rows of largest norm, if known.
        inside: Sums over pairs of rows in the same document of (y_i·y_j)² and of ‖y_i‖²‖y_j‖².
    """
    trace = float(moments.trace)
    if trace <= 0:
        return Isotropic(moments.dim, float(max(moments.n, 1)))
    overlap = float(moments.fourth) + inside[0]  # Σ ‖S_b‖²
    square = float(moments.fourth) + inside[1]  # Σ t_b²
    share = (overlap + (trace**2 - square) / moments.dim) / trace**2  # 1/PR₀
    heaviest = 0.0
    if extremes is not None and len(extremes.x):
        heaviest = float((extremes.x.double() - moments.mean).square().sum(1).max()) / trace
    return Isotropic(moments.dim, 1 / max(share - 1 / moments.dim, 1e-12), min(1.0, heaviest))


def _pairs_inside_documents(cloud: Cloud, moments: Moments) -> tuple[float, float]:
    square = float(moments.trace) / max(moments.n, 1)  # the rows' mean squared length
    if square <= 0 or not (cloud.has(Documents) and cloud.has(Sample)):
        return 0.0, 0.0
    sample = cloud.get(Sample)
    document, order = torch.sort(sample.rows.tokens.document, stable=True)
    # centred in float64; products that are only averaged need no more than float32, at unit scale
    y = sample.x.cpu()[order].double().sub_(moments.mean.cpu()).div_(math.sqrt(square)).float()
    starts, _ = segments(document)
    dots = norms = pairs = 0.0
    for part in torch.tensor_split(y, starts[1:]):
        if len(part) > 1:
            inner = part @ part.T
            own = inner.diagonal().double()
            dots += float(inner.fill_diagonal_(0.0).square_().sum(dtype=torch.float64))
            norms += float(own.sum() ** 2 - own.square().sum())
            pairs += len(part) * (len(part) - 1)
    if not pairs:
        return 0.0, 0.0
    documents = cloud.get(Documents)
    # if some tokens of each document were left out, the pairs with them are missing too
    all_pairs = documents.all_square * (moments.n / documents.all_rows) ** 2 - moments.n if documents.all_rows else 0.0
    scale = square**2 * all_pairs / pairs
    return dots * scale, norms * scale
