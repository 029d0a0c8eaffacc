"""The training loop: the same switches give the same steps to the bit, also after an interruption."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.optim import Optimizer

from anisoscope.errors import InputError, StoreError, first_line
from anisoscope.schedule import Schedule, any_of, every, log_spaced
from anisoscope.store.files import WriterLock, file_errors, parse_errors
from anisoscope.store.run import Run
from anisoscope.studies.lab.bf16 import require_bf16
from anisoscope.studies.lab.experiment import Experiment, Recipe
from anisoscope.studies.lab.interrupts import Interrupts
from anisoscope.studies.lab.interventions import Interventions
from anisoscope.studies.lab.losses import add_losses, drop_losses, read_losses
from anisoscope.studies.lab.optimization import learning_rate, make_optimizer
from anisoscope.studies.lab.targets import masked_token, next_token
from anisoscope.studies.lab.token_data import Data, open_data
from anisoscope.studies.lab.training_run import LOCK, create_training, experiment_of, is_training, require_same_training
from anisoscope.studies.lab.training_state import STATE, is_begun, load_state, save_checkpoint, save_state
from anisoscope.studies.lab.transformer import Transformer

HELD_OUT = 32  # windows for the validation loss and for an observer's probes
_LOSS_EVERY = 10  # steps between two checks of the loss: each makes a GPU wait
_STATE_EVERY = 500  # steps between two saved states, at most
_WINDOWS, _MASKS, _VALIDATION = range(3)  # independent streams of one seed


class Observer(Protocol):
    """An object that follows a training, such as a Tracker: called before the forward pass and after backward."""

    @property
    def should_stop(self) -> bool: ...
    def probe(self, step: int) -> None: ...
    def watch(self, step: int, *, loss: Tensor | None = None, optimizer: Optimizer | None = None) -> None: ...
    def log(self, step: int, **values: Tensor | float) -> None: ...
    def flush(self) -> None: ...
    def close(self) -> None: ...


Observe = Callable[[Transformer, dict[str, Tensor], Path, int], Observer]  # model, held-out batch, folder, first step
OnStep = Callable[[int, float], None]  # called with the number of steps done and the latest loss


@dataclass(frozen=True)
class Trained:
    """How a training ended: its last step, why it stopped early if it did, and its losses in nats per token."""

    folder: Path
    experiment: Experiment
    step: int
    stopped: str | None  # "interrupted", "diverged", "observer"; None if it is complete
    losses: list[dict[str, Any]]  # rows with step, train (since the previous row), validation
    baselines: dict[str, float]
    seconds: float

    @property
    def validation(self) -> float | None:
        """The last validation loss."""
        return self.losses[-1]["validation"] if self.losses else None


# --- starting and resuming ----------------------------------------------------------------------------------------


def train(
    experiment: Experiment,
    out: str | Path,
    *,
    data: str | Path | None = None,
    observe: Observe | None = None,
    checkpoints: Schedule | None = None,
    device: str | None = None,
    on_step: OnStep | None = None,
    command: str | None = None,
) -> Trained:
    """Train a model into a run folder: run.json, losses.jsonl, checkpoints/step-N, data/, state.pt.

    If the folder holds the same training, it is resumed from its last state; the result equals that of an
    uninterrupted training. A complete one is returned at once. Ctrl-C saves a checkpoint and returns. A loss that is
    not finite stops the training; the run keeps the checkpoints before it.

    Args:
        experiment: Model and training.
        out: The run folder: new, empty, or a training of the same experiment.
        data: Folder of the tokenised text, which runs may share; by default in the run folder.
        observe: Creates the observer of the training, such as `tracked(steps)`.
        checkpoints: Steps at which the model is saved; by default log-spaced. The last step is always saved.
        device: Device, such as `cuda:1`; by default a GPU if there is one.
        on_step: Called now and then with the number of steps done and the latest loss.
        command: The command line, for the run's information.

    Raises:
        InputError: The text, the device or a switch cannot be used.
        StoreError: The folder holds another run, or files that are not a run.

    Example: `train(changed(Experiment(), {"kind": "encoder", "steps": 200}), "runs/encoder").validation`.
    """
    folder = Path(out)
    if is_training(folder):
        require_same_training(experiment, folder, track=observe is not None)
        info = Run.open(folder).info
        if info.get("ended", {}).get("step") == experiment.recipe.steps:
            steps, fitted = experiment.recipe.steps, experiment_of(folder)
            return Trained(folder, fitted, steps, None, read_losses(folder), info["baselines"], 0.0)
    else:
        target = _device(device)  # checked before anything is written
        if experiment.recipe.bf16:
            require_bf16(target.type)
        create_training(experiment, folder, None if data is None else Path(data), observe is not None, command)
    return _run(folder, observe, checkpoints, device, on_step)


# --- the loop -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Parts:
    """Everything that a step needs."""

    experiment: Experiment
    folder: Path
    data: Data
    device: torch.device
    model: Transformer
    optimizer: Optimizer
    interventions: Interventions
    held_out: Tensor  # (windows, context)
    validation: list[dict[str, Tensor]]  # the same windows with targets

    @property
    def recipe(self) -> Recipe:
        return self.experiment.recipe


def _run(
    folder: Path,
    observe: Observe | None,
    checkpoints: Schedule | None,
    device: str | None,
    on_step: OnStep | None,
) -> Trained:
    started = time.monotonic()
    experiment, target, info = experiment_of(folder), _device(device), Run.open(folder).info
    devices = [target] if target.type == "cuda" else []
    # All randomness is seeded here, and the caller's random state is restored afterwards.
    with torch.random.fork_rng(devices=devices), ExitStack() as stack:
        with file_errors("lock", folder):
            stack.callback(WriterLock(folder / LOCK).release)
        state = load_state(folder) if is_begun(folder) else None
        torch.manual_seed(experiment.recipe.seed)
        parts = _assemble(experiment, folder, open_data(folder / info["data"]["folder"]), target)
        stack.enter_context(parts.interventions)
        start, pending = _restored(parts, state) if state is not None else (0, [])
        observer = None if observe is None else observe(parts.model, {"input_ids": parts.held_out}, folder, start)
        if observer is not None:
            stack.callback(observer.close)
        interrupts = stack.enter_context(Interrupts())
        step, stopped = _steps(parts, start, pending, observer, interrupts, checkpoints or log_spaced(), on_step)
    with Run.create(folder, resume=True) as run:
        run.update_info(ended={"step": step, "stopped": stopped})
    seconds = time.monotonic() - started
    return Trained(folder, experiment, step, stopped, read_losses(folder), info["baselines"], seconds)


def _steps(
    parts: _Parts,
    start: int,
    pending: list[Tensor],
    observer: Observer | None,
    interrupts: Interrupts,
    checkpoints: Schedule,
    on_step: OnStep | None,
) -> tuple[int, str | None]:
    """Run the steps from `start` on; return the last step and why it stopped. `pending` losses have no row yet."""
    last = parts.recipe.steps
    validated = any_of(log_spaced(), every(max(1, last // 10)), checkpoints)  # so that checkpoints have a loss
    drop_losses(parts.folder, start)
    for step in range(start, last + 1):
        ends = step == last or interrupts.interrupted or (observer is not None and observer.should_stop)
        saves = checkpoints(step) or ends
        if pending and (saves or validated(step) or step % _LOSS_EVERY == 0):
            finite = torch.stack(pending).isfinite()
            if not bool(finite.all()):
                return step - len(pending) + int((~finite).int().argmax()), "diverged"
            if on_step is not None:
                on_step(step, float(pending[-1]))
        if saves or step % _STATE_EVERY == 0:
            if observer is not None:
                observer.flush()  # a training that resumes here does not repeat the steps before
            save_state(parts.folder, _state(parts, step, pending))
        if validated(step) or step == last:
            losses = _losses(parts, step, pending)
            add_losses(parts.folder, losses)
            if observer is not None:
                observer.log(step, validation_loss=losses["validation"])
            pending = []
        if saves:
            save_checkpoint(parts.model, parts.data, parts.folder, step)
        if step == last:
            if observer is not None:
                observer.probe(step)  # measure the final model too
            return step, None
        if ends:
            return step, "interrupted" if interrupts.interrupted else "observer"
        pending.append(_step(parts, step, observer))
    raise AssertionError("the last step ends the loop")


def _step(parts: _Parts, step: int, observer: Observer | None) -> Tensor:
    """One update of the weights; return its loss without the terms of interventions."""
    recipe, model = parts.recipe, parts.model
    if observer is not None:
        observer.probe(step)
    parts.interventions.before_step(step)
    for group in parts.optimizer.param_groups:
        group["lr"] = learning_rate(recipe, step)
    total = torch.zeros((), device=parts.device)
    for part in range(recipe.accumulate):
        batch = _batch(parts, step, part)
        with torch.autocast(parts.device.type, torch.bfloat16, enabled=recipe.bf16):
            loss = model(**batch).loss
            objective = loss + parts.interventions.penalty()
        (objective / recipe.accumulate).backward()
        total += loss.detach() / recipe.accumulate
    if observer is not None:
        observer.watch(step, loss=total, optimizer=parts.optimizer)
    if recipe.clip:
        torch.nn.utils.clip_grad_norm_(model.parameters(), recipe.clip)
    parts.optimizer.step()
    parts.optimizer.zero_grad()
    return total


# --- parts --------------------------------------------------------------------------------------------------------


def _assemble(experiment: Experiment, folder: Path, data: Data, device: torch.device) -> _Parts:
    config, recipe = experiment.model, experiment.recipe
    model = Transformer(config, recipe.seed).to(device).train()
    held_out = data.held_out(HELD_OUT, config.context).to(device)
    interventions = Interventions(model, recipe, held_out)
    optimizer, validation = make_optimizer(model, recipe), validation_batches(experiment, data)
    return _Parts(experiment, folder, data, device, model, optimizer, interventions, held_out, validation)


def _batch(parts: _Parts, step: int, part: int) -> dict[str, Tensor]:
    """The inputs of a step, a function of seed and step alone: equal in every twin, and after an interruption."""
    recipe, context = parts.recipe, parts.experiment.model.context
    ids = parts.data.windows(recipe.batch, context, recipe.seed, _WINDOWS, step, part)
    batch = _with_targets(parts.experiment, parts.data, ids, recipe.seed, _MASKS, step, part)
    return {name: x.to(parts.device) for name, x in batch.items()}


def _with_targets(experiment: Experiment, data: Data, ids: Tensor, *seed: int) -> dict[str, Tensor]:
    if experiment.model.objective == "next":
        return next_token(ids)
    return masked_token(ids, data.mask_id, experiment.recipe.masking, *seed)


def validation_batches(experiment: Experiment, data: Data) -> list[dict[str, Tensor]]:
    """Return the held-out windows on which the validation loss is computed, with the same masks at every step."""
    windows = data.held_out(HELD_OUT, experiment.model.context).split(experiment.recipe.batch)
    seed = experiment.recipe.seed
    return [_with_targets(experiment, data, ids, seed, _VALIDATION, number) for number, ids in enumerate(windows)]


def _device(name: str | None) -> torch.device:
    try:
        device = torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise InputError(f"No device {name!r} ({first_line(error)}). Give cpu, cuda or cuda:1.") from error
    return device


# --- states -------------------------------------------------------------------------------------------------------


def _state(parts: _Parts, step: int, pending: list[Tensor]) -> dict[str, Any]:
    """Everything that later steps depend on; windows and masks are functions of the step."""
    return {
        "step": step,
        "model": parts.model.state_dict(),
        "optimizer": parts.optimizer.state_dict(),
        "random": torch.get_rng_state(),
        "random_cuda": torch.cuda.get_rng_state(parts.device) if parts.device.type == "cuda" else None,
        "bases": parts.interventions.bases,
        "pending": [float(loss) for loss in pending],
    }


def _restored(parts: _Parts, state: dict[str, Any]) -> tuple[int, list[Tensor]]:
    with parse_errors(parts.folder / STATE, "train again in another folder", StoreError):
        start, pending = _restore(parts, state)
        if type(start) is not int or not 0 <= start <= parts.recipe.steps:
            raise ValueError(f"step {start!r} of {parts.recipe.steps}")
    return start, pending


def _restore(parts: _Parts, state: dict[str, Any]) -> tuple[int, list[Tensor]]:
    parts.model.load_state_dict(state["model"])
    parts.optimizer.load_state_dict(state["optimizer"])
    torch.set_rng_state(state["random"])
    if state["random_cuda"] is not None and parts.device.type == "cuda":
        torch.cuda.set_rng_state(state["random_cuda"], parts.device)
    parts.interventions.bases = [basis.to(parts.device) for basis in state["bases"]]
    return state["step"], [torch.tensor(loss, device=parts.device) for loss in state["pending"]]


# --- validation ---------------------------------------------------------------------------------------------------


def _losses(parts: _Parts, step: int, pending: list[Tensor]) -> dict[str, Any]:
    train = float(torch.stack(pending).mean()) if pending else None
    return {"step": step, "train": train, "validation": _validation(parts)}


@torch.no_grad()
def _validation(parts: _Parts) -> float:
    """The mean loss over the held-out windows without dropout; masks are the same at every step."""
    parts.model.eval()
    total = 0.0
    for batch in parts.validation:
        inputs = {name: x.to(parts.device) for name, x in batch.items()}
        with torch.autocast(parts.device.type, torch.bfloat16, enabled=parts.recipe.bf16):
            total += float(parts.model(**inputs).loss) * len(inputs["input_ids"])
    parts.model.train()
    return total / len(parts.held_out)
