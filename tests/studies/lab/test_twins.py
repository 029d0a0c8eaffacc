"""Twins."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from anisoscope.errors import InputError
from anisoscope.studies.lab.experiment import KINDS, Experiment, cells, changed
from anisoscope.studies.lab.losses import read_losses
from anisoscope.studies.lab.train import Observe, train
from anisoscope.studies.lab.training_state import load_state
from anisoscope.studies.lab.transformer import Transformer
from anisoscope.studies.lab.twins import train_cell

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

    def watch(self, step: int) -> None:
        self.calls.append(("watch", step))
        self.should_stop = self.stop_at is not None and step + 1 >= self.stop_at

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


def test_twins_share_initial_weights_data_and_order(tmp_path: Path) -> None:
    seen: dict[str, list[dict[str, Tensor]]] = {}
    first: dict[str, dict[str, Tensor]] = {}
    for name, cell in cells(tiny(), []).items():
        recorder = Recorder()
        train_cell(cell, tmp_path, name, observe=observed_by(recorder))
        seen[name] = [call for call in recorder.inputs if "labels" in call]
        first[name] = load_file(tmp_path / name / "checkpoints" / "step-0" / "model.safetensors")
    assert list(seen) == list(KINDS)
    for name in KINDS:
        assert all(torch.equal(first["decoder"][key], first[name][key]) for key in first["decoder"])
    for plain, causal, both in zip(*seen.values(), strict=True):
        assert torch.equal(causal["input_ids"], both["input_ids"])
        assert torch.equal(causal["labels"], both["labels"])
        kept = causal["labels"] == -100
        assert torch.equal(plain["input_ids"][kept], causal["input_ids"][kept])
        assert torch.equal(plain["input_ids"][~kept], causal["labels"][~kept])
    assert len(list((tmp_path / "data").iterdir())) == 1


def test_twins_resume_where_they_stopped(tmp_path: Path) -> None:
    wanted = cells(tiny(), ["attention=softmax,uniform"])
    train_cell(wanted["base"], tmp_path, "base")
    train_cell(wanted["attention-uniform"], tmp_path, "attention-uniform", observe=observed_by(Recorder(stop_at=5)))
    again = {name: train_cell(cell, tmp_path, name, resume=True) for name, cell in wanted.items()}
    assert [done.step for done in again.values()] == [12, 12]
    assert again["base"].seconds == 0.0
    train(wanted["attention-uniform"], tmp_path / "whole")
    same(tmp_path / "whole", tmp_path / "attention-uniform", extra=("step-5",))
    with pytest.raises(InputError, match="other switches"):
        train_cell(tiny(width=32), tmp_path, "base", resume=True)
