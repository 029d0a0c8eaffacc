"""Concepts in words: for each concept of semi-NMF, the tokens and contexts that load on it most."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from anisoscope.tangent.semi_nmf import loadings_on

TOKENS, CONTEXTS = 6, 3
_AROUND = 6  # tokens of context on either side
_OFTEN = 3  # occurrences from which a token counts as typical of a concept
_TYPICAL = 0.25  # least mean loading of a typical token, as a share of that of the most typical one


@dataclass(frozen=True)
class Concept:
    """One concept: its share of the loadings' squared length, its typical tokens, and the contexts that load most."""

    number: int
    share: float
    tokens: tuple[str, ...]
    contexts: tuple[str, ...]


def read_concepts(
    x: Tensor,
    concepts: Tensor,
    token: Tensor,
    context: Callable[[int, int], Sequence[int]],
    decode: Callable[[Sequence[int]], str],
) -> list[Concept]:
    """Describe concepts by tokens and contexts.

    Args:
        x: Rows (n, d).
        concepts: The concepts (k, d).
        token: The token ids of the rows, (n,).
        context: From a row and a number of tokens to the ids around the row, with the row's id in the middle.
        decode: From token ids to text.

    Returns:
        The concepts, strongest first.
    """
    z = loadings_on(x, concepts).double().cpu()  # (n, k)
    share = concept_shares(z, concepts)
    typical = typical_tokens(z, token)
    out = []
    for k in share.argsort(descending=True).tolist():
        words = [decode([each]) for each in typical[k]]
        rows = z[:, k].topk(min(CONTEXTS, len(z))).indices.tolist()
        out.append(Concept(k, float(share[k]), tuple(words), tuple(decode(context(row, _AROUND)) for row in rows)))
    return out


def concept_shares(loadings: Tensor, concepts: Tensor) -> Tensor:
    """The share of each concept in the squared length of all of them as the rows use them, (k,) float64 on the CPU.

    Args:
        loadings: (n, k).
        concepts: (k, d).
    """
    length = loadings.double().square().sum(0).cpu() * concepts.double().square().sum(1).cpu()  # (k,)
    return length / length.sum().clamp(min=1e-300)


def typical_tokens(loadings: Tensor, token: Tensor) -> list[list[int]]:
    """The ids of the tokens that load most on each concept on average; tokens that occur once or twice do not count.

    Args:
        loadings: (n, k).
        token: The token ids of the rows, (n,).

    >>> typical_tokens(torch.tensor([[1.0], [3.0], [0.0]]), torch.tensor([7, 5, 9]))
    [[5, 7]]
    """
    z = loadings.double().cpu()
    types, type_of, often = token.unique(return_inverse=True, return_counts=True)
    mean = torch.zeros(len(types), z.shape[1], dtype=z.dtype).index_add_(0, type_of, z) / often[:, None]
    mean[often < min(_OFTEN, int(often.max()))] = 0
    best = mean.topk(min(TOKENS, len(types)), dim=0)  # (tokens, k)
    least = _TYPICAL * best.values[0]  # (k,)
    return [
        [int(types[i]) for i, value in zip(best.indices[:, k], best.values[:, k], strict=True) if value > least[k]]
        for k in range(z.shape[1])
    ]
