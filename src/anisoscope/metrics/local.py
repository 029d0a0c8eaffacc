"""Isotropy inside clusters: rows can be isotropic locally although the clusters lie in a narrow cone."""

from __future__ import annotations

import torch
from torch import Tensor

from anisoscope.metrics.isotropy import isoscore_of, participation_ratio_of
from anisoscope.metrics.metric import Undefined, Value, metric
from anisoscope.stats.kmeans import cluster_means, kmeans, spread_starts
from anisoscope.stats.moments import Moments
from anisoscope.stats.rows import bare_rows
from anisoscope.stats.sample import Sample

CLUSTERS = 16
SEED = 0
_ROUNDS = 25
_ROWS = 4096


@metric(
    Sample, low=0, high=1, keeps={"rotation", "scale", "shift"}, paper="cai2021", slow=True,
    notable="low",
)  # fmt: skip
def local_isotropy(sample: Sample) -> Value:
    """IsoScore of the rows after subtracting the mean of their cluster.

    Clusters come from seeded k-means with k = 16. Centring within clusters makes any cloud rounder, so the null is the
    same computation on Gaussian rows of the same covariance. Only the excess over the null is evidence of local
    isotropy.
    """
    x = sample.x[:_ROWS].double()
    if len(x) < 4 * CLUSTERS:
        raise Undefined(f"the sample holds {len(x)} rows", f"give at least {4 * CLUSTERS}")
    x = x - x.mean(0)
    if float(x.square().sum()) == 0:
        raise Undefined("the rows do not vary", "give at least two different rows")
    return Value(
        _within(x),
        variant={"clusters": CLUSTERS, "seed": SEED},
        n=len(x),
        null=_within(_gaussian_like(x)),
    )


def _within(x: Tensor) -> float:
    labels = cluster(x, CLUSTERS, SEED)
    centres, _ = cluster_means(x, labels, CLUSTERS)
    moments = Moments.of(bare_rows(x - centres[labels]))
    return isoscore_of(participation_ratio_of(moments), moments.dim)


def _gaussian_like(x: Tensor) -> Tensor:
    """Draw Gaussian rows with the covariance of x, along its principal axes: then rotations of x rotate them too."""
    values, axes = torch.linalg.eigh(x.T @ x / len(x))
    noise = torch.randn(x.shape, generator=torch.Generator().manual_seed(SEED), dtype=x.dtype).to(x.device)
    return (noise * values.clamp(min=0).sqrt()) @ axes.T


def cluster(x: Tensor, k: int, seed: int) -> Tensor:
    """Return the cluster of each row by seeded k-means, (n,)."""
    generator = torch.Generator().manual_seed(seed)

    def pick(square: Tensor) -> int:
        """Draw an index with a chance proportional to the squared distance."""
        chance = square / square.sum() if float(square.sum()) > 0 else torch.full_like(square, 1 / len(x))
        uniform = torch.rand(1, generator=generator, dtype=x.dtype).to(x.device)
        return min(int(torch.searchsorted(chance.cumsum(0), uniform)), len(x) - 1)

    first = int(torch.randint(len(x), (1,), generator=generator))
    return kmeans(x, spread_starts(x, k, first, pick), _ROUNDS)[0]
