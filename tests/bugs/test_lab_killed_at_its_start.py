"""A lab training killed before its first state could neither resume nor start again in the same folder."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from anisoscope.studies.lab import train as training
from anisoscope.studies.lab.experiment import Experiment, changed
from anisoscope.studies.lab.losses import read_losses
from anisoscope.studies.lab.training_run import DATA

SWITCHES = {"layers": 1, "width": 16, "heads": 2, "context": 16, "batch": 2, "steps": 3}


class Killed(BaseException):
    """Where nothing can be cleaned up."""


def test_a_training_killed_before_its_first_state_starts_from_the_beginning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(training, "save_state", die)
        with pytest.raises(Killed):
            training.train(changed(Experiment(), SWITCHES), tmp_path / "run")
    assert training.train(changed(Experiment(), SWITCHES), tmp_path / "run").step == 3
    training.train(changed(Experiment(), SWITCHES), tmp_path / "whole")
    assert read_losses(tmp_path / "run") == read_losses(tmp_path / "whole")


def test_a_training_killed_while_its_folder_is_made_leaves_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace = os.replace

    def die(source: Path, target: Path) -> None:
        if Path(target).name == DATA:  # the last thing to come into its place
            raise Killed
        replace(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", die)
        with pytest.raises(Killed):
            training.train(changed(Experiment(), SWITCHES), tmp_path / "run")
    assert not (tmp_path / "run").exists()
    assert training.train(changed(Experiment(), SWITCHES), tmp_path / "run").step == 3
