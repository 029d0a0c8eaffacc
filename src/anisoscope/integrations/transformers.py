"""A callback for the Hugging Face Trainer.

    Trainer(..., callbacks=[GeometryCallback(held_out_batch, "runs/exp1")])

Gradients of hidden states are recorded during backward, before the Trainer clips. Gradients of weights are read at
`on_pre_optimizer_step`, the last moment they exist, after clipping, so their norms are those of clipped gradients; the
norm before clipping is recorded whenever the Trainer logs it. The loss is the one that the Trainer passes to backward:
trainers such as GRPO's do not train on the loss that the model returns.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

from torch import Tensor

from anisoscope.extras import needs
from anisoscope.integrations.tracker_maker import MicroBatchLoss, tracker_maker
from anisoscope.tracker import Tracker

with needs("hf", "the callback of the Trainer"):
    from accelerate import Accelerator
    from transformers import TrainerCallback


class GeometryCallback(TrainerCallback):
    """Tracks the geometry of the model that the Trainer trains.

    It serves every trainer that derives from it, such as those of TRL and of sentence-transformers. Steps are the
    trainer's `global_step`. A training that restarts from a checkpoint continues its run. An alert of a
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
        self._loss = MicroBatchLoss()
        self._loss_is_seen = False
        self._release: Callable[[], object] = lambda: None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        model = kwargs["model"]
        steps, tokenizer = state.max_steps or None, kwargs.get("processing_class")
        self.tracker = self._make_tracker(model, state.global_step or None, steps, tokenizer)
        keep = weakref.WeakMethod(self._keep_loss)
        self._release = weakref.finalize(self, observe_backward(lambda loss: (keep() or _ignore)(loss)))

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.tracker is not None:
            self.tracker.probe(state.global_step)

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.tracker is not None:
            optimizer = kwargs.get("optimizer")
            scaler = getattr(optimizer, "scaler", None)  # accelerate's optimizer holds it
            scale = 1.0 if scaler is None else float(scaler.get_scale())
            loss = self._loss.take()
            self.tracker.watch(state.global_step, loss=loss, optimizer=optimizer, scale=scale, weight_scale=1.0)

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        """Record what the Trainer logs: the validation loss, and the training loss if it was not seen in backward."""
        names = {"eval_loss": "validation_loss", "grad_norm": "gradient_norm_before_clipping"}
        if not self._loss_is_seen:
            names["loss"] = "train_loss"
        values = {names[name]: float(value) for name, value in (logs or {}).items() if name in names}
        if self.tracker is not None and values:
            self.tracker.log(state.global_step, **values)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.tracker is not None and control.should_save:
            self.tracker.flush()
        if self.tracker is not None and self.tracker.should_stop:
            control.should_training_stop = True

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._release()
        if self.tracker is not None:
            self.tracker.close()

    def _keep_loss(self, loss: Any) -> None:
        """Keep the loss of a micro-batch without reading it; the Trainer has divided it, so that they add up."""
        if isinstance(loss, Tensor):
            self._loss_is_seen = True
            self._loss.add(loss, is_share=True)


def observe_backward(note: Callable[[Any], object]) -> Callable[[], None]:
    """Call a function with every loss that is passed to `Accelerator.backward`, the Trainer's only way to it.

    Args:
        note: Called before backward.

    Returns:
        A function that ends this.
    """
    original = Accelerator.backward

    @wraps(original)
    def backward(self: Any, loss: Any, **kwargs: Any) -> None:
        note(loss)
        original(self, loss, **kwargs)

    def restore() -> None:
        if Accelerator.backward is backward:
            Accelerator.backward = original

    Accelerator.backward = backward
    return restore


def _ignore(_: Any) -> None:
    """Do nothing: the callback that kept losses no longer exists."""
