"""The run folder of a training: recognised, compared with a request, discarded."""

from __future__ import annotations

from pathlib import Path

import pytest

from anisoscope.errors import AnisoscopeError, InputError, StoreError
from anisoscope.store.files import WriterLock
from anisoscope.store.run import Run
from anisoscope.studies.lab.train import train
from anisoscope.studies.lab.training_run import (
    LOCK,
    discard_training,
    experiment_of,
    is_training,
    require_same_training,
)
from tests.lab_trainings import tiny


def test_another_request_is_refused_with_every_difference_named(tmp_path: Path) -> None:
    train(tiny(steps=1), tmp_path / "run")
    require_same_training(tiny(steps=1), tmp_path / "run", track=False)
    require_same_training(tiny(steps=1), tmp_path / "new", track=False)
    with pytest.raises(StoreError, match=r"different: steps \(1 before, 2 now\); seed \(0 before, 3 now\)\)"):
        train(tiny(steps=2, seed=3), tmp_path / "run")


def test_a_run_of_something_else_is_neither_resumed_nor_discarded(tmp_path: Path) -> None:
    Run.create(tmp_path / "run", {"kind": "claims"}).close()
    for act in (is_training, experiment_of, discard_training, lambda folder: train(tiny(), folder)):
        with pytest.raises(InputError, match="not a training of the lab"):
            act(tmp_path / "run")
    assert (tmp_path / "run" / "run.json").is_file()


def test_a_folder_with_other_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(StoreError, match="not empty"):
        train(tiny(), tmp_path)
    with pytest.raises(StoreError, match="holds no run"):
        discard_training(tmp_path)
    with pytest.raises(AnisoscopeError, match="not a run"):
        experiment_of(tmp_path)
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_discarding_deletes_a_training_but_no_other_file(tmp_path: Path) -> None:
    train(tiny(steps=1), tmp_path / "run")
    (tmp_path / "run" / "notes.txt").write_text("mine")
    with pytest.raises(StoreError, match=r"notes\.txt"):
        discard_training(tmp_path / "run")
    (tmp_path / "run" / "notes.txt").unlink()
    lock = WriterLock(tmp_path / "run" / LOCK)
    with pytest.raises(StoreError, match="is being written"):
        discard_training(tmp_path / "run")
    lock.release()
    discard_training(tmp_path / "run")
    assert not (tmp_path / "run").exists()
    discard_training(tmp_path / "run")  # nothing to delete
