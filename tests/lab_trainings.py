"""Tiny trainings of the lab for tests: an experiment, an observer, and the comparison of two run folders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from anisoscope.studies.lab.experiment import Experiment, changed
from anisoscope.studies.lab.losses import read_losses
from anisoscope.studies.lab.train import Observe
from anisoscope.studies.lab.training_state import load_state
from anisoscope.studies.lab.transformer import Transformer

TINY = {"layers": 2, "width": 16, "heads": 2, "context": 16, "batch": 4, "steps": 12, "learning_rate": 0.01}


def tiny(**switches: Any) -> Experiment:
    return changed(Experiment(), TINY | switches)


class Recorder:
    """An observer that records its calls and stops the training at a step."""

    def __init__(self, stop_at: int | None = None) -> None:
        self.stop_at, self.calls, self.inputs = stop_at, [], []  # type: ignore[var-annotated]
        self.should_stop = False

    def probe(self, step: int) -> None:
        self.calls.append(("probe", step))

    def watch(self, step: int, *, loss: Any = None, optimizer: Any = None) -> None:
        self.calls.append(("watch", step))
        self.should_stop = self.stop_at is not None and step + 1 >= self.stop_at

    def log(self, step: int, **values: Any) -> None:
        pass

    def flush(self) -> None:
        pass

    def close(self) -> None:
        self.calls.append(("close", -1))


def observed_by(recorder: Recorder) -> Observe:
    def observe(model: Transformer, probe: dict[str, Tensor], folder: Path, start: int) -> Recorder:
        model.register_forward_pre_hook(lambda _m, _a, kwargs: recorder.inputs.append(kwargs), with_kwargs=True)
        return recorder

    return observe


def tensors_of(folder: Path) -> dict[str, Tensor]:
    """Everything that a run holds in numbers: checkpoints, weights, optimiser, random state."""
    found = {f"{p.parent.name}/{n}": t for p in folder.rglob("model.safetensors") for n, t in load_file(p).items()}
    state = load_state(folder)
    found |= {f"model/{name}": value for name, value in state["model"].items()}
    found |= {f"basis/{number}": value for number, value in enumerate(state["bases"])}
    found["random"] = state["random"]
    for number, values in state["optimizer"]["state"].items():
        found |= {f"optimizer/{number}/{name}": torch.as_tensor(value) for name, value in values.items()}
    return found


def same(a: Path, b: Path, *, extra: tuple[str, ...] = ()) -> None:
    left, right = tensors_of(a), tensors_of(b)
    assert {name for name in right if not name.startswith(extra)} == set(left) if extra else set(left) == set(right)
    assert all(torch.equal(left[name], right[name]) for name in left)
    assert read_losses(a) == read_losses(b)
