"""A downstream task without labels: predict from a window's states which part of the text it comes from."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from anisoscope.studies.claims.hidden_states import states
from anisoscope.studies.claims.run_sizes import Size
from anisoscope.studies.lab.token_data import Data

_PARTS = 4  # of the held-out text, whose documents differ in subject
_RIDGE = 1e-2  # of the mean variance
_FOLDS = 4


def probe_accuracy(model: nn.Module, data: Data, size: Size) -> float:
    """Return the accuracy of a linear probe that predicts the part of the text from a window's mean final state.

    The text has four parts of whole windows. Each fold of windows is predicted by a probe fitted on the others.
    Guessing gives one quarter.
    """
    context = int(size.switches["context"])
    ids = data.held_out(4 * size.windows, context)  # (windows, context), in the order of the text
    label = torch.arange(len(ids)) * _PARTS // len(ids)
    rows = states(model, [{"input_ids": part} for part in ids.split(64)], ["final"])["final"]
    x = rows.view(len(ids), context, -1).mean(1).double()  # (windows, d)
    fold = torch.arange(len(ids)) % _FOLDS
    right = sum(float((_predicted(x, label, fold == f) == label[fold == f]).sum()) for f in range(_FOLDS))
    return right / len(ids)


def _predicted(x: Tensor, label: Tensor, held: Tensor) -> Tensor:
    """Labels of the held-out rows by ridge regression on one-hot targets."""
    mean = x[~held].mean(0)
    known, unknown = x[~held] - mean, x[held] - mean
    target = nn.functional.one_hot(label[~held], _PARTS).double() - 1 / _PARTS
    gram = known.T @ known
    ridge = _RIDGE * gram.diagonal().mean() * torch.eye(len(gram), dtype=gram.dtype)
    return (unknown @ torch.linalg.solve(gram + ridge, known.T @ target)).argmax(1)
