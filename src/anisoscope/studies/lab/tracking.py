"""The tracker in a lab training: its default schedule, and always the last step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor

from anisoscope.schedule import Schedule, any_of, at, default
from anisoscope.store.run import Run
from anisoscope.studies.lab.tokens import load_tokenizer
from anisoscope.studies.lab.train import Observe, Observer
from anisoscope.studies.lab.transformer import Transformer
from anisoscope.tracker import Tracker

_TOKENS = 2048  # held-out tokens per probe
_SAMPLE = 1024  # tokens of them for neighbour metrics


def tracked(steps: int, schedule: Schedule | None = None, **options: Any) -> Observe:
    """Return a function that creates a Tracker for a training, as `train(observe=…)` takes it.

    Args:
        steps: Steps of the training; the last one is always measured.
        schedule: Steps to measure; None for the default schedule.
        **options: Other options of `Tracker`. Concepts are described with the tokenizer of the training.
    """

    def observe(model: Transformer, held_out: dict[str, Tensor], folder: Path, start: int) -> Observer:
        windows = max(1, _TOKENS // held_out["input_ids"].shape[1])
        probe = {name: x[:windows] for name, x in held_out.items()}
        due = any_of(schedule or default(), at(steps))
        known: dict[str, Any] = {"sample": _SAMPLE, "total_steps": steps, **options}
        if options.get("concepts"):
            known.setdefault("tokenizer", load_tokenizer(folder / Run.open(folder).info["data"]["folder"]))
        return Tracker(model, probe, folder, schedule=due, resume=start, **known)

    return observe
