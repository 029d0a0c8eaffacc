"""The training loop: the same steps from the same switches, to the bit, also after a break."""

from __future__ import annotations

import json
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from anisoscope.disk import append_lines, explained, read_lines, replacing
from anisoscope.errors import InputError
from anisoscope.lab.bf16 import require_bf16
from anisoscope.lab.checkpoints import load_state, save_checkpoint, save_state
from anisoscope.lab.corpora import open_text
from anisoscope.lab.data import Data, open_data, prepare
from anisoscope.lab.experiment import Experiment, Recipe
from anisoscope.lab.interventions import Interventions
from anisoscope.lab.model import Transformer
from anisoscope.lab.objectives import masked_token, next_token
from anisoscope.schedule import Schedule, any_of, every, log_spaced
from anisoscope.store import Run

LOSSES = "losses.jsonl"
_HELD_OUT = 32  # windows that are judged, and that an observer probes
_TOLD = 10  # steps between two looks at the loss, which make the device wait
_KEPT = 500  # steps between two states, at most
_DATA, _MASKS, _JUDGED = 1, 2, 3  # uses of one seed that must not meet


class Observer(Protocol):
    """Who looks on while a model trains, such as a Tracker: before the forward, and between backward and step."""

    @property
    def should_stop(self) -> bool: ...
    def probe(self, step: int) -> None: ...
    def watch(self, step: int) -> None: ...
    def close(self) -> None: ...


Observe = Callable[[Transformer, dict[str, Tensor], Path], Observer]
Told = Callable[[int, float], None]  # the steps done and the last loss


@dataclass(frozen=True)
class Trained:
    """How a training ended: at which step, why if before the last one, and its losses in nats a token."""

    folder: Path
    experiment: Experiment
    step: int
    stopped: str | None  # "interrupted", "diverged", "observer", or None
    train: float | None
    validation: float | None
    baselines: dict[str, float]
    seconds: float


def train(
    experiment: Experiment,
    out: str | Path,
    *,
    data: Path | None = None,
    resume: bool = False,
    observe: Observe | None = None,
    checkpoints: Schedule | None = None,
    device: str | None = None,
    told: Told | None = None,
    command: str | None = None,
) -> Trained:
    """Train a model into a run folder: run.json, losses.jsonl, checkpoints/step-N, data/, state.pt.

    `data` is a folder for the tokenised text (several runs may share one), `observe` makes whoever looks on,
    `checkpoints` says at which steps a model is kept (log-spaced, and always the last). With `resume` a run goes on
    from its last state, as if nothing had happened. Ctrl-C saves the state and returns; a loss that is not finite
    stops the training and leaves the run as it was.
    """
    folder = Path(out)
    started = time.monotonic()
    place = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    if experiment.recipe.bf16:
        require_bf16(place.type)
    text, kept = _data(experiment, folder, data, resume)
    experiment = replace(experiment, model=replace(experiment.model, vocabulary=text.vocabulary))
    _start_run(folder, experiment, text, resume, command)
    # Everything random is seeded here; the caller's own random state is as it was afterwards.
    with torch.random.fork_rng(devices=range(torch.cuda.device_count()) if place.type == "cuda" else []):
        torch.manual_seed(experiment.recipe.seed)
        loop = _Loop(experiment, folder, text, place, checkpoints or log_spaced(), told)
        if resume:
            loop.restore(kept)
        step, stopped = loop.run(observe)
    ...
