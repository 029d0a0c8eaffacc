"""A callback for Lightning.

lightning.Trainer(callbacks=[GeometryCallback(held_out_batch, "runs/exp1")])
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from anisoscope.errors import unknown
from anisoscope.extras import needs
from anisoscope.integrations.tracker_maker import MicroBatchLoss, tracker_maker
from anisoscope.tracker import Tracker

with needs("lightning", "the callback of Lightning"):
    from lightning.pytorch import Callback


class GeometryCallback(Callback):
    """Tracks the geometry of the model inside a LightningModule.

    Steps are the trainer's `global_step`. A training that restarts from a checkpoint continues its run. An alert of a
    rule wrapped in `alerts.stop` ends the training.

    Args:
        probe: A held-out batch, as for `Tracker`.
        out: The folder of the run.
        module: The path of the model inside the LightningModule: the part whose forward `training_step` calls. By
            default the only child with parameters, or the LightningModule itself if there are several.
        options: Other arguments of `Tracker`.

    Raises:
        InputError: An option does not exist.
    """

    def __init__(self, probe: Any, out: str | Path, *, module: str | None = None, **options: Any) -> None:
        self.tracker: Tracker | None = None
        self._module = module
        self._make_tracker = tracker_maker(probe, out, options)
        self._step: int | None = None
        self._loss = MicroBatchLoss()

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        steps = trainer.estimated_stepping_batches
        total = int(steps) if math.isfinite(steps) and steps > 0 else None
        self.tracker = self._make_tracker(model_inside(pl_module, self._module), trainer.global_step or None, total)

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        # one step may have several batches; the hooks must be in place before the first of them
        if self.tracker is not None and trainer.global_step != self._step:
            self._step = trainer.global_step
            self.tracker.probe(self._step)

    def on_before_backward(self, trainer: Any, pl_module: Any, loss: Any) -> None:
        if isinstance(loss, Tensor):
            self._loss.add(loss, is_share=True)  # Lightning has divided it by the number of micro-batches

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        loss = trainer.callback_metrics.get("val_loss")
        if self.tracker is not None and loss is not None and not trainer.sanity_checking:
            self.tracker.log(trainer.global_step, validation_loss=loss)

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        if self.tracker is not None and self._step is not None:
            scaler = getattr(trainer.precision_plugin, "scaler", None)
            scale = 1.0 if scaler is None else float(scaler.get_scale())
            # weights' gradients are unscaled by now
            self.tracker.watch(self._step, loss=self._loss.take(), optimizer=optimizer, scale=scale, weight_scale=1.0)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if self.tracker is not None and self.tracker.should_stop:
            trainer.should_stop = True

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        if self.tracker is not None:
            self.tracker.flush()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self._close()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self._close()

    def _close(self) -> None:
        if self.tracker is not None:
            self.tracker.close()


def model_inside(pl_module: nn.Module, path: str | None) -> nn.Module:
    """Return the module of a LightningModule that is tracked.

    Raises:
        InputError: There is no module at this path.
    """
    if path is not None:
        known = dict(pl_module.named_modules())
        if path not in known:
            raise unknown("module", path, known)
        return known[path]
    children = [child for child in pl_module.children() if any(True for _ in child.parameters())]
    return children[0] if len(children) == 1 else pl_module
