"""What makes the search exact: true distances of what was found, a certificate for each row, brute force."""

from __future__ import annotations

import torch
from torch import Tensor

from anisoscope.stats.knn_blocks import Found
from anisoscope.stats.knn_space import SearchSpace, chunks

TIE = 1e-10  # distances that differ by less than this share of themselves count as equal
_PAIRS = 1 << 18  # entries of pair differences at once: 2 MB of float64, which stay in cache


def true_distances(cloud: SearchSpace, row: Tensor, found: Found) -> tuple[Tensor, Tensor]:
    """Distances in float64 by direct differences from each of the m rows to what it found, ascending, with indices.

    Places where nothing was found hold inf and -1.
    """
    empty = found.half.isinf()  # (m, keep)
    index = found.index.masked_fill(empty, 0)  # (m, keep)
    distance = torch.empty(index.shape, dtype=torch.float64, device=cloud.x.device)
    step = max(1, _PAIRS // (index.shape[1] * cloud.dim))
    for start in range(0, len(row), step):
        part = slice(start, start + step)
        place = index[part]  # (step, keep)
        near = cloud.x.index_select(0, place.flatten()).double()  # twice as fast as x[place]
        difference = near.view(*place.shape, -1).sub_(cloud.x[row[part]].unsqueeze(1))  # (step, keep, d)
        distance[part] = torch.linalg.vector_norm(difference, dim=2)
    distance, place = distance.masked_fill_(empty, torch.inf).sort(dim=1, stable=True)
    return distance, index.masked_fill(empty, -1).gather(1, place)


def certified(found: Found, norm: Tensor, radius: Tensor, width: int) -> Tensor:
    """Which rows have surely found their nearest: (m,) bool.

    `norm` (m,) is ‖a_i‖, the row's distance from the centre; `radius` (m,) is r, the true distance of the k-th nearest
    of those found; `width` the length of the embedded rows.

    Let a_i be the exact centred row, y_i its rounding, u the unit roundoff, s = ‖a_i‖ + ‖a_j‖ and g = ½‖a_i − a_j‖².
    The block holds v, which differs from g by
    - rounding the rows: y_i − y_j is off by at most u·s, so g by at most u·s·‖a_i − a_j‖ + ½u²s² ≤ u·s² + ½u²s²;
    - rounding ½‖y_i‖², ½‖y_j‖² and their sum: 2u(½‖y_i‖² + ½‖y_j‖²) ≤ u·s²;
    - adding the `width` products to that sum. In any order, fused or not, each of the width + 1 terms passes at most
      width + 1 roundings: (width + 1)u(½‖y_i‖² + ½‖y_j‖² + Σ|y_il·y_jl|) ≤ (width + 1)u·½s² by Cauchy-Schwarz.
    Together |v − g| ≤ ½(width + 5)u·s²; the code takes width + 8 and 2 % more for terms of second order, and a term for
    products below the smallest normal number, which a processor may flush to zero.

    The bound is one of the pair: a row j that the search missed although it is nearer than r has ‖a_j‖ < ‖a_i‖ + r, so
    s < 2‖a_i‖ + r, however large the norms of other rows are. Its v would be below ½r² + ½(width + 8)u(2‖a_i‖ + r)².
    All v that were left out are at least the threshold, the largest that was kept: a threshold above this proves that
    no row was missed. The same holds when v belongs to a lower bound of g.
    """
    kind = torch.finfo(found.half.dtype)
    unit, threshold = kind.eps / 2, found.half[:, -1].double()  # inf: all rows were kept
    error = 0.51 * (width + 8) * unit * (2 * norm + radius).square() + (width + 2) * kind.tiny
    return (threshold >= 0.5 * (1 - 2 * TIE) * radius.square() + error) | threshold.isinf() | (radius == 0)


def brute_force(cloud: SearchSpace, row: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k nearest of each of the m rows by direct differences with every other row, in float64."""
    best = torch.full((len(row), k), torch.inf, dtype=torch.float64, device=cloud.x.device)
    index = torch.full((len(row), k), -1, device=cloud.x.device)
    query = cloud.x[row].double()  # (m, d)
    low, high = cloud.low[row][:, None], cloud.high[row][:, None]
    for part in chunks(len(cloud), cloud.dim):
        column = torch.arange(part.start, part.stop, device=cloud.x.device)  # (c,)
        distance = torch.cdist(query, cloud.x[part].double(), compute_mode="donot_use_mm_for_euclid_dist")  # (m, c)
        distance.masked_fill_((column >= low) & (column < high), torch.inf)
        best, place = torch.cat([best, distance], dim=1).topk(k, dim=1, largest=False)
        index = torch.cat([index, column.expand(len(row), -1)], dim=1).gather(1, place)
    return best, index.masked_fill(best.isinf(), -1)
