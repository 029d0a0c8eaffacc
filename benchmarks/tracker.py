"""Benchmark the tracker: steps that are not due, scalars, due steps, the default schedule, memory; and Cockpit."""

from __future__ import annotations

import gc
import statistics
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import torch
import transformers
from torch import Tensor

from anisoscope import Tracker
from anisoscope.schedule import default, every
from anisoscope.tangent import Tangent
from benchmarks.harness import Figure, Outcome, Settings, clock
from benchmarks.peers import Peer, command_of, installed, last_line

hf: Any = transformers
RANK = 64
TRAINING = 10_000  # steps of the training for which the default schedule is calculated
CALLS = 1000  # a single idle call is too short to time
SCALARS = 20  # steps whose scalars are timed together, with what is written at every tenth
COCKPIT = Peer(
    "Cockpit",
    (("torch==2.13.0", "numpy>=2"), ("setuptools<81", "cockpit-for-pytorch==1.0.2", "backpack-for-pytorch==1.7.1")),
    "peer_cockpit.py",
)


@dataclass(frozen=True)
class Size:
    layers: int
    width: int
    context: int
    batch: int


def tracker(settings: Settings) -> Outcome:
    """Measure the cost of tracking a decoder, in training steps."""
    size = Size(2, 64, 64, 4) if settings.quick else Size(6, 384, 256, 4)
    with tempfile.TemporaryDirectory() as folder:
        times = _times(Path(folder), size, settings.rounds)
        gained = _memory(Path(folder), 400 if settings.quick else 2000)
    steps = 400 if settings.quick else 2000
    return Outcome(
        [
            *_figures(times, size),
            Figure(f"memory gained from step {steps // 4:,} to {steps:,}", gained, "MB", 8.0),
            *_cockpit(size, settings),
        ]
    )


def _figures(times: dict[str, list[float]], size: Size) -> list[Figure]:
    rounds = len(times["step"])
    part = [{name: taken[i] for name, taken in times.items()} for i in range(rounds)]
    tokens = size.context * size.batch
    watched = [t["watched"] / t["step"] for t in part]
    return [
        _figure(
            "calls at a step that is not due, without scalars, in steps", [t["idle"] / t["step"] for t in part], 0.001
        ),
        _figure("the scalars of every step", [1 + t["scalars"] / t["step"] for t in part], 1.005),
        _figure(f"a watched step, proxies of rank {RANK} at all layers", watched, 1.10),
        _figure(f"a probe of {tokens:,} tokens, in steps", [t["probe"] / t["step"] for t in part]),
        _figure("the same with error bars, in steps", [t["barred"] / t["step"] for t in part]),
        _figure(f"{TRAINING:,} steps at the default cadence", [_at_default(t) for t in part], 1.01),
        _figure(f"every 50th step, {4 * tokens:,} tokens", [_at_every_50th(t) for t in part], 1.05),
    ]


def _figure(name: str, each: Sequence[float], target: float | None = None) -> Figure:
    return Figure(name, statistics.median(each), "×", target, rounds=list(each))


