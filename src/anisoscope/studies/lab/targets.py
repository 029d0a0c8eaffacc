"""Training targets: the next token, masked tokens, and the isotropy of states."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from anisoscope.metrics.isotropy import isoscore_of

_IGNORED = -100


def next_token(ids: Tensor) -> dict[str, Tensor]:
    """Return the window as inputs and labels; the model shifts the labels."""
    return {"input_ids": ids, "labels": ids}


def masked_token(ids: Tensor, mask_id: int, rate: float, *seed: int) -> dict[str, Tensor]:
    """Mask tokens as BERT does: of the predicted tokens 80 % become the mask, 10 % another token, 10 % stay.

    The choice is a function of the seeds alone, so that any step can be repeated.

    Args:
        ids: Windows (b, T).
        mask_id: Id of the mask, the last one of the vocabulary.
        rate: Share of tokens to predict; at least one token is predicted.
        *seed: Seeds.
    """
    random = np.random.default_rng(seed)
    predicted = random.random(ids.shape) < rate  # (b, T)
    predicted.flat[random.integers(ids.numel())] = True
    fate = random.random(ids.shape)  # (b, T)
    other = torch.from_numpy(random.integers(0, mask_id, ids.shape))  # (b, T); the mask is the last id
    inputs = torch.where(torch.from_numpy(predicted & (fate < 0.8)), mask_id, ids)
    inputs = torch.where(torch.from_numpy(predicted & (fate >= 0.9)), other, inputs)
    return {"input_ids": inputs, "labels": torch.where(torch.from_numpy(predicted), ids, _IGNORED)}


def isoscore_star(x: Tensor, shrinkage: float) -> Tensor:
    """Return IsoScore* of rows (n, d), differentiable (see `metrics.isotropy.isoscore_of`).

    >>> round(float(isoscore_star(torch.eye(4).repeat(2, 1) - 0.25, 0.0)), 4)
    0.6667
    """
    x = x.float() - x.float().mean(0)
    gram = x.mT @ x  # (d, d): the covariance times n, which cancels in the participation ratio (tr C)²/‖C‖²
    ratio = gram.diagonal().sum().square() / gram.square().sum().clamp(min=1e-30)
    return isoscore_of(ratio.clamp(min=1.0), x.shape[1], shrinkage)  # below 1 only if all rows are the same
