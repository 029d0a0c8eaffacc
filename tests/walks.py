"""Which functions and files a value passes on its way through the library: three walks, each recorded from one run.

    python -m tests.walks            # prints every function of every walk, by file

A walk runs the library once with small inputs and records the call stack at a few stops: where a statistic is made,
where a metric is computed, where a record is written. The functions of the library on these stacks are what a reader
has to read to follow one value from the command to the record.
"""

from __future__ import annotations

import inspect
import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from typer.testing import CliRunner

import anisoscope
from anisoscope import Tangent, Tracker, metrics
from anisoscope.cli import app
from anisoscope.schedule import every
from anisoscope.stats.moments import Moments
from anisoscope.store.run import Run
from anisoscope.studies.claims.judging import judge
from anisoscope.studies.claims.runner import find_claims
from anisoscope.tangent.energy import energy
from tests import model_folders
from tests.training import held_out, small_model, train

ROOT = Path(anisoscope.__file__).parent
WALKS = ("vector", "gradient", "claim")


@dataclass(frozen=True)
class Stop:
    """A function at which the call stack is recorded, at its first call that meets the condition on its arguments."""

    function: Callable[..., Any]
    condition: Callable[[dict[str, Any]], bool] = lambda _: True


@dataclass(frozen=True)
class Walk:
    """The functions of the library on the stacks of all stops, as (file, name), in the order of the calls."""

    steps: tuple[tuple[str, str], ...]

    @property
    def files(self) -> list[str]:
        return list(dict.fromkeys(file for file, _ in self.steps))

    @property
    def classes(self) -> list[str]:
        """The classes whose methods are called."""
        owners = [name.split(".<locals>")[0].rpartition(".")[0] for _, name in self.steps]
        return list(dict.fromkeys(owner for owner in owners if owner))

    def __str__(self) -> str:
        lines = [f"{len(self.steps)} functions, {len(self.files)} files, {len(self.classes)} classes"]
        for file in self.files:
            lines += [file, *(f"    {name}" for each, name in self.steps if each == file)]
        return "\n".join(lines)


def walk(action: Callable[[], None], stops: list[Stop]) -> Walk:
    """Run the action and return what is on the stack at each stop. Only this thread is followed."""
    codes = {inspect.unwrap(getattr(stop.function, "__func__", stop.function)).__code__: stop for stop in stops}
    stacks: dict[Stop, list[tuple[str, str]]] = {}

    def follow(frame: FrameType, event: str, _: Any) -> None:
        stop = codes.get(frame.f_code) if event == "call" else None
        if stop is not None and stop not in stacks and stop.condition(frame.f_locals):
            stacks[stop] = list(_functions(frame))[::-1]

    before = sys.getprofile()
    sys.setprofile(follow)
    try:
        action()
    finally:
        sys.setprofile(before)
    missed = [stop.function.__qualname__ for stop in stops if stop not in stacks]
    assert not missed, f"never called: {', '.join(missed)}"
    return Walk(tuple(dict.fromkeys(step for stop in stops for step in stacks[stop])))


def _functions(frame: FrameType | None) -> Iterator[tuple[str, str]]:
    """The functions of the library on a stack, from the inside; a lambda or comprehension belongs to its function."""
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        if path.is_relative_to(ROOT) and frame.f_code.co_name != "<module>":
            names = frame.f_code.co_qualname.split(".")
            while names[-1].startswith("<"):
                names.pop()
            yield str(path.relative_to(ROOT)), ".".join(names)
        frame = frame.f_back


def _run(*words: str | Path) -> None:
    done = CliRunner().invoke(app, [str(word) for word in words])
    assert done.exit_code == 0, f"{done.output} {done.exception!r}"


def _writes(metric: str | None = None) -> Stop:
    """The first time that records are written, or records of this metric."""
    return Stop(Run.append, lambda given: metric is None or any(each.metric == metric for each in given["records"]))


def vector(folder: Path) -> Walk:
    """One token's vector, from `anisoscope measure` to a record."""
    model = model_folders.gpt2(folder / "model")
    words = model_folders.WORDS.split()
    text = folder / "text.jsonl"  # of long documents: most of their rows are added up, not kept as rows
    text.write_text("".join(json.dumps({"text": " ".join(words * (1600 // len(words)))}) + "\n" for _ in range(2)))
    options = ["--metrics", "isoscore", "--sites", "resid.1", "--tokens", "3000", "--window", "64"]
    stops = [
        Stop(Moments.of, lambda given: len(given["rows"].x) > 0),
        Stop(metrics.isoscore.function),
        _writes("isoscore"),
    ]
    return walk(partial(_run, "measure", model, "--text", text, *options, "--out", folder / "run"), stops)


def gradient(folder: Path) -> Walk:
    """The gradients of one training step, from `Tracker.watch` to a record."""
    model = small_model()
    tracker = Tracker(model, held_out(), folder / "run", schedule=every(1), tangent=Tangent(ranks=[4]))

    def action() -> None:
        train(model, tracker, range(3))
        tracker.close()

    return walk(action, [Stop(energy), _writes("gradient_energy")])


def claim(folder: Path) -> Walk:
    """One claim, from `anisoscope claims run` to a record."""
    evidence = find_claims(["A4"])[0].ways["nothing"]
    return walk(
        partial(_run, "claims", "run", "A4", "--size", "tiny", "--out", folder / "run"),
        [Stop(evidence), Stop(judge), _writes()],
    )


def main() -> None:
    torch.set_num_threads(1)
    for name in WALKS:
        with tempfile.TemporaryDirectory() as folder:
            print(f"\n{name}: {globals()[name](Path(folder))}")


if __name__ == "__main__":
    main()