def _at_default(t: dict[str, float]) -> float:
    """Return the time of a training with the default schedule and scalars as a multiple of the same training alone."""
    due = sum(map(default(), range(TRAINING)))
    barred = -(-due // 10)
    more = (due - barred) * t["probe"] + barred * t["barred"] + due * (t["watched"] - t["step"])
    more += TRAINING * t["scalars"]
    return 1 + more / (TRAINING * t["step"])


def _at_every_50th(t: dict[str, float]) -> float:
    more = 0.9 * t["large"] + 0.1 * t["large barred"] + t["watched"] - t["step"] + 50 * t["scalars"]
    return 1 + more / (50 * t["step"])


def _times(folder: Path, size: Size, rounds: int) -> dict[str, list[float]]:
    """Return the seconds of each part by round; the parts take turns, so that other load affects all equally."""
    model = _model(size)
    optimiser = torch.optim.AdamW(model.parameters(), 1e-3)
    tangent = Tangent(ranks=[min(RANK, size.width // 4)], nulls=["orientation"])

    def track(name: str, items: int, bars: int | None, **options: Any) -> Tracker:
        fixed = {"bars_every": bars, "tangent": tangent, "scalars": False}
        return Tracker(model, _batch(size, items, 1), folder / name, **{**fixed, **options})

    probing = {
        "probe": track("probe", size.batch, None, schedule=every(1)),
        "barred": track("barred", size.batch, 1, schedule=every(1), gradients=False),
        "large": track("large", 4 * size.batch, None, schedule=every(1), gradients=False),
        "large barred": track("large-barred", 4 * size.batch, 1, schedule=every(1), gradients=False),
    }
    idle = track("idle", size.batch, None, schedule=lambda _: False)
    scalars = track("scalars", size.batch, None, schedule=lambda _: False, scalars=True, optimizer=optimiser)
    times: dict[str, list[float]] = {name: [] for name in ("step", "watched", "idle", "scalars", *probing)}
    for number in range(rounds + 1):  # the first sets up buffers and caches
        batch = _batch(size, size.batch, 100 + number)
        taken = {name: _timed(each.probe, number) for name, each in probing.items()}
        taken["watched"] = _timed(_step, model, optimiser, batch, probing["probe"], number)
        taken["step"] = _timed(_step, model, optimiser, batch, None, number)
        taken["idle"] = _timed(_call, idle) / CALLS
        loss = model(**batch).loss
        loss.backward()
        taken["scalars"] = _timed(_note, scalars, loss, SCALARS * number) / SCALARS
        optimiser.zero_grad()
        for name, seconds in taken.items() if number else ():
            times[name].append(seconds)
    return times


def _call(idle: Tracker) -> None:
    for number in range(CALLS):
        idle.probe(number)
        idle.watch(number)


def _note(scalars: Tracker, loss: Tensor, first: int) -> None:
    for number in range(first, first + SCALARS):
        scalars.probe(number)
        scalars.watch(number, loss=loss)


def _step(
    model: Any, optimiser: torch.optim.Optimizer, batch: dict[str, Tensor], watching: Tracker | None, number: int
) -> None:
    model(**batch).loss.backward()
    if watching is not None:
        watching.watch(number)
    optimiser.step()
    optimiser.zero_grad()


def _memory(folder: Path, steps: int) -> float:
    """Return the megabytes that a tracked training gains between a quarter of its steps and its end."""
    size = Size(2, 32, 32, 4)
    model = _model(size)
    optimiser = torch.optim.AdamW(model.parameters(), 1e-3)
    held: list[float] = []
    with Tracker(model, _batch(size, 8, 1), folder / "memory", schedule=every(20)) as tracked:
        for number in range(steps):
            tracked.probe(number)
            _step(model, optimiser, _batch(size, 4, 100 + number), tracked, number)
            if number + 1 in (steps // 4, steps):
                gc.collect()
                held.append(psutil.Process().memory_info().rss / 1e6)
    return max(0.0, held[1] - held[0])


def _cockpit(size: Size, settings: Settings) -> list[Figure]:
    """Return the time of a step with Cockpit as a multiple of one without, on a decoder of the same size."""
    name = "a step that Cockpit follows (loss, parameters, distance, gradient norm)"
    if reason := installed(COCKPIT):
        return [Figure(name, None, "×", note=reason)]
    numbers = (size.layers, size.width, size.context, size.batch, settings.rounds)
    command = [*command_of(COCKPIT, settings.threads), *map(str, numbers)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return [Figure(name, None, "×", note=last_line(done.stderr))]
    rounds = [tuple(map(float, line.split())) for line in done.stdout.splitlines()]
    return [_figure(name, [followed / plain for plain, followed in rounds])]


def _model(size: Size) -> Any:
    torch.manual_seed(0)
    names = {"n_layer": size.layers, "n_embd": size.width, "n_head": max(1, size.width // 64)}
    config = hf.GPT2Config(
        **names, vocab_size=256, n_positions=size.context, bos_token_id=0, eos_token_id=0, loss_type="ForCausalLM"
    )
    return hf.GPT2LMHeadModel(config).train()


def _batch(size: Size, items: int, seed: int) -> dict[str, Tensor]:
    ids = torch.randint(0, 256, (items, size.context), generator=torch.Generator().manual_seed(seed))
    return {"input_ids": ids, "labels": ids}


def _timed(job: Callable[..., object], *arguments: Any) -> float:
    start = clock()
    job(*arguments)
    return clock() - start
