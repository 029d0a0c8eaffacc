"""Trainings in other processes: the same numbers, and no waiting for jobs that have not started."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
import torch

from anisoscope.studies.claims.background_training import BackgroundTraining
from anisoscope.studies.claims.runner import ClaimsRequest, find_claims, find_size, run_claims
from anisoscope.studies.claims.subjects import Lab
from anisoscope.studies.lab.losses import read_losses


def process_and(name: str) -> tuple[int, str]:
    return os.getpid(), name


def wait_for(path: str) -> int:
    """Does nothing until a file is there."""
    for _ in range(1200):
        if Path(path).exists():
            return os.getpid()
        time.sleep(0.05)
    raise TimeoutError(path)


def die(_: str) -> None:
    os._exit(3)


def test_another_process_does_the_job_and_its_time_counts() -> None:
    background = BackgroundTraining()
    threads = torch.get_num_threads()
    with background.running(process_and, [("a",), ("b",)], processes=1):
        while not all(future.done() for future in background._jobs.values()):
            time.sleep(0.05)
        found = [background.result((name,)) or (0, "") for name in "ab"]
        assert [name for _, name in found] == ["a", "b"]
        assert found[0][0] == found[1][0] != os.getpid()
        assert background.result(("a",)) is None  # it was given away
    assert background.seconds > 0
    assert torch.get_num_threads() == threads


def test_a_job_that_has_not_started_is_left_to_the_caller(tmp_path: Path) -> None:
    held, later = tmp_path / "held", tmp_path / "later"
    background = BackgroundTraining()
    with background.running(wait_for, [(str(held),), (str(later),)], processes=1):
        while not background._jobs[str(held),].running():
            time.sleep(0.05)
        assert background.result((str(later),)) is None  # at once: the only other process is at the first
        held.touch()
        assert background.result((str(held),)) != os.getpid()
    assert not background._jobs


def test_who_waits_for_a_job_does_others_meanwhile(tmp_path: Path) -> None:
    held, later, last = (str(tmp_path / name) for name in ("held", "later", "last"))
    background, here = BackgroundTraining(), []

    def work(path: str) -> str:
        here.append(path)
        if path == later:
            raise OSError(path)
        Path(held).touch()  # the job that the caller waits for can end now
        return f"{path} here"

    with background.running(wait_for, [(held,), (later,), (last,)], processes=1):
        while not background._jobs[held,].running():
            time.sleep(0.05)
        assert background.result((held,), meanwhile=work) != os.getpid()
        assert here == [later, last]
        assert background.result((last,)) == f"{last} here"
        with pytest.raises(OSError, match="later"):  # raised for its own caller only
            background.result((later,))


def test_the_job_of_a_dead_process_is_left_to_the_caller() -> None:
    background = BackgroundTraining()
    with background.running(die, [("a",)], processes=1):
        while not background._jobs["a",].done():
            time.sleep(0.05)
        assert background.result(("a",)) is None


def test_without_processes_no_job_runs() -> None:
    background = BackgroundTraining()
    with background.running(process_and, [("a",)], processes=0):
        assert background.result(("a",)) is None


def test_an_unfinished_training_is_missing_and_every_text_is_prepared_once(tmp_path: Path) -> None:
    lab = Lab(tmp_path, find_size("tiny"), 3, lambda _: None)
    cells = ["softmax-next-0.5", "softmax-next-1.5"]
    folder = tmp_path / "softmax-next-0.5-seed-0"
    folder.mkdir()  # as a kill leaves it
    assert (cells[0], 0) in lab.untrained(cells)
    folder.rmdir()
    lab.train(cells[0], 0)
    assert (cells[0], 0) not in lab.untrained(cells)
    with lab.training_in_background(cells, 1):
        assert len(list((tmp_path / "data").iterdir())) == 2  # one per exponent of Zipf's law


def test_trainings_of_other_processes_give_the_same_verdicts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = ClaimsRequest(find_size("tiny"))
    alone = list(run_claims(find_claims(["S1"]), tmp_path / "alone", asked))
    here: list[str] = []
    train = Lab.train

    def trained(lab: Lab, cell: str, seed: int) -> object:
        while (
            not here and lab.background._jobs and not any(future.running() for future in lab.background._jobs.values())
        ):
            time.sleep(0.01)  # wait until another process trains
        here.append(f"{cell}-seed-{seed}")
        return train(lab, cell, seed)

    monkeypatch.setattr(Lab, "train", trained)
    monkeypatch.setattr("anisoscope.studies.claims.runner._processes", lambda _: 1)
    background = list(run_claims(find_claims(["S1"]), tmp_path / "background", asked))
    assert [pair for _, pair in background] == [pair for _, pair in alone]
    cells = [f"{cell}-seed-{seed}" for cell in ("decoder", "encoder") for seed in range(3)]
    for cell in cells:
        assert read_losses(tmp_path / "background" / "lab" / cell) == read_losses(tmp_path / "alone" / "lab" / cell)
    assert set(here) < set(cells)  # at least one was made elsewhere
