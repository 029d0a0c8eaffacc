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
    length = z.square().sum(0) * concepts.double().square().sum(1).cpu()  # (k,) squared length of each concept
    share = length / length.sum().clamp(min=1e-300)
    types, type_of, often = token.unique(return_inverse=True, return_counts=True)
    mean = torch.zeros(len(types), z.shape[1], dtype=z.dtype).index_add_(0, type_of, z) / often[:, None]
    mean[often < min(_OFTEN, int(often.max()))] = 0
    out = []
    for k in share.argsort(descending=True).tolist():
        best = mean[:, k].topk(min(TOKENS, len(types)))
        words = [decode([int(types[i])]) for i, value in zip(best.indices, best.values, strict=True) if value > 0]
        rows = z[:, k].topk(min(CONTEXTS, len(z))).indices.tolist()
        out.append(Concept(k, float(share[k]), tuple(words), tuple(decode(context(row, _AROUND)) for row in rows)))
    return out
