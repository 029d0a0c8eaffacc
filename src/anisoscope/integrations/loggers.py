"""Loggers: each function returns a callable that takes a list of records and logs their values."""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib import import_module
from itertools import groupby
from operator import attrgetter
from types import ModuleType
from typing import Any

from anisoscope.errors import InputError
from anisoscope.records import Record
from anisoscope.tracker.journal import Log

_PREFIX = "geometry"


def to_wandb(run: Any = None) -> Log:
    """Log to Weights & Biases, against the metric `geometry/step`, since your own steps may be counted differently.

    Args:
        run: The run to log to; by default `wandb.run` at the time of logging.

    Raises:
        InputError: wandb is not installed, or, when logging, no run is active.
    """
    wandb = None if run is not None else _require_module("wandb")
    step_name = f"{_PREFIX}/step"
    prepared: list[Any] = []  # runs whose step metric is defined

    def log(records: list[Record]) -> None:
        target = run if wandb is None else wandb.run
        if target is None:
            raise InputError("No wandb run is active. Call wandb.init() before training, or pass to_wandb(run).")
        if target not in prepared:
            target.define_metric(f"{_PREFIX}/*", step_metric=step_name)
            prepared.append(target)
        for step, values in by_step(records):
            target.log({**values, step_name: step})

    return log


def to_tensorboard(to: Any) -> Log:
    """Log to TensorBoard: to a `SummaryWriter`, or to a new one in the folder `to`."""
    writer = to
    if isinstance(to, str) or not callable(getattr(to, "add_scalar", None)):
        writer = _require_module("torch.utils.tensorboard", "tensorboard").SummaryWriter(str(to))

    def log(records: list[Record]) -> None:
        for step, values in by_step(records):
            for name, value in values.items():
                writer.add_scalar(name, value, step)
        writer.flush()

    return log


def to_mlflow(run_id: str | None = None) -> Log:
    """Log to an MLflow run; by default to the active one."""
    mlflow = _require_module("mlflow", "mlflow-skinny")

    def log(records: list[Record]) -> None:
        for step, values in by_step(records):
            mlflow.log_metrics(values, step=step, run_id=run_id)

    return log


def to_trackio() -> Log:
    """Log to the current run of trackio."""
    trackio = _require_module("trackio")

    def log(records: list[Record]) -> None:
        for step, values in by_step(records):
            trackio.log({**values, f"{_PREFIX}/step": step})

    return log


def by_step(records: Sequence[Record]) -> list[tuple[int, dict[str, float]]]:
    """Return the values of records by step and name, without records that have no value."""
    return [
        (step, {name_of(record): record.value for record in group if record.value is not None})
        for step, group in groupby(sorted(records, key=attrgetter("step")), key=attrgetter("step"))
    ]


def name_of(record: Record) -> str:
    """Return a name that every logger accepts and that no two records of one step share.

    >>> name_of(Record("resid.3", "gradient_energy", 0.4, index=32, variant={"proxy": "pca", "basis": "frozen"}))
    'geometry/gradient_energy/resid.3/frozen/pca/32'
    """
    variant = [str(entry) for _, entry in sorted(record.variant.items())]
    tokens = [] if record.tokens == "all" else [record.tokens]
    index = [] if record.index is None else [str(record.index)]
    parts = [_PREFIX, record.metric, record.site, *tokens, *variant, *index]
    return "/".join(re.sub(r"[^\w.\- ]", "_", part) for part in parts)


def _require_module(module: str, package: str | None = None) -> ModuleType:
    """Import a library, or raise an error that names the package to install."""
    try:
        return import_module(module)
    except ImportError as error:
        raise InputError(f"{module} cannot be imported ({error}). Run: pip install {package or module}") from error
