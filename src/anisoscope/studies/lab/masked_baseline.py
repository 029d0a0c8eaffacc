"""The baseline of a masked model: how well the neighbours of a masked token predict it, by counts of pairs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
from torch import Tensor

from anisoscope.studies.lab.token_data import Data, Ids, bigram_law, unigram_law

_IGNORED = -100


def masked_ngram_loss(data: Data, batches: Iterable[Mapping[str, Tensor]], *, causal: bool) -> float:
    """Return the loss of pairs of neighbours at the masked positions, in nats per token.

    A token b between a and c has the probability p(b | a, c) ∝ p(b | a) · p(c | b), with the pairs of the training
    text. A neighbour that is masked too, or lies beyond the window, tells nothing; neither does the right one if the
    model is causal.

    Args:
        data: The text.
        batches: `input_ids` with masks, and `labels`, as `masked_token` makes them.
        causal: Whether the model sees only the tokens to the left.
    """
    alone, pairs = np.log(unigram_law(data)), np.log(bigram_law(data))  # (V,), (V, V): ln p(b | a) at [a, b]
    losses: list[Ids] = []
    for batch in batches:
        seen, labels = batch["input_ids"].numpy(), batch["labels"].numpy()  # (b, T) each
        row, position = np.nonzero(labels != _IGNORED)
        left = _neighbour(seen, row, position - 1, data.mask_id)
        right = np.full_like(left, -1) if causal else _neighbour(seen, row, position + 1, data.mask_id)
        score = np.where((left >= 0)[:, None], pairs[left], alone)  # (masked, V)
        score = score + np.where((right >= 0)[:, None], pairs[:, right].T, 0.0)
        score -= np.logaddexp.reduce(score, axis=1, keepdims=True)
        losses.append(-score[np.arange(len(row)), labels[row, position]])
    return float(np.concatenate(losses).mean())


def _neighbour(seen: Ids, row: Ids, position: Ids, mask: int) -> Ids:
    """The token at each position; −1 if it is masked or lies outside the window."""
    inside = (position >= 0) & (position < seen.shape[1])
    token = seen[row, np.clip(position, 0, seen.shape[1] - 1)]
    return np.where(inside & (token != mask), token, -1)
