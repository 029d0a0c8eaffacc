"""Which concepts of two fits are the same: the best one-to-one assignment by the cosine of their directions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from anisoscope.tangent.concepts import concept_shares
from anisoscope.tangent.semi_nmf import SemiNMF

_SHARPNESS = 4  # of the weights that a concept's direction is averaged with
SAME = 0.5**0.5  # over half of a concept's squared length lies along the other


@dataclass(frozen=True)
class ConceptMatches:
    """The assignment of the concepts of two fits.

    Attributes:
        earlier: The earlier concept of each later one, of the pairs that are the same concept.
        mean: The mean cosine of all assigned pairs, the same or not: 1 if the fits agree.
        level: The mean cosine of concepts that are not assigned to each other, at least 0: what different concepts
            have in common, such as the mean of all rows.
    """

    earlier: Mapping[int, int]
    mean: float
    level: float


def match_concepts(later: Tensor, earlier: Tensor, same: float = SAME) -> ConceptMatches:
    """Assign the concepts of one fit to those of another.

    The assignment maximises the sum of cosines (Hungarian method). A pair is the same concept if its cosine c, after
    subtracting the level c₀ of different concepts, is large: (c − c₀)/(1 − c₀) ≥ `same`. So a mean that all concepts
    share does not make them equal. Order and lengths of the concepts do not matter. Their sign does: loadings are not
    negative, so the opposite direction is another concept.

    Args:
        later: Concepts (k, d).
        earlier: Concepts (m, d).
        same: The least corrected cosine of a pair that is the same concept.

    >>> matches = match_concepts(torch.tensor([[0.0, 2.0], [1.0, 0.0]]), torch.eye(2))
    >>> matches.earlier, matches.level
    ({0: 1, 1: 0}, 0.0)
    """
    cosine = _unit(later) @ _unit(earlier).T  # (k, m)
    rows, columns = linear_sum_assignment(cosine.numpy(), maximize=True)
    if not len(rows):
        return ConceptMatches({}, 0.0, 0.0)
    assigned = cosine[rows, columns]
    others = cosine.numel() - len(rows)
    level = max(0.0, float(cosine.sum() - assigned.sum()) / others) if others else 0.0
    pairs = {
        int(i): int(j)
        for i, j, c in zip(rows, columns, assigned.tolist(), strict=True)
        if c - level >= same * (1 - level) > 0
    }
    return ConceptMatches(pairs, float(assigned.mean()), level)


@dataclass(frozen=True)
class MergedConcepts:
    """The concepts of one fit without copies, the strongest first."""

    directions: Tensor  # (m, d) float64 on the CPU
    loadings: Tensor  # (n, m) float64 on the CPU
    shares: Tensor  # (m,) float64, of the squared length of all concepts as the rows use them


def merge_copies(x: Tensor, fit: SemiNMF, same: float = SAME) -> MergedConcepts:
    """Give each concept of a fit a direction that other fits can be compared with, and merge those that are the same.

    Many sets of concepts explain the same rows: any cone that holds all rows does. So a concept's direction is the
    mean of the rows, each weighted by the fourth power of the concept's share in it. If there are more concepts than
    the rows have, semi-NMF splits one into several; they have the same direction and are merged.

    Args:
        x: The rows (n, d).
        fit: Their factorisation.
        same: As in `match_concepts`.

    >>> rows = torch.tensor([[1.0, 0.0], [2.0, 0.0], [0.0, 3.0]])
    >>> split = SemiNMF(torch.eye(3), rows, (0.0,), 2.0)
    >>> merge_copies(rows, split).directions.tolist()
    [[0.0, 3.0], [1.5, 0.0]]
    """
    rows = x.detach().cpu().double()
    d = fit.concepts.detach().cpu().double()
    part = fit.loadings.detach().cpu().double() * torch.linalg.vector_norm(d, dim=1)  # (n, k) length of each part
    weight = (part / part.sum(1, keepdim=True).clamp(min=1e-300)) ** _SHARPNESS  # (n, k)
    unit = _unit(weight.T @ rows)
    cosine = unit @ unit.T  # (k, k)
    level = max(0.0, float(cosine.sum() - cosine.trace()) / max(1, cosine.numel() - len(cosine)))
    shares = concept_shares(fit.loadings, fit.concepts)
    groups: list[list[int]] = []  # the strongest of each first
    for k in shares.argsort(descending=True).tolist():
        alike = [g for g in groups if float(cosine[k, g[0]]) - level >= same * (1 - level)]
        if alike:
            max(alike, key=lambda g: float(cosine[k, g[0]])).append(k)
        else:
            groups.append([k])
    summed = torch.stack([weight[:, g].sum(1) for g in groups])  # (m, n)
    strength = torch.stack([shares[g].sum() for g in groups])
    order = strength.argsort(descending=True)
    return MergedConcepts(
        (summed @ rows / summed.sum(1, keepdim=True).clamp(min=1e-300))[order],
        torch.stack([part[:, g].sum(1) for g in groups], 1)[:, order],
        strength[order],
    )


def _unit(concepts: Tensor) -> Tensor:
    """Concepts of length one in float64 on the CPU; a concept of length zero stays zero."""
    return torch.nn.functional.normalize(concepts.detach().cpu().double(), dim=1, eps=1e-30)
