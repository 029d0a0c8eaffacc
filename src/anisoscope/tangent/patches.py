"""The local tangent test: are a token's gradients tangent to its own patch of the cloud, not merely to the cloud?

Gradients that follow the covariance of the activations lie in every global proxy, whatever the pairing of tokens and
gradients. Here activations are clustered and each cluster has a basis of its own. The energy M_jk of cluster j's
gradients in cluster k's basis, doubly centred, has a large diagonal only where gradients know their own patch;
permuting the bases' labels says how large it would be if they did not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from anisoscope.stats.arithmetic import full_precision, plain
from anisoscope.tangent.multiple import permutation_p
from anisoscope.tangent.null import HIDDEN, null
from anisoscope.tangent.proxies import leading

CLUSTERS = 8
DRAWS = 999
_ROUNDS, _SOME = 8, 4096  # of clustering, and the rows it looks at


@dataclass(frozen=True)
class Patches:
    """Clusters of activations with a basis each: directions of most variance about the cluster's own mean."""

    centres: Tensor  # (K, d)
    bases: Tensor  # (K, d, r) orthonormal columns, most variance first

    def assign(self, x: Tensor) -> Tensor:
        """The nearest centre of each row, (n,)."""
        c = self.centres.to(x)
        return (c.square().sum(1) - 2 * x @ c.T).argmin(1)


@dataclass(frozen=True)
class LocalTest:
    """The excess of the diagonal (own basis − other clusters' bases), its levels and p by permuted labels."""

    excess: float
    own: float  # mean energy in the own basis
    level: float  # mean energy that permuted labels give
    p: float


def fit_patches(x: Tensor, rank: int, *, clusters: int = CLUSTERS, seed: int = 0) -> Patches | None:
    """Patches of rows (n, d): k-means, then a basis per cluster; None where the rows cannot fill two of them.

    Clusters too small for a basis of this rank (fewer than 2·rank rows) are joined to the nearest larger one.
    """
    with full_precision(x.device):
        rows = plain(x).float()
        centres = _kmeans(rows[:: max(1, len(rows) // _SOME)], clusters, seed)
        label = _nearest(rows, centres)
        count = torch.bincount(label, minlength=len(centres))
        centres = centres[count >= 2 * rank]
        if len(centres) < 2:
            return None
        label = _nearest(rows, centres)
        bases = [_axes(rows[label == k], rank) for k in range(len(centres))]
    return Patches(centres, torch.stack(bases))


@null("gradients do not know their own patch of the cloud", (HIDDEN,), decides=True)
def local_test(captured: Tensor, size: Tensor, *, draws: int = DRAWS, seed: int = 0) -> LocalTest:
    """The test from sums: captured (J, K) is Σ‖gQ_k‖² over cluster j's gradients, size (J,) is Σ‖g‖².

    >>> test = local_test(torch.eye(6) + 1, torch.full((6,), 10.0))
    >>> round(test.excess, 3), test.p < 0.05
    (0.1, True)
    """
    m = captured.double() / size.double().clamp(min=1e-300)[:, None]  # (J, K)
    centred = m - m.mean(0) - m.mean(1, keepdim=True) + m.mean()
    k = len(m)
    draw = torch.Generator().manual_seed(seed)
    labels = torch.rand(draws, k, generator=draw).argsort(1)  # (draws, K)
    permuted = centred[torch.arange(k), labels].mean(1)  # (draws,)
    value = float(centred.diagonal().mean())
    own = float(m.diagonal().mean())
    # the mean over all labellings of a centred matrix is 0, so own − value is what permuted labels give on average
    return LocalTest(value * k / (k - 1), own, own - value, permutation_p(value, permuted))


def captured_by_patch(g: Tensor, patches: Patches, ranks: Sequence[int]) -> Tensor:
    """‖gQ_k‖² of each gradient in each patch's basis at each rank, (n, K, ranks)."""
    k, d, r = patches.bases.shape
    flat = patches.bases.permute(1, 0, 2).reshape(d, k * r).to(g)
    squares = (g @ flat).square().view(len(g), k, r).cumsum(2)  # (n, K, r)
    return squares[:, :, [min(rank, r) - 1 for rank in ranks]]


def _axes(x: Tensor, rank: int) -> Tensor:
    """The directions of most variance of rows about their mean, (d, rank)."""
    y = x - x.mean(0)
    if y.shape[1] <= 4 * rank:
        return torch.linalg.eigh(y.T @ y)[1].flip(1)[:, :rank]
    return leading(lambda q: y.T @ (y @ q), y.shape[1], rank, rounds=2)


def _kmeans(x: Tensor, clusters: int, seed: int) -> Tensor:
    """Centres (clusters, d) by Lloyd's rounds from rows picked far apart."""
    draw = torch.Generator().manual_seed(seed)
    centres = x[torch.randint(len(x), (1,), generator=draw).to(x.device)]
    square = x.square().sum(1)
    for _ in range(1, clusters):  # far from those there are: the chance to be picked is the squared distance
        distance = square[:, None] - 2 * x @ centres.T + centres.square().sum(1)  # (n, centres)
        weight = distance.amin(1).clamp(min=0).double().cpu() + 1e-300
        pick = torch.multinomial(weight / weight.sum(), 1, generator=draw).to(x.device)
        centres = torch.cat((centres, x[pick]))
    for _ in range(_ROUNDS):
        member = torch.nn.functional.one_hot(_nearest(x, centres), clusters).to(x.dtype)
        count = member.sum(0)[:, None]
        centres = torch.where(count > 0, member.T @ x / count.clamp(min=1), centres)
    return centres


def _nearest(x: Tensor, centres: Tensor) -> Tensor:
    return (centres.square().sum(1) - 2 * x @ centres.T).argmin(1)
