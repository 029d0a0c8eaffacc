"""Twins."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from typer.testing import CliRunner

from anisoscope.cli import app
from anisoscope.errors import StoreError
from anisoscope.studies.lab.experiment import KINDS
from anisoscope.studies.lab.factorial import factorial
from anisoscope.studies.lab.train import train
from anisoscope.studies.lab.twins import discard_cells, require_same_cells, train_cell
from tests.lab_trainings import Recorder, observed_by, same, tiny


def test_twins_share_initial_weights_data_and_order(tmp_path: Path) -> None:
    seen: dict[str, list[dict[str, Tensor]]] = {}
    first: dict[str, dict[str, Tensor]] = {}
    for name, cell in factorial(tiny(), []).cells.items():
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
    wanted = factorial(tiny(), ["attention=softmax,uniform"]).cells
    train_cell(wanted["base"], tmp_path, "base", observe=observed_by(Recorder()))
    train_cell(wanted["attention-uniform"], tmp_path, "attention-uniform", observe=observed_by(Recorder(stop_at=5)))
    require_same_cells(wanted, tmp_path, track=True)
    again = {name: train_cell(cell, tmp_path, name, observe=observed_by(Recorder())) for name, cell in wanted.items()}
    assert [done.step for done in again.values()] == [12, 12]
    assert again["base"].seconds == 0.0
    train(wanted["attention-uniform"], tmp_path / "whole")
    same(tmp_path / "whole", tmp_path / "attention-uniform", extra=("step-5",))


def test_other_switches_are_refused_before_the_first_training(tmp_path: Path) -> None:
    train_cell(tiny(attention="uniform"), tmp_path, "attention-uniform")
    wanted = factorial(tiny(width=32), ["attention=softmax,uniform"]).cells
    with pytest.raises(StoreError, match=r"attention-uniform .*width \(16 before, 32 now\)"):
        require_same_cells(wanted, tmp_path, track=False)
    words = ["lab", "twins", "--switch", "attention=softmax,uniform", "--no-track", "--out", str(tmp_path)]
    assert isinstance(CliRunner().invoke(app, words).exception, StoreError)
    assert not (tmp_path / "base").exists()


def test_discarded_twins_leave_other_runs_and_their_tokens(tmp_path: Path) -> None:
    for name in ("a", "b"):
        train_cell(tiny(steps=1), tmp_path, name)
    discard_cells(["a"], tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b", "data"]
    discard_cells(["a", "b"], tmp_path)
    assert not any(tmp_path.iterdir())
