"""Records to the loggers of other people: each function gives a callable that takes a list of records."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from importlib import import_module
from itertools import groupby
from operator import attrgetter
from types import ModuleType
from typing import Any

from anisoscope.errors import InputError
from anisoscope.records import Record

Log = Callable[[list[Record]], None]
_PREFIX = "geometry"


def to_wandb(run: Any = None) -> Log:
    """To a Weights & Biases run, the current one unless told; against a step of ours: yours may count otherwise."""
    wandb = None if run is not None else found("wandb")
    step_name = f"{_PREFIX}/step"
    told: list[Any] = []  # runs that know of the step

    def log(records: list[Record]) -> None:
        to = run if wandb is None else wandb.run
        if to is None:
            raise InputError("there is no wandb run; call wandb.init() before training, or pass to_wandb(run)")
        if to not in told:
            to.define_metric(f"{_PREFIX}/*", step_metric=step_name)
            told.append(to)
        for step, values in by_step(records):
            to.log({**values, step_name: step})

    return log


def to_tensorboard(to: Any) -> Log:
    """To a SummaryWriter, or to a new one in this folder."""
    writer = to
    if isinstance(to, str) or not callable(getattr(to, "add_scalar", None)):
        writer = found("torch.utils.tensorboard", "tensorboard").SummaryWriter(str(to))

    def log(records: list[Record]) -> None:
        for step, values in by_step(records):
            for name, value in values.items():
                writer.add_scalar(name, value, step)
        writer.flush()

    return log


def to_mlflow(run_id: str | None = None) -> Log:
    """To an MLflow run, the active one unless told."""
    mlflow = found("mlflow", "mlflow-skinny")

    def log(records: list[Record]) -> None:
        for step, values in by_step(records):
            mlflow.log_metrics(values, step=step, run_id=run_id)

    return log


def to_trackio() -> Log:
    """To the current run of trackio."""
    trackio = found("trackio")

    def log(records: list[Record]) -> None:
        for step, values in by_step(records):
            trackio.log({**values, f"{_PREFIX}/step": step})

    return log


def by_step(records: Sequence[Record]) -> list[tuple[int, dict[str, float]]]:
    """The values of records by step and name; what has no value is left out."""
    return [
        (step, {name_of(record): record.value for record in some if record.value is not None})
        for step, some in groupby(sorted(records, key=attrgetter("step")), key=attrgetter("step"))
    ]


def name_of(record: Record) -> str:
    """A name that any logger takes and that no two records of one step share.

    >>> name_of(Record("resid.3", "gradient_energy", 0.4, index=32, variant={"proxy": "pca", "basis": "frozen"}))
    'geometry/gradient_energy/resid.3/frozen/pca/32'
    """
    variant = [str(entry) for _, entry in sorted(record.variant.items())]
    tokens = [] if record.tokens == "all" else [record.tokens]
    index = [] if record.index is None else [str(record.index)]
    parts = [_PREFIX, record.metric, record.site, *tokens, *variant, *index]
    return "/".join(re.sub(r"[^\w.\- ]", "_", part) for part in parts)


def found(module: str, package: str | None = None) -> ModuleType:
    """A library that is installed, or an error that says how to get it."""
    try:
        return import_module(module)
    except ImportError as why:
        raise InputError(f"{module} cannot be imported ({why}); pip install {package or module}") from why
