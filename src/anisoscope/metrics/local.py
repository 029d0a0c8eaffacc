"""Isotropy inside clusters: round crowds may stand in a narrow cone."""

from __future__ import annotations

import torch
from torch import Tensor

from anisoscope.metrics.isotropy import isoscore_of, participation_ratio_of
from anisoscope.metrics.metric import Undefined, Value, metric
from anisoscope.stats.moments import Moments
from anisoscope.stats.rows import bare_rows
from anisoscope.stats.sample import Sample

CLUSTERS = 16
SEED = 0
_ROUNDS = 25
_ROWS = 4096


@metric(
    Sample, low=0, high=1, keeps={"rotation", "scale", "shift"}, paper="cai2021", slow=True,
)  # fmt: skip
def local_isotropy(sample: Sample) -> Value:
    """IsoScore of the rows after each cluster is centred on its own mean.

    k-means with k = 16, seeded. Centring within clusters makes any cloud look rounder, so the null is the same
    clustering of Gaussian rows of the same covariance: only the excess over it says "locally isotropic".
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
    which = cluster(x, CLUSTERS, SEED)
    centres, _ = _means(x, which, CLUSTERS)
    moments = Moments.of(bare_rows(x - centres[which]))
    return isoscore_of(participation_ratio_of(moments), moments.dim)


def _gaussian_like(x: Tensor) -> Tensor:
    """Gaussian rows with the covariance of x, drawn in the frame of its principal axes (so that rotations commute)."""
    values, axes = torch.linalg.eigh(x.T @ x / len(x))
    noise = torch.randn(x.shape, generator=torch.Generator().manual_seed(SEED), dtype=x.dtype).to(x.device)
    return (noise * values.clamp(min=0).sqrt()) @ axes.T


def cluster(x: Tensor, k: int, seed: int) -> Tensor:
    """The cluster of each row by k-means: spread-out seeded starts, then rounds of assigning and averaging, (n,)."""
    generator = torch.Generator().manual_seed(seed)
    first = int(torch.randint(len(x), (1,), generator=generator))
    centres = x[first : first + 1]
    nearest = (x - centres).square().sum(1)
    for _ in range(k - 1):
        chance = nearest / nearest.sum() if float(nearest.sum()) > 0 else torch.full_like(nearest, 1 / len(x))
        pick = int(torch.searchsorted(chance.cumsum(0), torch.rand(1, generator=generator, dtype=x.dtype).to(x.device)))
        chosen = x[min(pick, len(x) - 1)][None]
        centres = torch.cat((centres, chosen))
        nearest = torch.minimum(nearest, (x - chosen).square().sum(1))
    which = torch.zeros(len(x), dtype=torch.int64, device=x.device)
    for _ in range(_ROUNDS):
        new = (centres.square().sum(1) - 2 * x @ centres.T).argmin(1)
        if bool((new == which).all()):
            break
        which = new
        means, count = _means(x, which, k)
        centres = torch.where(count[:, None] > 0, means, centres)
    return which


def _means(x: Tensor, which: Tensor, k: int) -> tuple[Tensor, Tensor]:
    count = torch.bincount(which, minlength=k)
    sums = x.new_zeros(k, x.shape[1]).index_add_(0, which, x)
    return sums / count.clamp(min=1)[:, None], count
