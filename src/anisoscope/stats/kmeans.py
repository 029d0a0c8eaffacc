"""k-means: starts spread over the rows, then Lloyd's rounds.

The rounds exist once. The random drawing of starts exists twice: `local_isotropy` passes its own `pick`, all others
use `distant_starts`. Both are k-means++; one for both would change published numbers without improving any.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def spread_starts(x: Tensor, k: int, first: int, pick: Callable[[Tensor], int]) -> Tensor:
    """Choose k rows as starts, one after another, each far from those before (k-means++).

    Args:
        x: Rows (n, d).
        k: Number of clusters.
        first: Index of the first start.
        pick: Draws the index of the next start from the squared distances (n,) to the nearest start so far.

    Returns:
        The starts, (k, d).
    """
    centres = x[first : first + 1]
    nearest = (x - centres).square().sum(1)  # (n,)
    for _ in range(k - 1):
        chosen = x[pick(nearest)][None]  # (1, d)
        centres = torch.cat((centres, chosen))
        nearest = torch.minimum(nearest, (x - chosen).square().sum(1))
    return centres


def kmeans(x: Tensor, centres: Tensor, rounds: int) -> tuple[Tensor, Tensor]:
    """Improve centres by Lloyd's rounds of assigning and averaging. A cluster that loses all rows keeps its centre.

    Args:
        x: Rows (n, d).
        centres: Where to start, (k, d).
        rounds: Number of rounds, at most; it stops early if no row changes its cluster.

    Returns:
        The cluster of each row, (n,), as assigned in the last round, and the means of these clusters, (k, d).
    """
    labels = torch.full((len(x),), -1, dtype=torch.int64, device=x.device)
    for _ in range(rounds):
        before, labels = labels, nearest_centre(x, centres)
        if bool((labels == before).all()):
            break
        means, count = cluster_means(x, labels, len(centres))
        centres = torch.where(count[:, None] > 0, means, centres)
    return labels, centres


def distant_starts(x: Tensor, k: int, first: int, draw: torch.Generator) -> Tensor:
    """Choose k rows as starts, each drawn with a probability proportional to its squared distance, (k, d)."""

    def pick(nearest: Tensor) -> int:
        weight = nearest.double().cpu() + 1e-300  # rows that are all equal may be chosen again
        return int(torch.multinomial(weight / weight.sum(), 1, generator=draw))

    return spread_starts(x, k, first, pick)


def nearest_centre(x: Tensor, centres: Tensor) -> Tensor:
    """Return the index of the centre nearest to each row, (n,)."""
    return (centres.square().sum(1) - 2 * x @ centres.T).argmin(1)


def cluster_means(x: Tensor, labels: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the mean of each cluster, (k, d), zero if it is empty, and its number of rows, (k,)."""
    count = torch.bincount(labels, minlength=k)
    sums = x.new_zeros(k, x.shape[1]).index_add_(0, labels, x)
    return sums / count.clamp(min=1)[:, None], count
