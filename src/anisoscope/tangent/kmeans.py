"""K-means in two parts: starting centres that are far apart, then rounds of assigning and averaging."""

from __future__ import annotations

import torch
from torch import Tensor


def spread_centres(x: Tensor, first: Tensor, clusters: int, draw: torch.Generator) -> Tensor:
    """Choose rows of x (n, d) as starting centres, each with a probability proportional to its squared distance.

    Args:
        x: The rows.
        first: The first centre, (1, d).
        clusters: The number of centres.
        draw: The random numbers.

    Returns:
        The centres, (clusters, d).
    """
    centres = first
    nearest = (x - centres).square().sum(1)  # (n,) squared distance to the nearest centre
    for _ in range(1, clusters):
        weight = nearest.double().cpu() + 1e-300  # rows that are all equal may be chosen again
        pick = torch.multinomial(weight / weight.sum(), 1, generator=draw).to(x.device)
        centres = torch.cat((centres, x[pick]))
        nearest = torch.minimum(nearest, (x - centres[-1]).square().sum(1))
    return centres


def lloyd(x: Tensor, centres: Tensor, rounds: int) -> Tensor:
    """Move centres (k, d) to the means of their rows, `rounds` times; a centre without rows stays."""
    for _ in range(rounds):
        member = torch.nn.functional.one_hot(nearest_centre(x, centres), len(centres)).to(x.dtype)  # (n, k)
        count = member.sum(0)[:, None]
        centres = torch.where(count > 0, member.T @ x / count.clamp(min=1), centres)
    return centres


def nearest_centre(x: Tensor, centres: Tensor) -> Tensor:
    """The number of the nearest centre of each row, (n,)."""
    return (centres.square().sum(1) - 2 * x @ centres.T).argmin(1)
