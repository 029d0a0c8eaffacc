"""Are frequent token types pinned to their places? Their local radius, and the curvature that their rows show.

Every type has its own place, the centroid of its occurrences. A pinned type varies little about it, so that its rows
see a small, nearly flat piece of the surface. Rows are therefore only compared with rows of the same type: the fit that
measures curvature has one free constant per type and axis. Every type enters with equally many occurrences, each from
another passage of the text, since a rare word often comes back within a few lines and would look pinned for it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from anisoscope.tangent.frequency import pearson, token_counts, type_balanced

EACH = 8  # occurrences of a type, no more and no fewer
_PASSAGE = 64  # tokens; two occurrences of a type come from different passages
_TANGENT, _NORMAL = 3, 5  # axes, as in the simulation
_FEWEST = 24  # types, so that every half of a stratum has enough rows for the fit
_TINY = 1e-12


@dataclass(frozen=True)
class Occurrences:
    """Equally many occurrences of each type.

    Attributes:
        index: Indices of rows, (types, occurrences).
        frequency: Log of the number of times that each type occurs in the text, (types,).
    """

    index: Tensor
    frequency: Tensor

    @property
    def enough(self) -> bool:
        """Whether there are enough types for both statistics."""
        return len(self.index) >= _FEWEST


def spaced_occurrences(token: Tensor, allowed: Tensor, *, seed: int = 0) -> Occurrences:
    """Choose eight occurrences of each type from eight different passages of the text; types with fewer are left out.

    Args:
        token: Token ids in the order of the text, (n,).
        allowed: Which of them may be chosen, (n,).
        seed: Seed of the choice.
    """
    key = torch.randperm(len(token), generator=torch.Generator().manual_seed(seed))
    passage = torch.arange(len(token)) // _PASSAGE
    rows = allowed.nonzero()[:, 0]
    rows = rows[type_balanced(token[rows] * (len(token) + 1) + passage[rows], key[rows], 1)]
    rows = rows[type_balanced(token[rows], key[rows], EACH)]
    _, type_of, number = token[rows].unique(return_inverse=True, return_counts=True)
    rows, type_of = (each[number[type_of] == EACH] for each in (rows, type_of))
    index = rows[type_of.argsort(stable=True)].view(-1, EACH)
    return Occurrences(index, token_counts(token)[index[:, 0]].log())


def radius_correlation(x: Tensor, frequency: Tensor) -> float:
    """Correlate log frequency with the log of a type's radius: the root mean square distance to its own centroid.

    The variance is unbiased and comes from equally many rows of every type, so that the number of times that a type
    occurs has no effect of its own.

    Args:
        x: Rows by type, (types, occurrences, d).
        frequency: Log frequency of each type, (types,).
    """
    variance = within(x).square().sum((1, 2)) / (x.shape[1] - 1)
    return pearson(frequency, variance.clamp(min=_TINY).log() / 2)


def curvature_by_frequency(x: Tensor, frequency: Tensor) -> tuple[float, float]:
    """Return the signal-to-noise ratio of curvature in the rarest third of the types, and in the most frequent third.

    Args:
        x: Rows by type, (types, occurrences, d).
        frequency: Log frequency of each type, (types,).
    """
    order = frequency.argsort(stable=True)
    third = len(order) // 3
    return local_curvature(x[order[:third]]), local_curvature(x[order[-third:]])


def local_curvature(x: Tensor) -> float:
    """Return the signal-to-noise ratio of curvature within types: below or about 0 if there is none.

    Tangent directions are the three leading principal axes of the rows about the centroids of their types, normal
    directions the next five. A quadratic of the tangent part predicts the normal part, with a constant of its own for
    every type. The ratio is the variance that the quadratic terms explain beyond the linear ones, over the rest. Each
    half of the types is predicted by a fit on the other half.

    Args:
        x: Rows by type, (types, occurrences, d).
    """
    x = x.double()
    deviations = within(x).flatten(0, 1)
    axes = torch.linalg.eigh(deviations.T @ deviations)[1].flip(1)[:, : _TANGENT + _NORMAL]
    y = (x - x.mean((0, 1))) @ axes  # (types, occurrences, axes)
    u, normal = y[..., :_TANGENT], within(y[..., _TANGENT:])
    i, j = torch.triu_indices(_TANGENT, _TANGENT)
    linear = within(u)
    quadratic = torch.cat((linear, within(u[..., i] * u[..., j])), 2)  # within types, so that their constants drop out
    return _unexplained(linear, normal) / max(_unexplained(quadratic, normal), _TINY) - 1


def drop(rare: float, frequent: float) -> float:
    """Return how much less curvature frequent types show than rare ones, as a share of the larger ratio.

    It is negative if they show more. A ratio below 0 counts as none: the fit on one half of the types predicts
    nothing in the other.

    >>> drop(0.5, 0.125), drop(0.125, 0.5), drop(-0.01, 0.0)
    (0.75, -0.75, 0.0)
    """
    rare, frequent = max(0.0, rare), max(0.0, frequent)
    return (rare - frequent) / max(rare, frequent, _TINY)


def within(x: Tensor) -> Tensor:
    """Return rows (types, occurrences, d) minus the centroid of their type."""
    return x - x.mean(1, keepdim=True)


def _unexplained(design: Tensor, normal: Tensor) -> float:
    """Variance that is left when each half of the types is predicted by a fit on the other half."""
    left = 0.0
    for half in (0, 1):
        fit = torch.arange(len(design)) % 2 == half
        weights = torch.linalg.lstsq(design[fit].flatten(0, 1), normal[fit].flatten(0, 1)).solution
        left += float((normal[~fit] - design[~fit] @ weights).square().sum())
    return left
