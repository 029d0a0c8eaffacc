"""Token frequency: strata of equal size, and the distance of a token's centroid against how often it occurs."""

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
_TYPES = 8  # types below which a correlation says nothing


def token_counts(token: Tensor, table: Mapping[int, int] | None = None) -> Tensor:
    """How often each token's type occurs, (n,) float64: in a given table, else among these tokens.

    >>> token_counts(torch.tensor([5, 7, 5])).tolist()
    [2.0, 1.0, 2.0]
    """
    types, place, count = token.unique(return_inverse=True, return_counts=True)
    if table is not None:
        missing = [t for t in types.tolist() if t not in table]
        if len(missing) == len(types):
            raise InputError("none of the tokens is in the frequency table; expected token ids and their counts")
        count = torch.tensor([table.get(t, 0) for t in types.tolist()])
    return count[place].double()


def frequency_strata(token: Tensor, count: Tensor, key: Tensor) -> Tensor:
    """Marks (n, 3) of tokens whose type is rare, middling or frequent: thirds of the tokens, cut between types.

    Types are too coarse to make thirds exact, so the larger strata are thinned by key to the size of the smallest.
    Tokens without an id (−1) belong to none.
    """
    known = token >= 0
    types, place = token.clamp(min=0).unique(return_inverse=True)
    of_type = torch.zeros(len(types), dtype=torch.float64).scatter_(0, place, count)
    here = torch.bincount(place[known], minlength=len(types)).double()
    order = (of_type + types.double() / (2 * types.max() + 1)).argsort()  # ties in an order that is always the same
    middle = (here[order].cumsum(0) - here[order] / 2) / here.sum().clamp(min=1)  # of each type, as a share of tokens
    stratum = torch.empty_like(order).scatter_(0, order, (middle * len(STRATA)).long().clamp(max=len(STRATA) - 1))
    marks = (stratum[place][:, None] == torch.arange(len(STRATA))) & known[:, None]  # (n, 3)
    size = int(marks.sum(0).min())
    for s in range(len(STRATA)):
        members = marks[:, s].nonzero()[:, 0]
        marks[members[key[members].argsort()[size:]], s] = False
    return marks


def type_balanced(token: Tensor, key: Tensor, most: int) -> Tensor:
    """Places of at most `most` occurrences of each type, chosen by key: so a basis does not favour frequent types."""
    order = key.argsort()
    order = order[token[order].argsort(stable=True)]  # by type, and by key within a type
    sorted_token = token[order]
    start = torch.searchsorted(sorted_token, sorted_token)
    return order[torch.arange(len(order)) - start < most].sort().values


@dataclass(frozen=True)
class FrequencyDistance:
    """Correlations of log frequency with the distance of a type's centroid to the mean of all tokens.

    The published form is partly mechanical: ‖x̄_v − μ‖² carries σ²/n_v. `split_half` is the control: products of two
    halves of each type, from equally many occurrences, about a mean that counts types and not tokens; `p` permutes the
    types' frequencies, towards the published sign (frequent tokens nearer).
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
    """Log frequency against the centroids of types with at least four occurrences in x (n, d); None for too few."""
    types, place, here = token.unique(return_inverse=True, return_counts=True)
    kept = ((here >= _FEWEST) & (types >= 0)).nonzero()[:, 0]
    if len(kept) < _TYPES:
        return None
    log = torch.zeros(len(types), dtype=torch.float64).scatter_(0, place, count.double()).clamp(min=1).log()[kept]
    x = x.detach().cpu().double()
    sums, numbers = _by_type(x, place, block, len(types))  # (B, types, d), (B, types)
    whole = _distances(sums.sum(0), numbers.sum(0))[kept]
    used = [b for b in range(len(sums)) if int(numbers[b].sum())]
    without = torch.tensor(
        [
            [f(log, _distances(sums.sum(0) - sums[b], numbers.sum(0) - numbers[b])[kept]) for f in (pearson, spearman)]
            for b in used
        ]
    )  # (B, 2)
    sizes = tuple(int(numbers[b].sum()) for b in used)
    product = _split_half(x, place, key, kept)
    draw = torch.Generator().manual_seed(seed)
    nearer = torch.stack([-_pearson(log[torch.randperm(len(log), generator=draw)], product) for _ in range(DRAWS)])
    value = pearson(log, product)
    r, rho = pearson(log, whole), spearman(log, whole)
    return FrequencyDistance(
        pearson=r,
        pearson_error=jackknife_error(r, without[:, 0], sizes),
        spearman=rho,
        spearman_error=jackknife_error(rho, without[:, 1], sizes),
        split_half=value,
        p=permutation_p(-value, nearer),
        types=len(kept),
    )


def pearson(a: Tensor, b: Tensor) -> float:
    """The correlation of two columns.

    >>> round(pearson(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([6.0, 4.0, 2.0])), 6)
    -1.0
    """
    return float(_pearson(a.double(), b.double()))


def _pearson(a: Tensor, b: Tensor) -> Tensor:
    a, b = a - a.mean(), b - b.mean()
    return (a @ b) / (a.norm() * b.norm()).clamp(min=1e-300)


def _by_type(x: Tensor, place: Tensor, block: Tensor, types: int) -> tuple[Tensor, Tensor]:
    """Sums and numbers of rows by block and type."""
    blocks = int(block.max()) + 1
    flat = block * types + place
    sums = torch.zeros(blocks * types, x.shape[1], dtype=x.dtype).index_add_(0, flat, x)
    numbers = torch.bincount(flat, minlength=blocks * types).double()
    return sums.view(blocks, types, -1), numbers.view(blocks, types)


def _distances(sums: Tensor, numbers: Tensor) -> Tensor:
    """Distance of each type's centroid to the mean of all tokens, (types,)."""
    centre = sums.sum(0) / numbers.sum().clamp(min=1)
    return (sums / numbers.clamp(min=1)[:, None] - centre).norm(dim=1)


def _split_half(x: Tensor, place: Tensor, key: Tensor, kept: Tensor) -> Tensor:
    """(x̄ᴬ − μ)·(x̄ᴮ − μ) of each type from two halves of two occurrences each, μ the mean over types: (types,)."""
    chosen = type_balanced(place, key, _FEWEST)
    chosen = chosen[torch.isin(place[chosen], kept)]
    order = chosen[place[chosen].argsort(stable=True)]  # four rows a type, type after type
    four = x[order].view(len(kept), _FEWEST, -1)  # (types, 4, d)
    halves = four[:, ::2].mean(1), four[:, 1::2].mean(1)  # (types, d) each
    centre = four.mean((0, 1))
    return ((halves[0] - centre) * (halves[1] - centre)).sum(1)
