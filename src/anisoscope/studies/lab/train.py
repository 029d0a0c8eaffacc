"""The training loop: the same steps from the same switches, to the bit, also after a break."""

from __future__ import annotations

import math
import os
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from anisoscope.errors import InputError, StoreError, first_line
from anisoscope.schedule import Schedule, any_of, every, log_spaced
from anisoscope.store.files import WriterLock, explained, understood
from anisoscope.store.run import Run
from anisoscope.studies.lab.bf16 import require_bf16
from anisoscope.studies.lab.corpora import open_text
from anisoscope.studies.lab.data import Data, open_data, prepare
from anisoscope.studies.lab.experiment import Experiment, Recipe
from anisoscope.studies.lab.interrupts import Interrupts
from anisoscope.studies.lab.interventions import Interventions
from anisoscope.studies.lab.losses import add_losses, drop_losses, read_losses
from anisoscope.studies.lab.targets import masked_token, next_token
from anisoscope.studies.lab.training_state import STATE, is_begun, load_state, save_checkpoint, save_state
from anisoscope.studies.lab.transformer import Transformer

DATA = "data"
_LOCK = "training.lock"  # two trainings of one run would mix; the run's own lock is the observer's
HELD_OUT = 32  # windows by which a model is judged, and which an observer probes
_LOOK = 10  # steps between two looks at the loss: each makes a GPU wait
_STATE = 500  # steps between two states, at most
_WINDOWS, _MASKS, _JUDGING = range(3)  # uses of one seed that must not meet


class Observer(Protocol):
    """Who looks on while a model trains, such as a Tracker: before the forward, and between backward and step."""

    @property
    def should_stop(self) -> bool: ...
    def probe(self, step: int) -> None: ...
    def watch(self, step: int) -> None: ...
    def close(self) -> None: ...


Observe = Callable[[Transformer, dict[str, Tensor], Path, int], Observer]  # model, held-out batch, folder, first step
Told = Callable[[int, float], None]  # the steps done and the latest loss


@dataclass(frozen=True)
class Trained:
    """How a training ended: at which step, why if before the last one, and its losses in nats a token."""

    folder: Path
    experiment: Experiment
    step: int
    stopped: str | None  # "interrupted", "diverged", "observer", or None: it came to its end
    losses: list[dict[str, Any]]  # step, train (since the row before), validation
    baselines: dict[str, float]
    seconds: float

    @property
    def validation(self) -> float | None:
        return self.losses[-1]["validation"] if self.losses else None


# --- starting and going on ----------------------------------------------------------------------------------------


