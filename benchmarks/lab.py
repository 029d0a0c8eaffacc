"""Benchmark the lab: the cost of tracking with the default schedule, and the duration and result of the demo."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from anisoscope.schedule import at
from anisoscope.store.run import Run
from anisoscope.studies.lab.experiment import Experiment, changed
from anisoscope.studies.lab.tracking import tracked
from anisoscope.studies.lab.train import train
from benchmarks.harness import Figure, Outcome, Settings, clock

_FULL = {"steps": 2000}  # of the default model: 4 layers of width 128, 16 windows of 128 characters per step
_QUICK = {"steps": 40, "layers": 2, "width": 32, "context": 32, "batch": 4}


def lab(settings: Settings) -> Outcome:
    """Time tracked against untracked training, then the whole demo as a user starts it."""
    figures = [_overhead(settings)]
    if not settings.quick:
        figures += _demo()
    return Outcome(figures)


def _overhead(settings: Settings) -> Figure:
    """Return the time of a tracked training as a multiple of the untracked one; only the last checkpoint is written."""
    experiment = changed(Experiment(), _QUICK if settings.quick else _FULL)
    steps = experiment.recipe.steps
    train(changed(experiment, {"steps": 2}), _folder(), observe=tracked(2))  # load imports and caches before timing
    seconds = {}
    for name, observe in (("untracked", None), ("tracked", tracked(steps))):
        start = clock()
        train(experiment, _folder(), observe=observe, checkpoints=at())
        seconds[name] = clock() - start
    title = f"training of {steps} steps with the tracker, in the same without"
    return Figure(title, seconds["tracked"] / seconds["untracked"], "×", 1.05)


def _demo() -> list[Figure]:
    """Return the duration of the demo, and how far the loss of its decoder is below the bigram baseline."""
    out = _folder()
    start = time.perf_counter()
    subprocess.run([sys.executable, "-m", "anisoscope", "demo", "--out", str(out)], check=True, capture_output=True)
    seconds = time.perf_counter() - start
    last = json.loads((out / "decoder" / "losses.jsonl").read_text().splitlines()[-1])
    below = Run.open(out / "decoder").info["baselines"]["bigram"] - last["validation"]
    return [
        Figure("the whole demo", seconds, "s", 240),
        Figure("its decoder's validation loss below bigrams", below, "nats a character", 0.3, at_least=True),
    ]


def _folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="anisoscope-lab-")) / "run"
