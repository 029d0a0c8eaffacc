"""The state of a training on disk: never runs code, damaged files are refused."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings

from anisoscope.errors import StoreError
from anisoscope.studies.lab.experiment import Experiment, changed
from anisoscope.studies.lab.train import train
from anisoscope.studies.lab.training_state import load_state
from tests.damage import SHORT, damages
from tests.lab_trainings import Recorder, observed_by
from tests.pickle_bomb import PickleBomb

EXPERIMENT = changed(Experiment(), {"layers": 1, "width": 8, "heads": 2, "context": 16, "steps": 2, "batch": 2})


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A training that was stopped after its first step."""
    folder = tmp_path_factory.mktemp("lab") / "run"
    train(EXPERIMENT, folder, observe=observed_by(Recorder(stop_at=1)))
    return folder


def resume(run: Path) -> None:
    train(EXPERIMENT, run, observe=observed_by(Recorder()))


def test_the_state_of_a_training_never_runs_code(trained: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    torch.save({"step": 1, "model": PickleBomb(tmp_path / "taken")}, run / "state.pt")
    with pytest.raises(StoreError, match="run code"):
        resume(run)
    assert not (tmp_path / "taken").exists()


@pytest.mark.parametrize("state", [[], {}, {"step": 1}, {"step": "x", "model": {}}, torch.ones(2)])
def test_a_file_that_is_not_a_state_is_reported_in_one_line(trained: Path, tmp_path: Path, state: Any) -> None:
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    torch.save(state, run / "state.pt")
    with pytest.raises(StoreError, match=r"state\.pt"):
        resume(run)


@given(damages)
@settings(SHORT)
def test_a_damaged_state_of_a_training_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, trained: Path, damage: Callable[[bytes], bytes]
) -> None:
    run = tmp_path_factory.mktemp("state")
    (run / "state.pt").write_bytes(damage((trained / "state.pt").read_bytes()))
    with suppress(StoreError):
        load_state(run)
