"""The training loop: its results, how it ends, and exact resuming."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

from anisoscope.cli import app
from anisoscope.errors import AnisoscopeError, InputError
from anisoscope.store.run import Run
from anisoscope.studies.lab.experiment import Experiment, changed
from anisoscope.studies.lab.token_data import Data
from anisoscope.studies.lab.train import train
from anisoscope.studies.lab.training_run import experiment_of
from anisoscope.studies.lab.training_state import load_state
from tests.lab_trainings import Recorder, observed_by, same, tensors_of, tiny


def test_a_small_decoder_beats_unigram_counts(tmp_path: Path) -> None:
    done = train(tiny(steps=150, width=32, context=32, batch=16), tmp_path / "run")
    assert done.stopped is None
    assert done.step == 150
    assert done.validation is not None
    assert done.validation < done.baselines["unigram"] - 0.2
    assert [row["step"] for row in done.losses][:6] == [0, 1, 2, 4, 8, 15]
    assert done.losses[0]["validation"] == pytest.approx(np.log(105), abs=0.3)


def test_a_decoder_learns_to_copy_what_only_attention_can_see(tmp_path: Path) -> None:
    text = "zipf:vocabulary=12,copy=0.9,lag=3,length=100000,exponent=0.5"
    base = tiny(text=text, steps=150, width=32, batch=16)
    seeing = train(base, tmp_path / "seeing")
    blind = train(changed(base, {"attention": "none"}), tmp_path / "blind")
    assert seeing.validation is not None
    assert blind.validation is not None
    assert seeing.validation < blind.validation - 0.3


def test_the_run_records_its_experiment(tmp_path: Path) -> None:
    done = train(tiny(attention="sigmoid"), tmp_path / "run", command="anisoscope lab train")
    run = Run.open(tmp_path / "run")
    assert run.info["experiment"]["model"]["attention"] == "sigmoid"
    assert run.info["ended"] == {"step": 12, "stopped": None}
    assert run.command == "anisoscope lab train"
    assert experiment_of(tmp_path / "run") == done.experiment


def test_training_leaves_the_callers_random_state_alone(tmp_path: Path) -> None:
    torch.manual_seed(7)
    before = torch.get_rng_state()
    train(tiny(dropout=0.1), tmp_path / "run")
    assert torch.equal(torch.get_rng_state(), before)


def test_an_observer_is_called_around_every_step_and_changes_nothing(tmp_path: Path) -> None:
    recorder = Recorder()
    train(tiny(dropout=0.1), tmp_path / "watched", observe=observed_by(recorder))
    train(tiny(dropout=0.1), tmp_path / "alone")
    steps = [call for step in range(12) for call in (("probe", step), ("watch", step))]
    assert recorder.calls == [*steps, ("probe", 12), ("close", -1)]
    same(tmp_path / "watched", tmp_path / "alone")


HARD: list[dict[str, Any]] = [
    {"dropout": 0.2, "accumulate": 2},
    {"kind": "encoder", "dropout": 0.1, "project": "tangent", "rank": 3, "refresh": 5, "centring": 0.5},
    {"optimizer": "sgd", "isoscore": 0.3, "project": "random", "rank": 3},
]


@pytest.mark.parametrize("switches", HARD, ids=lambda s: "-".join(s))
@pytest.mark.parametrize("at", [3, 8])
def test_an_interrupted_training_ends_like_an_uninterrupted_one(
    switches: dict[str, Any], at: int, tmp_path: Path
) -> None:
    train(tiny(**switches), tmp_path / "whole")
    stopped = train(tiny(**switches), tmp_path / "broken", observe=observed_by(Recorder(stop_at=at)))
    assert (stopped.step, stopped.stopped) == (at, "observer")
    done = train(tiny(**switches), tmp_path / "broken", observe=observed_by(Recorder()))
    assert (done.step, done.stopped) == (12, None)
    same(tmp_path / "whole", tmp_path / "broken", extra=(f"step-{at}",) if at == 3 else ())


def test_a_complete_training_is_returned_at_once(tmp_path: Path) -> None:
    first = train(tiny(), tmp_path / "run")
    before = tensors_of(tmp_path / "run")
    steps: list[int] = []
    again = train(tiny(), tmp_path / "run", on_step=lambda step, _: steps.append(step))
    assert steps == []
    assert (again.step, again.stopped, again.losses) == (12, None, first.losses)
    assert again.experiment == first.experiment
    after = tensors_of(tmp_path / "run")
    assert all(torch.equal(before[name], after[name]) for name in before)


def lab(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "anisoscope", "lab", *map(str, arguments)]


def refusal(*arguments: str | Path) -> str:
    """The error that a command of the lab ends with."""
    error = CliRunner().invoke(app, ["lab", *map(str, arguments)]).exception
    assert isinstance(error, AnisoscopeError)
    return str(error)


def interrupt(arguments: list[str], folder: Path, how: signal.Signals) -> tuple[int, str]:
    """Start a command, send it a signal once its training is on its way; its exit code and stderr."""
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + 120
        while not (folder / "checkpoints" / "step-64").is_dir():
            assert time.monotonic() < deadline, "no checkpoint appeared"
            assert process.poll() is None
            time.sleep(0.02)
        os.kill(process.pid, how)
        _, errors = process.communicate(timeout=120)
    return process.returncode, errors


SMALL = ["--layers", "1", "--width", "16", "--heads", "2", "--context", "16", "--batch", "2", "--steps", "400"]


@pytest.mark.parametrize("how", [signal.SIGINT, pytest.param(signal.SIGKILL, marks=pytest.mark.slow)])
def test_resume_restores_everything_after_ctrl_c_and_kill(how: signal.Signals, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    words = ["train", *SMALL, "--no-track", "--out", str(folder)]
    code, errors = interrupt(lab(*words, "--overwrite"), folder, how)
    if how == signal.SIGINT:
        assert code == 130
        assert errors.replace("\n", "").rstrip().endswith(f"Resume with: anisoscope lab {' '.join(words)}")
        assert Run.open(folder).info["ended"]["stopped"] == "interrupted"
    reached = load_state(folder)["step"]
    assert 64 <= reached < 400
    assert CliRunner().invoke(app, ["lab", *words]).exit_code == 0
    switches = {"layers": 1, "width": 16, "heads": 2, "context": 16, "batch": 2, "steps": 400}
    train(changed(Experiment(), switches), tmp_path / "whole")
    same(tmp_path / "whole", folder, extra=(f"step-{reached}/",) if reached & (reached - 1) else ())


def test_divergence_stops_the_training_and_keeps_the_run(tmp_path: Path) -> None:
    done = train(tiny(learning_rate=1e30, clip=0.0, steps=60, optimizer="sgd"), tmp_path / "run")
    assert done.stopped == "diverged"
    assert 1 <= done.step < 30
    state = load_state(tmp_path / "run")
    assert state["step"] <= done.step
    assert all(bool(value.isfinite().all()) for value in state["model"].values() if value.is_floating_point())
    assert Run.open(tmp_path / "run").info["ended"] == {"step": done.step, "stopped": "diverged"}
    switches = [*SMALL, "--set", "clip=0", "--set", "optimizer=sgd", "--learning-rate", "1e30", "--no-track"]
    assert "no longer finite at step" in refusal("train", *switches, "--out", tmp_path / "command")


def test_a_text_that_is_too_short_leaves_no_folder_behind(tmp_path: Path) -> None:
    (tmp_path / "short.txt").write_text("too short\n" * 3)
    with pytest.raises(InputError, match="fewer than one context"):
        train(tiny(text=str(tmp_path / "short.txt")), tmp_path / "run")
    assert [path.name for path in tmp_path.iterdir()] == ["short.txt"]


def test_a_vocabulary_that_the_text_does_not_fit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"105 tokens, the model's embedding 64 rows.*symbols=62"):
        train(tiny(vocabulary=64), tmp_path / "run")
    done = train(tiny(vocabulary=64, symbols=62, steps=1), tmp_path / "run")
    assert done.experiment.model.vocabulary == 64
    assert train(tiny(vocabulary=200, steps=1), tmp_path / "padded").experiment.model.vocabulary == 200


def test_another_request_is_refused_before_anything_else_and_overwrite_starts_again(tmp_path: Path) -> None:
    words = ["train", *SMALL, "--steps", "4", "--no-track", "--out", str(tmp_path / "run")]
    assert CliRunner().invoke(app, ["lab", *words]).exit_code == 0
    other = [*words, "--width", "32", "--text", "nowhere.txt"]
    message = refusal(*other)
    assert "different: width (16 before, 32 now); text (topics before, nowhere.txt now)" in message
    assert "--overwrite" in message
    assert Run.open(tmp_path / "run").info["settings"]["width"] == 16
    assert "track (False before, True now)" in refusal(*(word for word in words if word != "--no-track"))
    done = CliRunner().invoke(app, ["lab", *words, "--width", "32", "--overwrite"])
    assert done.exit_code == 0, done.output
    assert experiment_of(tmp_path / "run").model.width == 32


def test_two_half_batches_make_the_step_of_one_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Data.windows

    def halves(self: Data, batch: int, context: int, *seed: int) -> Tensor:
        whole = real(self, 4, context, *seed[:-1], 0)
        return whole[seed[-1] * batch :][:batch]

    monkeypatch.setattr(Data, "windows", halves)
    switches = {"optimizer": "sgd", "steps": 3, "clip": 0.5}
    one = train(tiny(**switches, batch=4), tmp_path / "one")
    two = train(tiny(**switches, batch=2, accumulate=2), tmp_path / "two")
    a, b = (load_state(done.folder)["model"] for done in (one, two))
    for name in a:
        torch.testing.assert_close(a[name], b[name], rtol=1e-4, atol=1e-6)
    assert one.losses[-1]["train"] == pytest.approx(two.losses[-1]["train"], rel=1e-5)
