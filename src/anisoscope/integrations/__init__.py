"""Adapters for other training loops and loggers. None is required; each is imported when it is first used.

`transformers.GeometryCallback` is for the Hugging Face Trainer and those of TRL and sentence-transformers,
`lightning.GeometryCallback` for Lightning. A loop with
accelerate needs only the tracker. `torchmetrics.GeometryMetric` and `sklearn.TwoNN`, `sklearn.Whitening` and
`sklearn.AllButTheTop` have the interfaces of those libraries. Loggers take records:
`Tracker(..., log=[to_wandb(), to_mlflow()])`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from anisoscope.integrations.loggers import to_mlflow, to_tensorboard, to_trackio, to_wandb

_LOGGERS = ("to_mlflow", "to_tensorboard", "to_trackio", "to_wandb")
_ADAPTERS = ("lightning", "sklearn", "torchmetrics", "transformers")

__all__ = ["to_mlflow", "to_tensorboard", "to_trackio", "to_wandb"]


def __getattr__(name: str) -> Any:
    if name in _ADAPTERS:
        return import_module(f"anisoscope.integrations.{name}")
    if name in _LOGGERS:
        return getattr(import_module("anisoscope.integrations.loggers"), name)
    raise AttributeError(f"module 'anisoscope.integrations' has no attribute {name!r}")
