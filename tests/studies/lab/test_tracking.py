"""The tracker in the lab's loop: invisible, resumed with the run, and on every kind of attention."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from anisoscope.store.run import Run
from anisoscope.studies.lab.experiment import Experiment, changed
from anisoscope.studies.lab.losses import read_losses
from anisoscope.studies.lab.tracking import tracked
from anisoscope.studies.lab.train import Observe, Observer, train
from anisoscope.studies.lab.training_state import load_state
from anisoscope.studies.lab.transformer import CHOICES, Transformer

TINY = {"layers": 2, "width": 16, "heads": 2, "context": 16, "batch": 4, "steps": 9, "dropout": 0.1}


def tiny(**switches: Any) -> Experiment:
    return changed(Experiment(), TINY | switches)


class Stopping:
    """A tracker that asks to stop once a step has been watched."""

    def __init__(self, inner: Observer, step: int) -> None:
        self.inner, self.step, self.should_stop = inner, step, False

    def probe(self, step: int) -> None:
        self.inner.probe(step)

    def watch(self, step: int, *, loss: Any = None, optimizer: Any = None) -> None:
        self.inner.watch(step, loss=loss, optimizer=optimizer)
        self.should_stop = step + 1 >= self.step

    def log(self, step: int, **values: Any) -> None:
        self.inner.log(step, **values)

    def flush(self) -> None:
        self.inner.flush()

    def close(self) -> None:
        self.inner.close()


def stopping(observe: Observe, step: int) -> Observe:
    def made(model: Transformer, probe: dict[str, torch.Tensor], folder: Path, start: int) -> Observer:
        return Stopping(observe(model, probe, folder, start), step)

    return made


def test_the_tracker_does_not_change_the_model(tmp_path: Path) -> None:
    train(tiny(), tmp_path / "tracked", observe=tracked(9))
    train(tiny(), tmp_path / "alone")
    a, b = load_state(tmp_path / "tracked"), load_state(tmp_path / "alone")
    assert all(torch.equal(a["model"][name], b["model"][name]) for name in a["model"])
    assert torch.equal(a["random"], b["random"])
    assert read_losses(tmp_path / "tracked") == read_losses(tmp_path / "alone")


def test_the_first_and_the_last_step_are_measured(tmp_path: Path) -> None:
    train(tiny(), tmp_path / "run", observe=tracked(9))
    frame = Run.open(tmp_path / "run").frame()
    assert sorted(frame[frame.metric == "mean_cosine"].step.unique()) == [0, 1, 2, 4, 8, 9]
    assert sorted(frame[frame.metric == "train_loss"].step.unique()) == list(range(9))
    assert sorted(frame[frame.metric == "gradient_energy"].step.unique()) == [0, 1, 2, 4, 8]
    assert Run.open(tmp_path / "run").info["experiment"]["model"]["layers"] == 2
    logged = frame[frame.metric == "validation_loss"].set_index("step").value
    assert logged.to_dict() == {row["step"]: row["validation"] for row in read_losses(tmp_path / "run")}


def test_an_interrupted_tracked_training_has_the_records_of_a_complete_one(tmp_path: Path) -> None:
    train(tiny(), tmp_path / "whole", observe=tracked(9))
    train(tiny(), tmp_path / "broken", observe=stopping(tracked(9), 5))
    train(tiny(), tmp_path / "broken", observe=tracked(9))
    records = [
        {(r.step, r.site, r.metric, r.tokens, r.index, str(r.variant)): r.value for r in Run.open(folder).records()}
        for folder in (tmp_path / "whole", tmp_path / "broken")
    ]
    assert records[0].keys() == records[1].keys()
    assert records[0] == pytest.approx(records[1], nan_ok=True, rel=1e-6)


@pytest.mark.parametrize("kind", CHOICES["attention"])
def test_every_kind_of_attention_can_be_tracked(kind: str, tmp_path: Path) -> None:
    train(tiny(attention=kind, steps=1), tmp_path / "run", observe=tracked(1, strict=True))
    frame = Run.open(tmp_path / "run").frame()
    heads = frame[frame.metric == "attention_entropy"]
    assert len(heads) == (0 if kind == "none" else 2 * 2 * 2)  # probes × layers × heads
    assert heads.value.notna().all()
    if kind not in ("none", "uniform"):
        assert frame[frame.metric == "q_drift"].value.notna().all()
    if kind == "uniform":
        assert heads.value.to_numpy() == pytest.approx(1.0)
