"""Records of every training step: loss, learning rate, gradient norm and update/weight ratio, by layer and in total.

Numbers stay on the device until they are read: at due steps, at the end, and after `READ_AFTER` steps at the latest.
Reading waits for an accelerator, so it happens less often there than on the CPU.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from anisoscope.data.inputs import device_of
from anisoscope.distributed import Ranks, is_sharded
from anisoscope.errors import InputError
from anisoscope.hooks import Layout
from anisoscope.records import Record
from anisoscope.tracker.step_scalars import ALL, StepScalars, StepValues

READ_AFTER = {"cpu": 1}  # steps after which scalars are read at the latest, by kind of device: rules then see them
READ_AFTER_ELSEWHERE = 50
LAYERS_EVERY = 10  # steps; a record per layer and step would fill the run
LOOP = "loop"
CARDS: dict[str, str] = {
    "train_loss": "Loss of the training batch.",
    "validation_loss": "Loss on validation data, as the loop logged it.",
    "learning_rate": "Learning rate of the first parameter group.",
    "update_ratio": "Length of the change of the weights in one step over the length of the weights.",
}


@dataclass(frozen=True)
class LoggedValue:
    """A number of one step whose value may still be on a device."""

    step: int
    name: str
    value: Tensor | float


class LoopScalars:
    """Collects the scalars of every step without waiting for the device, and turns them into records.

    Args:
        model: The bare model.
        layout: Its layout.
        ranks: The processes of the job. Only rank 0 collects, unless parameters are sharded.
        optimizer: The optimiser; None to find the one that trains the model at its first step.
        seed: Of the sampled weights.
    """

    def __init__(
        self, model: nn.Module, layout: Layout, ranks: Ranks, optimizer: Optimizer | None = None, seed: int = 0
    ) -> None:
        self._ranks = ranks
        self._sharded = is_sharded(model)
        trained = any(p.requires_grad for p in model.parameters())
        needed = trained and (ranks.is_first or self._sharded)
        self._scalars = StepScalars(model, layout, ranks=ranks, seed=seed) if needed else None
        self._logged: list[LoggedValue] = []
        self._started: int | None = None  # the first step since the last flush
        self._finder = OptimizerFinder(model, optimizer)
        self._most = READ_AFTER.get(device_of(model).type, READ_AFTER_ELSEWHERE)

    @property
    def together(self) -> bool:
        """Whether all ranks must flush together, because each holds a part of the parameters."""
        return self._sharded and self._ranks.world > 1

    def before_forward(self) -> None:
        """Note how far the last step has moved the weights."""
        if self._scalars is not None:
            self._scalars.after_update()

    def after_backward(
        self, step: int, *, loss: Tensor | float | None, scale: float, optimizer: Optimizer | None
    ) -> None:
        """Note loss, learning rate and gradients of a step."""
        self._started = step if self._started is None else self._started
        if optimizer is not None:
            self._finder.optimizer = optimizer
        if self._scalars is not None:
            self._scalars.after_backward(step, scale=scale)
        if self._ranks.is_first:
            self.log(step, {"train_loss": loss, "learning_rate": self._finder.learning_rate()})

    def log(self, step: int, values: Mapping[str, Tensor | float | None]) -> None:
        """Keep numbers of a step. Tensors stay on their device; None is left out."""
        for name, value in values.items():
            if isinstance(value, Tensor):
                value = value.detach()
                value = value.clone() if value.numel() == 1 else value.float().mean()
            if value is not None:
                self._logged.append(LoggedValue(step, name, value))

    def is_full(self, step: int) -> bool:
        """Whether it is time to read the numbers."""
        return self._started is not None and step - self._started >= self._most

    def flush(self, run: str, due: Callable[[int], bool] = lambda step: False) -> list[Record]:
        """Return the records of all steps since the last call, in the order of steps.

        Args:
            run: The name of the run.
            due: Steps whose layers are recorded in any case. Otherwise every tenth step is.
        """
        self._started = None
        values = [] if self._scalars is None else self._scalars.read()
        logged, self._logged = self._logged, []
        records = [record for each in values for record in _step_records(each, layers=_has_layers(each.step, due))]
        records += [_record(each.step, LOOP, each.name, float(each.value)) for each in logged]
        return [replace(record, run=run) for record in sorted(records, key=lambda record: record.step)]

    def close(self) -> None:
        """Stop looking for the optimiser."""
        self._finder.close()


class OptimizerFinder:
    """The optimiser of a model: the one that was passed, or the first that steps over one of its parameters."""

    def __init__(self, model: nn.Module, optimizer: Optimizer | None) -> None:
        self.optimizer = optimizer
        self._parameters = {id(p) for p in model.parameters()}
        self.close: Callable[[], object] = lambda: None
        if optimizer is None:
            reference = weakref.WeakMethod(self._find)

            def look(candidate: Optimizer, *_: Any) -> None:
                find = reference()
                if find is not None:
                    find(candidate)

            hook = register_optimizer_step_pre_hook(look)
            self.close = weakref.finalize(self, hook.remove)

    def learning_rate(self) -> Tensor | float | None:
        """Return the learning rate of the first parameter group; None if there is no optimiser yet."""
        groups = getattr(self.optimizer, "param_groups", None)
        rate = groups[0].get("lr") if groups else None
        return rate if isinstance(rate, Tensor | float | int) else None

    def _find(self, candidate: Optimizer) -> None:
        if self.optimizer is None and any(
            id(p) in self._parameters for g in candidate.param_groups for p in g["params"]
        ):
            self.optimizer = candidate
        if self.optimizer is not None:
            self.close()


def require_names(values: Mapping[str, Any]) -> None:
    """Refuse names that no logger can group.

    Raises:
        InputError: A name is not an identifier, or a value is no number.
    """
    for name, value in values.items():
        if not name.isidentifier():
            raise InputError(f"{name!r} is no name for a value. Use letters, digits and underscores: validation_loss.")
        if not isinstance(value, Tensor | float | int):
            raise InputError(f"{name} is a {type(value).__name__}. Log a number or a tensor of one number.")


def scalar_cards() -> dict[str, dict[str, Any]]:
    """The descriptions of these metrics for a run, in the form of `Metric.card`."""
    shared = {
        "family": "training",
        "low": 0,
        "high": None,
        "ignores": [],
        "needs": [],
        "paper": "anisoscope",
        "version": 1,
    }
    more: dict[str, Any] = {"notable": None, "row_effect": "any", "headline": {}}
    return {name: {"name": name, "meaning": text, "text": text, **shared, **more} for name, text in CARDS.items()}


def _has_layers(step: int, due: Callable[[int], bool]) -> bool:
    return step % LAYERS_EVERY == 0 or due(step)


def _step_records(values: StepValues, *, layers: bool) -> Iterator[Record]:
    for metric in ("gradient_norm", "update_ratio"):
        for site, number in getattr(values, metric).items():
            if site == ALL:
                yield _record(values.step, LOOP, metric, number)
            elif layers:
                yield _record(values.step, site, metric, number)


def _record(step: int, site: str, metric: str, number: float) -> Record:
    if math.isfinite(number):
        return Record(site, metric, number, step=step)
    return Record(site, metric, None, step=step, note=f"{metric} is {number}")
