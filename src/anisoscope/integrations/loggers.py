"""Loggers: each function returns a callable that takes a list of records and logs their values.

Names are `geometry/<metric>/<site>`. By default a step logs smallest, median and largest value over the layers, so that
the number of curves does not grow with the model; `detail=True` logs every record. Metrics of heads become heat maps.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import Any

from anisoscope.errors import InputError
from anisoscope.extras import needs
from anisoscope.integrations.logged_values import PREFIX, by_step, flat_name, heat_maps
from anisoscope.records import Record
from anisoscope.tracker.journal import Log

_STEP = f"{PREFIX}/step"


def to_wandb(run: Any = None, *, detail: bool = False, images: bool = True) -> Log:
    """Log to Weights & Biases, against the metric `geometry/step`, since your own steps may be counted differently.

    Args:
        run: The run to log to; by default `wandb.run` at the time of logging.
        detail: Log every record instead of smallest, median and largest value over the layers.
        images: Log heat maps over layers and heads.

    Returns:
        A function of records, for `Tracker(..., log=[to_wandb()])`.

    Raises:
        InputError: wandb is not installed, or, when logging, no run is active.
    """
    wandb: Any = None if run is not None and not images else _require_module("wandb")
    prepared: list[Any] = []  # runs whose step metric is defined

    def log(records: list[Record]) -> None:
        target = run if run is not None or wandb is None else wandb.run
        if target is None:
            raise InputError("No wandb run is active. Call wandb.init() before training, or pass to_wandb(run).")
        if target not in prepared:
            target.define_metric(f"{PREFIX}/*", step_metric=_STEP)
            prepared.append(target)
        for step, values in by_step(records, detail=detail):
            target.log({**values, _STEP: step})
        for step, map_ in heat_maps(records) if images and wandb is not None else ():
            target.log({map_.name: wandb.Image(map_.pixels, caption=map_.caption), _STEP: step})

    return log


def to_tensorboard(to: Any, *, detail: bool = False, images: bool = True) -> Log:
    """Log to TensorBoard.

    Args:
        to: A `SummaryWriter`, or the folder of a new one.
        detail: Log every record instead of smallest, median and largest value over the layers.
        images: Log heat maps over layers and heads.

    Returns:
        A function of records, for `Tracker(..., log=[to_tensorboard("logs")])`.

    Raises:
        InputError: tensorboard is not installed.
    """
    writer = to
    if isinstance(to, str) or not callable(getattr(to, "add_scalar", None)):
        writer = _require_module("torch.utils.tensorboard", "tensorboard").SummaryWriter(str(to))

    def log(records: list[Record]) -> None:
        for step, values in by_step(records, detail=detail):
            for name, value in values.items():
                writer.add_scalar(name, value, step)
        for step, map_ in heat_maps(records) if images else ():
            writer.add_image(map_.name, map_.pixels, step, dataformats="HWC")
        writer.flush()

    return log


def to_mlflow(run_id: str | None = None, *, detail: bool = False, images: bool = True) -> Log:
    """Log to an MLflow run.

    Names are `geometry/<metric>/<site>.<policy>`: MLflow may store each as a file, so none can be a folder of another.

    Args:
        run_id: The run; by default the active one.
        detail: Log every record instead of smallest, median and largest value over the layers.
        images: Log heat maps over layers and heads, as images of the active run. They need Pillow.

    Returns:
        A function of records, for `Tracker(..., log=[to_mlflow()])`.

    Raises:
        InputError: mlflow is not installed.
    """
    mlflow = _require_module("mlflow", "mlflow-skinny")

    def log(records: list[Record]) -> None:
        for step, values in by_step(records, detail=detail):
            mlflow.log_metrics({flat_name(name): value for name, value in values.items()}, step=step, run_id=run_id)
        for step, map_ in heat_maps(records) if images and run_id is None else ():
            mlflow.log_image(map_.pixels, key=map_.name.replace("/", "."), step=step)

    return log


def to_trackio(*, detail: bool = False, images: bool = True) -> Log:
    """Log to the current run of trackio.

    Args:
        detail: Log every record instead of smallest, median and largest value over the layers.
        images: Log heat maps over layers and heads.

    Returns:
        A function of records, for `Tracker(..., log=[to_trackio()])`.

    Raises:
        InputError: trackio is not installed.
    """
    trackio = _require_module("trackio")

    def log(records: list[Record]) -> None:
        for step, values in by_step(records, detail=detail):
            trackio.log({**values, _STEP: step})
        for step, map_ in heat_maps(records) if images else ():
            trackio.log({map_.name: trackio.Image(map_.pixels, caption=map_.caption), _STEP: step})

    return log


def _require_module(module: str, package: str | None = None) -> ModuleType:
    """Import a library, or raise an error that names the package to install."""
    with needs(package or module, f"logging to {module}"):
        return import_module(module)
