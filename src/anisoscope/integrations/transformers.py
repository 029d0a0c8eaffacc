"""A callback for the Hugging Face Trainer.

    Trainer(..., callbacks=[GeometryCallback(held_out_batch, "runs/exp1")])

Gradients of hidden states are recorded during backward, before the Trainer clips. Gradients of weights are read at
`on_pre_optimizer_step`, the last moment they exist, after clipping, so their norms are those of clipped gradients.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from anisoscope.integrations.tracker_maker import tracker_maker
from anisoscope.tracker import Tracker


class GeometryCallback(TrainerCallback):
    """Tracks the geometry of the model that the Trainer trains.

    Steps are the trainer's `global_step`. A training that restarts from a checkpoint continues its run. An alert of a
    rule wrapped in `alerts.stop` ends the training.

    Args:
        probe: A held-out batch, as for `Tracker`.
        out: The folder of the run.
        options: Other arguments of `Tracker`.

    Raises:
        InputError: An option does not exist.
    """

    def __init__(self, probe: Any, out: str | Path, **options: Any) -> None:
        self.tracker: Tracker | None = None
        self._make_tracker = tracker_maker(probe, out, options)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.tracker = self._make_tracker(kwargs["model"], state.global_step or None)

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.tracker is not None:
            self.tracker.probe(state.global_step)

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.tracker is not None:
            scaler = getattr(kwargs.get("optimizer"), "scaler", None)  # accelerate's optimizer holds it
            scale = 1.0 if scaler is None else float(scaler.get_scale())
            self.tracker.watch(state.global_step, scale=scale, weight_scale=1.0)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.tracker is not None and self.tracker.should_stop:
            control.should_training_stop = True

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.tracker is not None:
            self.tracker.close()
