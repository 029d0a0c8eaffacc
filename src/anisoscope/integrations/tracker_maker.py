"""What the callbacks share: a tracker is made when training starts, its options are checked before, and the loss."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from anisoscope.errors import unknown
from anisoscope.tracker import Tracker

MakeTracker = Callable[..., Tracker]


def tracker_maker(probe: Any, out: str | Path, options: Mapping[str, Any]) -> MakeTracker:
    """Return a function from a model, the step that training resumes at, its length and its tokenizer to its tracker.

    Args:
        probe: A held-out batch, as for `Tracker`.
        out: The folder of the run.
        options: Other arguments of `Tracker`.

    Raises:
        InputError: An option does not exist; the nearest names are suggested.
    """
    known = [name for name in inspect.signature(Tracker).parameters if name not in ("model", "probe", "out")]
    for name in options:
        if name not in known:
            raise unknown("option", name, known)

    def make(model: nn.Module, resume: int | None, steps: int | None, tokenizer: Any = None) -> Tracker:
        decoder = tokenizer if hasattr(tokenizer, "decode") else None  # a processor of images has none
        return Tracker(model, probe, out, **{"resume": resume, "total_steps": steps, "tokenizer": decoder, **options})

    return make


class MicroBatchLoss:
    """The loss of a step, from its micro-batches; tensors stay on their device."""

    def __init__(self) -> None:
        self._losses: list[Tensor] = []
        self._are_shares = False

    def add(self, loss: Tensor, *, is_share: bool) -> None:
        """Add the loss of a micro-batch.

        Args:
            loss: The loss.
            is_share: It is divided by the size of the whole batch already, so that losses add up.
        """
        self._losses.append(loss.detach())
        self._are_shares = is_share

    def take(self) -> Tensor | None:
        """Return the loss of the step and forget it; None if there was none."""
        if not self._losses:
            return None
        losses = torch.stack([loss.float().mean() for loss in self._losses])
        self._losses = []
        return losses.sum() if self._are_shares else losses.mean()
