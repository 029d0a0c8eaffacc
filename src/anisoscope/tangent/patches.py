"""The local tangent test: are a token's gradients tangent to its own patch of the activations?

Gradients that follow the covariance of the activations lie in every global proxy, however tokens and gradients are
paired. Here the activations are clustered into patches, each with its own basis. The energy M_jk of patch j's gradients
in patch k's basis, doubly centred, has a large diagonal only if gradients follow their own patch. Permuting the labels
of the bases gives the size of the diagonal if they do not and patches are unrelated to each other. Where neighbouring
patches are alike, the permuted diagonals are widened, see `likeness`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from anisoscope.stats.arithmetic import full_precision, plain
from anisoscope.stats.kmeans import distant_starts, kmeans, nearest_centre
from anisoscope.tangent.null import HIDDEN, null
from anisoscope.tangent.permutation import permutation_p
from anisoscope.tangent.proxies import leading

CLUSTERS = 8
DRAWS = 999
_ROUNDS, _ROWS = 8, 4096  # rounds of k-means, and how many rows it uses


@dataclass(frozen=True)
class Patches:
    """Clusters of activations, each with the directions of most variance about its mean."""

    centres: Tensor  # (K, d)
    bases: Tensor  # (K, d, r) orthonormal columns, most variance first

    def assign(self, x: Tensor) -> Tensor:
        """The patch of each row, (n,)."""
        return nearest_centre(x, self.centres.to(x))


@dataclass(frozen=True)
class LocalTest:
    """The result of the local test.

    Attributes:
        excess: Mean energy in the gradients' own patch less that in other patches.
        own_patch: Mean energy in the own patch.
        level: Mean energy with permuted labels.
        p: The p-value of permuted labels, widened by `likeness`.
        likeness: By what factor alike neighbours raise the variance of the diagonal, at least 1.
    """

    excess: float
    own_patch: float
    level: float
    p: float
    likeness: float


def fit_patches(x: Tensor, rank: int, *, clusters: int = CLUSTERS, seed: int = 0) -> Patches | None:
    """Cluster rows (n, d) and fit a basis of `rank` directions per cluster.

    Clusters with fewer than 2·rank rows are joined to the nearest larger one.

    Returns:
        The patches, or None if the rows fill fewer than two.
    """
    with full_precision(x.device):
        rows = plain(x).float()
        some = rows[:: max(1, len(rows) // _ROWS)]
        draw = torch.Generator().manual_seed(seed)
        first = int(torch.randint(len(some), (1,), generator=draw))
        centres = kmeans(some, distant_starts(some, clusters, first, draw), _ROUNDS)[1]
        count = torch.bincount(nearest_centre(rows, centres), minlength=len(centres))
        centres = centres[count >= 2 * rank]
        if len(centres) < 2:
            return None
        label = nearest_centre(rows, centres)
        bases = [_axes(rows[label == k], rank) for k in range(len(centres))]
    return Patches(centres, torch.stack(bases))


@null("gradients do not know their own patch of the cloud", (HIDDEN,), decides=True)
def local_test(captured: Tensor, size: Tensor, *, draws: int = DRAWS, seed: int = 0) -> LocalTest:
    """Test whether gradients follow their own patch.

    The permuted labels are widened where neighbouring patches are alike: if gradients and bases both change slowly from
    patch to patch, patches with similar bases also have similar gradients, and the diagonal varies more than permuted
    labels show. See `likeness` for by how much.

    Args:
        captured: Σ‖gQ_k‖² over the gradients of patch j, (J, K).
        size: Σ‖g‖² over the gradients of patch j, (J,).
        draws: The number of permutations.
        seed: Their seed.

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
    own_patch = float(m.diagonal().mean())
    wider = likeness(m)
    # the mean of a centred matrix over all labellings is 0, so own_patch − value is the mean with permuted labels
    p = permutation_p(value, permuted * wider**0.5)
    return LocalTest(value * k / (k - 1), own_patch, own_patch - value, p, wider)


def likeness(m: Tensor) -> float:
    """By what factor alike patches raise the variance of the diagonal's mean over that of permuted labels, at least 1.

    If the rows of a matrix (gradients) have the correlations A and its columns (bases) the correlations B, and rows and
    columns are otherwise unrelated, the variance of its trace is Σ_jk A_jk·B_jk times that of one entry: K if the
    patches are unrelated, more if the same patches are alike in both. A and B are estimated from the entries off the
    diagonal less their row and column effects, so that gradients that follow their own patch do not count as alike
    patches. This is the correction of Clifford, Richardson and Hémon (1989) for the correlation of two smooth fields,
    with patches instead of places.

    Args:
        m: Energy of patch j's gradients in patch k's basis, (K, K).
    """
    k = len(m)
    if k < 3:
        return 1.0
    off = m.double().clone().fill_diagonal_(0.0)
    mean = off.sum() / (k * (k - 1))
    rows, columns = off.sum(1) - (k - 1) * mean, off.sum(0) - (k - 1) * mean
    # least squares of m_jk = mean + a_j + b_k over the entries off the diagonal
    a, b = (((k - 1) * one + other) / (k * (k - 2)) for one, other in ((rows, columns), (columns, rows)))
    rest = (m - mean - a[:, None] - b).fill_diagonal_(0.0)
    by_row, by_column = (functional.normalize(each, dim=1) for each in (rest, rest.T))
    return max(1.0, float(((by_row @ by_row.T) * (by_column @ by_column.T)).sum()) / k)


def captured_by_patch(g: Tensor, patches: Patches, ranks: Sequence[int]) -> Tensor:
    """‖gQ_k‖² of each gradient in the basis of each patch at each rank, (n, K, ranks)."""
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
