"""The Hugging Face Trainer: one callback.

    Trainer(..., callbacks=[GeometryCallback(held_out_batch, "runs/exp1")])

Gradients of hidden states are read while backward computes them, before the Trainer clips; weights' gradients are seen
at `on_pre_optimizer_step`, the last moment they are there, when they have been clipped: their lengths say so.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from anisoscope.tracker import Tracker


class GeometryCallback(TrainerCallback):
    """Follows the geometry of a model that the Trainer trains; the arguments are those of `Tracker`.

    A training that restarts from a checkpoint continues its run. A rule that says stop ends the training.
    """

    def __init__(self, probe: Any, out: str | Path, **options: Any) -> None:
        self.tracker: Tracker | None = None
        self._make = lambda model, resume: Tracker(model, probe, out, **{"resume": resume, **options})

    def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        self.tracker = self._make(given["model"], state.global_step or None)

    def on_step_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        if self.tracker is not None:
            self.tracker.probe(state.global_step)

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        if self.tracker is not None:
            scaler = getattr(given.get("optimizer"), "scaler", None)  # accelerate's optimizer carries it
            scale = 1.0 if scaler is None else float(scaler.get_scale())
            self.tracker.watch(state.global_step, scale=scale, weight_scale=1.0)

    def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        if self.tracker is not None and self.tracker.should_stop:
            control.should_training_stop = True

    def on_train_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        if self.tracker is not None:
            self.tracker.close()
