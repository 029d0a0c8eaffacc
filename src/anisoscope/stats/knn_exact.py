"""What makes the search exact: true distances of the candidates, a certificate for each row, and brute force."""

from __future__ import annotations

import torch
from torch import Tensor

from anisoscope.stats.knn_blocks import Candidates
from anisoscope.stats.knn_space import SearchSpace, chunks

TIE = 1e-10  # distances with a smaller relative difference count as equal
_PAIRS = 1 << 18  # entries of pair differences at once: 2 MB of float64, which stay in cache


def true_distances(space: SearchSpace, row: Tensor, candidates: Candidates) -> tuple[Tensor, Tensor]:
    """Return distances of each of the m rows to its candidates by float64 differences, ascending, and their indices.

    Missing candidates have distance inf and index -1.
    """
    empty = candidates.half.isinf()  # (m, keep)
    index = candidates.index.masked_fill(empty, 0)  # (m, keep)
    distance = torch.empty(index.shape, dtype=torch.float64, device=space.x.device)
    step = max(1, _PAIRS // (index.shape[1] * space.dim))
    for start in range(0, len(row), step):
        part = slice(start, start + step)
        order = index[part]  # (step, keep)
        near = space.x.index_select(0, order.flatten()).double()  # twice as fast as x[order]
        difference = near.view(*order.shape, -1).sub_(space.x[row[part]].unsqueeze(1))  # (step, keep, d)
        distance[part] = torch.linalg.vector_norm(difference, dim=2)
    distance, order = distance.masked_fill_(empty, torch.inf).sort(dim=1, stable=True)
    return distance, index.masked_fill(empty, -1).gather(1, order)


def certified(candidates: Candidates, norm: Tensor, radius: Tensor, width: int) -> Tensor:
    """Return for which rows the nearest are certainly among the candidates, (m,) bool.

    `norm` (m,) is ‖a_i‖, the distance of the row from the centre; `radius` (m,) is r, the true distance of the k-th
    nearest candidate; `width` is the number of dimensions of the embedded rows.

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
    kind = torch.finfo(candidates.half.dtype)
    unit, threshold = kind.eps / 2, candidates.half[:, -1].double()  # inf: all rows were kept
    error = 0.51 * (width + 8) * unit * (2 * norm + radius).square() + (width + 2) * kind.tiny
    return (threshold >= 0.5 * (1 - 2 * TIE) * radius.square() + error) | threshold.isinf() | (radius == 0)


def brute_force(space: SearchSpace, row: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the k nearest rows of each of the m rows by float64 differences with all other rows."""
    best = torch.full((len(row), k), torch.inf, dtype=torch.float64, device=space.x.device)
    index = torch.full((len(row), k), -1, device=space.x.device)
    query = space.x[row].double()  # (m, d)
    low, high = space.low[row][:, None], space.high[row][:, None]
    for part in chunks(len(space), space.dim):
        column = torch.arange(part.start, part.stop, device=space.x.device)  # (c,)
        distance = torch.cdist(query, space.x[part].double(), compute_mode="donot_use_mm_for_euclid_dist")  # (m, c)
        distance.masked_fill_((column >= low) & (column < high), torch.inf)
        best, order = torch.cat([best, distance], dim=1).topk(k, dim=1, largest=False)
        index = torch.cat([index, column.expand(len(row), -1)], dim=1).gather(1, order)
    return best, index.masked_fill(best.isinf(), -1)
