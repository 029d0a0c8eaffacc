"""Token frequency: strata of equal size, and the distance of a type's centroid against how often it occurs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from anisoscope.errors import InputError
from anisoscope.stats.inference import spearman
from anisoscope.tangent.energy import jackknife_error
from anisoscope.tangent.permutation import permutation_p

STRATA = ("rare", "middle", "frequent")
DRAWS = 499
_FEWEST = 4  # occurrences of a type that its centroid, and the two halves of it, are made of
_TYPES = 8  # fewest types for a correlation


def token_counts(token: Tensor, table: Mapping[int, int] | None = None) -> Tensor:
    """How often the type of each token occurs, (n,) float64.

    Args:
        token: Token ids (n,).
        table: Counts by token id; None to count these tokens.

    Raises:
        InputError: If none of the tokens is in the table.

    >>> token_counts(torch.tensor([5, 7, 5])).tolist()
    [2.0, 1.0, 2.0]
    """
    types, type_of, count = token.unique(return_inverse=True, return_counts=True)
    if table is not None:
        missing = [t for t in types.tolist() if t not in table]
        if len(missing) == len(types):
            raise InputError(
                "None of the tokens is in the frequency table. It must map token ids of this tokenizer to counts."
            )
        count = torch.tensor([table.get(t, 0) for t in types.tolist()])
    return count[type_of].double()


def frequency_strata(token: Tensor, count: Tensor, key: Tensor) -> Tensor:
    """Mark tokens whose type is rare, middling or frequent: thirds of the tokens, cut between types.

    Types are too coarse for exact thirds, so the larger strata are thinned by key to the size of the smallest. Tokens
    without an id (−1) are in none.

    Args:
        token: Token ids (n,).
        count: How often the type of each token occurs, (n,).
        key: Token keys (n,).

    Returns:
        Marks (n, 3).
    """
    known = token >= 0
    types, type_of = token.clamp(min=0).unique(return_inverse=True)
    count_of_type = torch.zeros(len(types), dtype=torch.float64).scatter_(0, type_of, count)
    tokens_of_type = torch.bincount(type_of[known], minlength=len(types)).double()
    order = (count_of_type + types.double() / (2 * types.max() + 1)).argsort()  # ties in a fixed order
    ordered = tokens_of_type[order]
    middle = (ordered.cumsum(0) - ordered / 2) / tokens_of_type.sum().clamp(min=1)  # of each type, in shares of tokens
    stratum = torch.empty_like(order).scatter_(0, order, (middle * len(STRATA)).long().clamp(max=len(STRATA) - 1))
    marks = (stratum[type_of][:, None] == torch.arange(len(STRATA))) & known[:, None]  # (n, 3)
    size = int(marks.sum(0).min())
    for s in range(len(STRATA)):
        members = marks[:, s].nonzero()[:, 0]
        marks[members[key[members].argsort()[size:]], s] = False
    return marks


def type_balanced(token: Tensor, key: Tensor, most: int) -> Tensor:
    """The indices of at most `most` occurrences of each type, chosen by key, so that a basis favours no type."""
    order = key.argsort()
    order = order[token[order].argsort(stable=True)]  # by type, and by key within a type
    sorted_token = token[order]
    start = torch.searchsorted(sorted_token, sorted_token)
    return order[torch.arange(len(order)) - start < most].sort().values


@dataclass(frozen=True)
class FrequencyDistance:
    """Correlations of log frequency with the distance of a type's centroid to the mean of all tokens.

    The published form is partly mechanical: ‖x̄_v − μ‖² contains σ²/n_v. `split_half` is the control: products of two
    halves of each type, from equally many occurrences, about a mean over types instead of tokens. `p` permutes the
    types' frequencies, towards the published sign (frequent tokens are nearer).
    """

    pearson: float
    pearson_error: float | None
    spearman: float
    spearman_error: float | None
    split_half: float
    p: float
    types: int


def frequency_distance(
    x: Tensor, token: Tensor, count: Tensor, key: Tensor, block: Tensor, *, seed: int = 0
) -> FrequencyDistance | None:
    """Correlate log frequency with the distance of centroids, over types with at least four occurrences.

    Args:
        x: Rows (n, d).
        token: Their token ids (n,).
        count: How often each token's type occurs, (n,).
        key: Token keys (n,).
        block: The block of each token, for the error bars.
        seed: The seed of the permutations.

    Returns:
        The correlations, or None for fewer than eight types.
    """
    types, type_of, occurrences = token.unique(return_inverse=True, return_counts=True)
    kept = ((occurrences >= _FEWEST) & (types >= 0)).nonzero()[:, 0]
    if len(kept) < _TYPES:
        return None
    log = torch.zeros(len(types), dtype=torch.float64).scatter_(0, type_of, count.double()).clamp(min=1).log()[kept]
    x = x.detach().cpu().double()
    sums, numbers = _by_type(x, type_of, block, len(types))  # (B, types, d), (B, types)
    whole = _distances(sums.sum(0), numbers.sum(0))[kept]
    used = [b for b in range(len(sums)) if int(numbers[b].sum())]
    replicates = [_distances(sums.sum(0) - sums[b], numbers.sum(0) - numbers[b])[kept] for b in used]
    without = torch.tensor([[pearson(log, distance), spearman(log, distance)] for distance in replicates])  # (B, 2)
    sizes = tuple(int(numbers[b].sum()) for b in used)
    product = _split_half(x, type_of, key, kept)
    draw = torch.Generator().manual_seed(seed)
    permuted = torch.stack([-_pearson(log[torch.randperm(len(log), generator=draw)], product) for _ in range(DRAWS)])
    split_half = pearson(log, product)
    r, rho = pearson(log, whole), spearman(log, whole)
    return FrequencyDistance(
        pearson=r,
        pearson_error=jackknife_error(r, without[:, 0], sizes),
        spearman=rho,
        spearman_error=jackknife_error(rho, without[:, 1], sizes),
        split_half=split_half,
        p=permutation_p(-split_half, permuted),
        types=len(kept),
    )


def pearson(a: Tensor, b: Tensor) -> float:
    """Pearson's correlation; 0 if one of the two does not vary.

    >>> round(pearson(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([6.0, 4.0, 2.0])), 6)
    -1.0
    """
    return float(_pearson(a.double(), b.double()))


def _pearson(a: Tensor, b: Tensor) -> Tensor:
    a, b = a - a.mean(), b - b.mean()
    return (a @ b) / (a.norm() * b.norm()).clamp(min=1e-300)


def _by_type(x: Tensor, type_of: Tensor, block: Tensor, types: int) -> tuple[Tensor, Tensor]:
    """Sums and numbers of rows by block and type."""
    blocks = int(block.max()) + 1
    flat = block * types + type_of
    sums = torch.zeros(blocks * types, x.shape[1], dtype=x.dtype).index_add_(0, flat, x)
    numbers = torch.bincount(flat, minlength=blocks * types).double()
    return sums.view(blocks, types, -1), numbers.view(blocks, types)


def _distances(sums: Tensor, numbers: Tensor) -> Tensor:
    """Distance of each type's centroid to the mean of all tokens, (types,)."""
    centre = sums.sum(0) / numbers.sum().clamp(min=1)
    return (sums / numbers.clamp(min=1)[:, None] - centre).norm(dim=1)


def _split_half(x: Tensor, type_of: Tensor, key: Tensor, kept: Tensor) -> Tensor:
    """(x̄ᴬ − μ)·(x̄ᴮ − μ) of each type from two halves of two occurrences each, μ the mean over types: (types,)."""
    chosen = type_balanced(type_of, key, _FEWEST)
    chosen = chosen[torch.isin(type_of[chosen], kept)]
    order = chosen[type_of[chosen].argsort(stable=True)]  # four rows per type, type after type
    four = x[order].view(len(kept), _FEWEST, -1)  # (types, 4, d)
    halves = four[:, ::2].mean(1), four[:, 1::2].mean(1)  # (types, d) each
    centre = four.mean((0, 1))
    return ((halves[0] - centre) * (halves[1] - centre)).sum(1)