def train(
    experiment: Experiment,
    out: str | Path,
    *,
    data: str | Path | None = None,
    observe: Observe | None = None,
    checkpoints: Schedule | None = None,
    device: str | None = None,
    told: Told | None = None,
    command: str | None = None,
) -> Trained:
    """Train a model into a new run folder: run.json, losses.jsonl, checkpoints/step-N, data/, state.pt.

    `data` is another folder for the tokenised text, which several runs may share; `observe` makes whoever looks on;
    `checkpoints` says at which steps a model is kept (log-spaced; the last one always is). Ctrl-C saves a checkpoint
    and returns; a loss that is not finite stops the training and leaves the run as it was.

    Example: `train(changed(Experiment(), {"kind": "encoder", "steps": 200}), "runs/encoder").validation`.
    """
    folder, recipe = Path(out), experiment.recipe
    if folder.is_dir() and any(folder.iterdir()):
        raise InputError(f"{folder} exists already; go on with it (--resume), or choose another folder")
    place_of_work = _device(device)  # looked at before anything is written
    if recipe.bf16:
        require_bf16(place_of_work.type)
    with explained("create", folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
    # Tokenised aside first: a text that cannot be used must leave no half-made run behind.
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as aside:
        place = Path(aside) / DATA if data is None else Path(data)
        context = experiment.model.context
        text = prepare(open_text(recipe.text), place, tokens=recipe.tokens, symbols=recipe.symbols, context=context)
        experiment = _fitted(experiment, text)
        home = DATA if data is None else os.path.relpath(place, folder)
        info = {
            "kind": "lab",
            "experiment": experiment.to_json(),
            "data": {**text.info, "folder": home},
            "baselines": text.baselines,
            "libraries": {"torch": torch.__version__},
        }
        # Whole or not at all: a kill leaves no run that could neither go on nor be started again.
        made = Path(aside) / "run"
        Run.create(made, info, name=folder.name, command=command).close()
        if data is None:
            os.replace(place, made / DATA)
        with explained("create", folder):
            if folder.is_dir():
                folder.rmdir()  # empty; the system may not put one folder in the place of another
            os.replace(made, folder)
    return _run(folder, observe, checkpoints, device, told)


def resume_training(
    out: str | Path,
    *,
    observe: Observe | None = None,
    checkpoints: Schedule | None = None,
    device: str | None = None,
    told: Told | None = None,
) -> Trained:
    """Go on with a run from its last state; in the end it is the run that an uninterrupted training would have made."""
    return _run(Path(out), observe, checkpoints, device, told)


def experiment_of(out: str | Path) -> Experiment:
    """The experiment of a run folder."""
    info = Run.open(out).info
    if info.get("kind") != "lab":
        raise InputError(f"{out} is a run, but no training of the lab; choose another folder")
    with understood(Path(out) / "run.json", "restore it from a copy, or train again in another folder", StoreError):
        return Experiment.from_json(info["experiment"])


# --- the loop -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Parts:
    """Everything that a step works with."""

    experiment: Experiment
    folder: Path
    data: Data
    device: torch.device
    model: Transformer
    optimizer: torch.optim.Optimizer
    interventions: Interventions
    held_out: Tensor  # (windows, context)

    @property
    def recipe(self) -> Recipe:
        return self.experiment.recipe


def _run(
    folder: Path,
    observe: Observe | None,
    checkpoints: Schedule | None,
    device: str | None,
    told: Told | None,
) -> Trained:
    started = time.monotonic()
    experiment, place, info = experiment_of(folder), _device(device), Run.open(folder).info
    devices = [place] if place.type == "cuda" else []
    # All randomness is seeded here, and the caller's own random state comes back afterwards.
    with torch.random.fork_rng(devices=devices), ExitStack() as stack:
        with explained("lock", folder):
            stack.callback(WriterLock(folder / _LOCK).release)
        state = load_state(folder) if is_begun(folder) else None
        torch.manual_seed(experiment.recipe.seed)
        parts = _assemble(experiment, folder, open_data(folder / info["data"]["folder"]), place)
        stack.enter_context(parts.interventions)
        start, pending = _restored(parts, state) if state is not None else (0, [])
        observer = None if observe is None else observe(parts.model, {"input_ids": parts.held_out}, folder, start)
        if observer is not None:
            stack.callback(observer.close)
        asked = stack.enter_context(Interrupts())
        step, stopped = _steps(parts, start, pending, observer, asked, checkpoints or log_spaced(), told)
    with Run.create(folder, resume=True) as run:
        run.update_info(ended={"step": step, "stopped": stopped})
    seconds = time.monotonic() - started
    return Trained(folder, experiment, step, stopped, read_losses(folder), info["baselines"], seconds)


def _steps(
    parts: _Parts,
    start: int,
    pending: list[Tensor],
    observer: Observer | None,
    asked: Interrupts,
    kept: Schedule,
    told: Told | None,
) -> tuple[int, str | None]:
    """The steps from `start` on; how far they came, and why no further. `pending` are losses of no row yet."""
    last = parts.recipe.steps
    judged = any_of(log_spaced(), every(max(1, last // 10)))
    drop_losses(parts.folder, start)
    for step in range(start, last + 1):
        ends = step == last or asked.interrupted or (observer is not None and observer.should_stop)
        keeps = kept(step) or ends
        if pending and (keeps or judged(step) or step % _LOOK == 0):
            finite = torch.stack(pending).isfinite()
            if not bool(finite.all()):
                return step - len(pending) + int((~finite).int().argmax()), "diverged"
            if told is not None:
                told(step, float(pending[-1]))
        if keeps or step % _STATE == 0:
            save_state(parts.folder, _state(parts, step, pending))
        if judged(step) or step == last:
            add_losses(parts.folder, _losses(parts, step, pending))
            pending = []
        if keeps:
            save_checkpoint(parts.model, parts.data, parts.folder, step)
        if step == last:
            if observer is not None:
                observer.probe(step)  # the finished model is looked at too
            return step, None
        if ends:
            return step, "interrupted" if asked.interrupted else "observer"
        pending.append(_step(parts, step, observer))
    raise AssertionError("the last step ends the loop")


def _step(parts: _Parts, step: int, observer: Observer | None) -> Tensor:
    """One update of the weights; the loss it came from, without what interventions add."""
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
            asked = loss + parts.interventions.penalty()
        (asked / recipe.accumulate).backward()
        total += loss.detach() / recipe.accumulate
    if observer is not None:
        observer.watch(step)
    if recipe.clip:
        torch.nn.utils.clip_grad_norm_(model.parameters(), recipe.clip)
    parts.optimizer.step()
    parts.optimizer.zero_grad()
    return total


def learning_rate(recipe: Recipe, step: int) -> float:
    """Rises over the warm-up, then falls as a cosine to `floor` times its height.

    >>> recipe = Recipe(steps=100, warmup=0.1, learning_rate=1.0, floor=0.0)
    >>> [round(learning_rate(recipe, step), 3) for step in (0, 9, 55, 100)]
    [0.1, 1.0, 0.5, 0.0]
    """
    rising = round(recipe.warmup * recipe.steps)
    if step < rising:
        return recipe.learning_rate * (step + 1) / rising
    turn = math.pi * (step - rising) / max(1, recipe.steps - rising)
    return recipe.learning_rate * (recipe.floor + (1 - recipe.floor) * (1 + math.cos(turn)) / 2)


# --- parts --------------------------------------------------------------------------------------------------------


def _assemble(experiment: Experiment, folder: Path, data: Data, device: torch.device) -> _Parts:
    config, recipe = experiment.model, experiment.recipe
    model = Transformer(config, recipe.seed).to(device).train()
    held_out = data.held_out(HELD_OUT, config.context).to(device)
    interventions = Interventions(model, recipe, held_out)
    return _Parts(experiment, folder, data, device, model, make_optimizer(model, recipe), interventions, held_out)


def _fitted(experiment: Experiment, data: Data) -> Experiment:
    """The experiment with a vocabulary that holds the text's."""
    rows = experiment.model.vocabulary
    if rows is not None and rows < data.vocabulary:
        raise InputError(
            f"the text has {data.vocabulary} tokens, the model's embedding {rows} rows; leave vocabulary out, "
            f"or have fewer tokens (symbols={max(2, rows - 2)})"
        )
    return replace(experiment, model=replace(experiment.model, vocabulary=rows or data.vocabulary))


def make_optimizer(model: Transformer, recipe: Recipe) -> torch.optim.Optimizer:
    """AdamW, Adam or SGD with momentum; the weights of norms and all biases do not decay."""
    matrices = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim <= 1]
    groups = [{"params": matrices, "weight_decay": recipe.weight_decay}, {"params": others, "weight_decay": 0.0}]
    if recipe.optimizer == "sgd":
        return torch.optim.SGD(groups, lr=recipe.learning_rate, momentum=0.9)
    kind = torch.optim.AdamW if recipe.optimizer == "adamw" else torch.optim.Adam
    return kind(groups, lr=recipe.learning_rate, betas=(0.9, 0.99))


def _batch(parts: _Parts, step: int, part: int) -> dict[str, Tensor]:
    """The windows of a step are a function of seed and step alone: equal in every twin, and after every break."""
    recipe, context = parts.recipe, parts.experiment.model.context
    ids = parts.data.windows(recipe.batch, context, recipe.seed, _WINDOWS, step, part)
    return _asked(parts, ids, recipe.seed, _MASKS, step, part)


def _asked(parts: _Parts, ids: Tensor, *seed: int) -> dict[str, Tensor]:
    if parts.experiment.model.objective == "next":
        batch = next_token(ids)
    else:
        batch = masked_token(ids, parts.data.mask_id, parts.recipe.masking, *seed)
    return {name: x.to(parts.device) for name, x in batch.items()}


def _device(name: str | None) -> torch.device:
    try:
        place = torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))
        torch.zeros(1, device=place)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise InputError(f"device {name!r} is not there ({first_line(error)}); give cpu, cuda or cuda:1") from error
    return place


# --- states -------------------------------------------------------------------------------------------------------


def _state(parts: _Parts, step: int, pending: list[Tensor]) -> dict[str, Any]:
    """All that the steps from this one on depend on; windows and masks are functions of the step."""
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
    with understood(parts.folder / STATE, "train again in another folder", StoreError):
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


# --- judging ------------------------------------------------------------------------------------------------------


def _losses(parts: _Parts, step: int, pending: list[Tensor]) -> dict[str, Any]:
    train = float(torch.stack(pending).mean()) if pending else None
    return {"step": step, "train": train, "validation": _validation(parts)}


@torch.no_grad()
def _validation(parts: _Parts) -> float:
    """The mean loss over the held-out windows, dropout off; masks are the same at every step."""
    parts.model.eval()
    total = 0.0
    windows = parts.held_out.cpu().split(parts.recipe.batch)
    for number, ids in enumerate(windows):
        batch = _asked(parts, ids, parts.recipe.seed, _JUDGING, number)
        with torch.autocast(parts.device.type, torch.bfloat16, enabled=parts.recipe.bf16):
            total += float(parts.model(**batch).loss) * len(ids)
    parts.model.train()
    return total / len(parts.held_out)
