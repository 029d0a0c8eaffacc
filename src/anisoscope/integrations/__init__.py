"""Other people's training loops and loggers; each is imported when it is asked for, and none is required.

`transformers.GeometryCallback` for the Hugging Face Trainer, `lightning.GeometryCallback` for Lightning; a loop with
accelerate needs nothing but the tracker. Loggers take records: `Tracker(..., log=[to_wandb(), to_mlflow()])`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from anisoscope.integrations.loggers import to_mlflow, to_tensorboard, to_trackio, to_wandb

_LOGGERS = ("to_mlflow", "to_tensorboard", "to_trackio", "to_wandb")
_LOOPS = ("lightning", "transformers")

__all__ = ["to_mlflow", "to_tensorboard", "to_trackio", "to_wandb"]


def __getattr__(name: str) -> Any:
    if name in _LOOPS:
        return import_module(f"anisoscope.integrations.{name}")
    if name in _LOGGERS:
        return getattr(import_module("anisoscope.integrations.loggers"), name)
    raise AttributeError(f"module 'anisoscope.integrations' has no attribute {name!r}")
