"""The tracker as the lab uses it: its usual schedule, and always the last step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor

from anisoscope.schedule import Schedule, any_of, at, default
from anisoscope.studies.lab.train import Observe, Observer
from anisoscope.studies.lab.transformer import Transformer
from anisoscope.tracker import Tracker

_TOKENS = 2048  # held-out tokens that a probe reads
_SAMPLE = 1024  # of them for neighbours


def tracked(steps: int, schedule: Schedule | None = None, **options: Any) -> Observe:
    """Who makes a Tracker for a training of so many steps; `options` go to the Tracker."""

    def observe(model: Transformer, held_out: dict[str, Tensor], folder: Path, start: int) -> Observer:
        windows = max(1, _TOKENS // held_out["input_ids"].shape[1])
        probe = {name: x[:windows] for name, x in held_out.items()}
        due = any_of(schedule or default(), at(steps))
        return Tracker(model, probe, folder, schedule=due, resume=start, **{"sample": _SAMPLE, **options})

    return observe
