"""A downstream task of what is at hand: telling from a window's states which part of the text it comes from."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from anisoscope.studies.claims.sizes import Size
from anisoscope.studies.claims.states import states
from anisoscope.studies.lab.data import Data

_PARTS = 4  # of the held-out text, whose documents differ in subject
_RIDGE = 1e-2  # of the mean variance
_FOLDS = 4


def probe_accuracy(model: nn.Module, data: Data, size: Size) -> float:
    """The share of held-out windows whose part of the text a linear read-out of their mean final state tells.

    The text is cut into four parts of whole windows; each fold of windows is told by a read-out that was fitted on
    the others. Guessing gives one quarter.
    """
    context = int(size.switches["context"])
    ids = data.held_out(4 * size.windows, context)  # (windows, context), in the order of the text
    label = torch.arange(len(ids)) * _PARTS // len(ids)
    rows = states(model, [{"input_ids": part} for part in ids.split(64)], ["final"])["final"]
    x = rows.view(len(ids), context, -1).mean(1).double()  # (windows, d)
    fold = torch.arange(len(ids)) % _FOLDS
    right = sum(float((_told(x, label, fold == f) == label[fold == f]).sum()) for f in range(_FOLDS))
    return right / len(ids)


def _told(x: Tensor, label: Tensor, held: Tensor) -> Tensor:
    """The labels that ridge regression on one-hot targets gives to the rows held out."""
    mean = x[~held].mean(0)
    known, asked = x[~held] - mean, x[held] - mean
    target = nn.functional.one_hot(label[~held], _PARTS).double() - 1 / _PARTS
    gram = known.T @ known
    ridge = _RIDGE * gram.diagonal().mean() * torch.eye(len(gram), dtype=gram.dtype)
    return (asked @ torch.linalg.solve(gram + ridge, known.T @ target)).argmax(1)
