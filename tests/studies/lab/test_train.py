"""The training loop: what it leaves behind, how it ends, and that a break leaves no trace."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from typer.testing import CliRunner

from anisoscope.cli import app
from anisoscope.errors import AnisoscopeError, InputError
from anisoscope.measurement.measure_model import measure
from anisoscope.models.checkpoints import checkpoints
from anisoscope.models.open import open_model
from anisoscope.store.run import Run
from anisoscope.studies.lab.bf16 import require_bf16
from anisoscope.studies.lab.experiment import KINDS, Experiment, cells, changed, differences
from anisoscope.studies.lab.interventions import Interventions, principal_directions
from anisoscope.studies.lab.losses import read_losses
from anisoscope.studies.lab.targets import isoscore_star
from anisoscope.studies.lab.token_data import Data, open_data
from anisoscope.studies.lab.train import Observe, experiment_of, learning_rate, resume_training, train
from anisoscope.studies.lab.training_state import load_state
from anisoscope.studies.lab.transformer import Config, Transformer
from anisoscope.studies.lab.twins import over_seeds, train_cell

TINY = {"layers": 2, "width": 16, "heads": 2, "context": 16, "batch": 4, "steps": 12, "learning_rate": 0.01}


def tiny(**switches: Any) -> Experiment:
    return changed(Experiment(), TINY | switches)


class Looker:
    """An observer that notes what it is told and asks to stop at a step."""

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


def looking(looker: Looker) -> Observe:
    def observe(model: Transformer, probe: dict[str, Tensor], folder: Path, start: int) -> Looker:
        model.register_forward_pre_hook(lambda _m, _a, kwargs: looker.inputs.append(kwargs), with_kwargs=True)
        return looker

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


# --- learning ---


def test_a_small_decoder_learns_more_than_counting_letters(tmp_path: Path) -> None:
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


# --- what is left behind ---


def test_checkpoints_are_kept_at_log_spaced_steps_and_open_like_any_model(tmp_path: Path) -> None:
    done = train(tiny(tied=False), tmp_path / "run")
    found = checkpoints(done.folder)
    assert [c.step for c in found] == [0, 1, 2, 4, 8, 12]
    opened = open_model(found[-1].source)
    assert opened.info["lab"]["step"] == 12
    assert opened.info["max_positions"] == 16
    trained = Transformer(done.experiment.model)
    trained.load_state_dict(load_state(done.folder)["model"])
    with torch.no_grad():
        ids = torch.arange(12)[None]
        assert torch.equal(opened.model(ids).logits, trained.eval()(ids).logits)
    run = measure(found[-1].source, text=["A text that the model has not seen. " * 10] * 4, metrics=["mean_cosine"])
    assert {r.site for r in run.records()} == {"embed", "resid.0", "resid.1", "final"}
    assert all(r.value is not None for r in run.records())


def test_a_damaged_checkpoint_is_refused(tmp_path: Path) -> None:
    done = train(tiny(steps=1), tmp_path / "run")
    folder = done.folder / "checkpoints" / "step-1"
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"layers": 3}))
    with pytest.raises(InputError, match="do not fit"):
        open_model(folder)
    assert checkpoints(done.folder)[0].problem is None


def test_the_tokens_of_a_checkpoint_are_those_of_the_training(tmp_path: Path) -> None:
    for kind in ("char", "byte", "bpe"):
        done = train(tiny(steps=1, tokens=kind), tmp_path / kind)
        tokenizer: Any = open_model(done.folder / "checkpoints" / "step-1").processor
        data = open_data(done.folder / "data")
        text = data.tokenizer.decode(data.train[:200].tolist())
        expected = data.tokenizer.encode(text, add_special_tokens=False).ids
        assert tokenizer(text, add_special_tokens=False)["input_ids"] == expected


def test_the_run_says_what_was_done(tmp_path: Path) -> None:
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
    looker = Looker()
    train(tiny(dropout=0.1), tmp_path / "watched", observe=looking(looker))
    train(tiny(dropout=0.1), tmp_path / "alone")
    steps = [call for step in range(12) for call in (("probe", step), ("watch", step))]
    assert looker.calls == [*steps, ("probe", 12), ("close", -1)]
    same(tmp_path / "watched", tmp_path / "alone")


# --- breaks ---

HARD: list[dict[str, Any]] = [
    {"dropout": 0.2, "accumulate": 2},
    {"kind": "encoder", "dropout": 0.1, "project": "tangent", "rank": 3, "refresh": 5, "centring": 0.5},
    {"optimizer": "sgd", "isoscore": 0.3, "project": "random", "rank": 3},
]


@pytest.mark.parametrize("switches", HARD, ids=lambda s: "-".join(s))
@pytest.mark.parametrize("at", [3, 8])
def test_a_training_that_was_broken_off_ends_as_if_it_had_not_been(
    switches: dict[str, Any], at: int, tmp_path: Path
) -> None:
    train(tiny(**switches), tmp_path / "whole")
    stopped = train(tiny(**switches), tmp_path / "broken", observe=looking(Looker(stop_at=at)))
    assert (stopped.step, stopped.stopped) == (at, "observer")
    done = resume_training(tmp_path / "broken")
    assert (done.step, done.stopped) == (12, None)
    same(tmp_path / "whole", tmp_path / "broken", extra=(f"step-{at}",) if at == 3 else ())


def test_a_finished_training_can_be_resumed_and_stays_as_it_is(tmp_path: Path) -> None:
    train(tiny(), tmp_path / "run")
    before = tensors_of(tmp_path / "run")
    resume_training(tmp_path / "run")
    after = tensors_of(tmp_path / "run")
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert [row["step"] for row in read_losses(tmp_path / "run")].count(12) == 1


def lab(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "anisoscope", "lab", *map(str, arguments)]


def refusal(*arguments: str | Path) -> str:
    """The error that a command of the lab ends with."""
    error = CliRunner().invoke(app, ["lab", *map(str, arguments)]).exception
    assert isinstance(error, AnisoscopeError)
    return str(error)


def break_off(arguments: list[str], folder: Path, how: signal.Signals) -> tuple[int, str]:
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
def test_ctrl_c_and_kill_lose_nothing_that_resume_cannot_make_again(how: signal.Signals, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    code, errors = break_off(lab("train", *SMALL, "--no-track", "--out", folder), folder, how)
    if how == signal.SIGINT:
        assert code == 130
        assert f"anisoscope lab train --resume --out {folder}" in errors.replace("\n", "")
        assert Run.open(folder).info["ended"]["stopped"] == "interrupted"
    reached = load_state(folder)["step"]
    assert 64 <= reached < 400
    assert CliRunner().invoke(app, ["lab", "train", "--resume", "--no-track", "--out", str(folder)]).exit_code == 0
    switches = {"layers": 1, "width": 16, "heads": 2, "context": 16, "batch": 2, "steps": 400}
    train(changed(Experiment(), switches), tmp_path / "whole")
    same(tmp_path / "whole", folder, extra=(f"step-{reached}/",) if reached & (reached - 1) else ())


# --- bad input ---


def test_divergence_stops_the_training_says_the_step_and_keeps_the_run(tmp_path: Path) -> None:
    done = train(tiny(learning_rate=1e30, clip=0.0, steps=60, optimizer="sgd"), tmp_path / "run")
    assert done.stopped == "diverged"
    assert 1 <= done.step < 30
    state = load_state(tmp_path / "run")
    assert state["step"] <= done.step
    assert all(bool(value.isfinite().all()) for value in state["model"].values() if value.is_floating_point())
    assert Run.open(tmp_path / "run").info["ended"] == {"step": done.step, "stopped": "diverged"}
    switches = [*SMALL, "--set", "clip=0", "--set", "optimizer=sgd", "--learning-rate", "1e30", "--no-track"]
    assert "no longer finite at step" in refusal("train", *switches, "--out", tmp_path / "command")


def test_a_folder_with_something_in_it_is_refused(tmp_path: Path) -> None:
    train(tiny(steps=1), tmp_path / "run")
    with pytest.raises(InputError, match="exists already"):
        train(tiny(steps=1), tmp_path / "run")
    with pytest.raises(AnisoscopeError, match="not a run"):
        resume_training(tmp_path / "nowhere") if (tmp_path / "nowhere").exists() else experiment_of(
            tmp_path / "nowhere"
        )


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


def test_resuming_with_another_switch_is_refused(tmp_path: Path) -> None:
    train(tiny(), tmp_path / "run")
    said = refusal("train", "--resume", "--width", "32", "--out", tmp_path / "run")
    assert "was started with width 16, not 32" in said


def test_bfloat16_is_tried_in_another_process_first() -> None:
    with pytest.raises(InputError, match="trial in another process failed"):
        require_bf16("nonsense")


@pytest.mark.slow
def test_bfloat16_trains_where_it_works(tmp_path: Path) -> None:
    try:
        require_bf16("cpu")
    except InputError:
        return  # this CPU cannot, and said so instead of dying
    done = train(tiny(bf16=True, steps=3), tmp_path / "run")
    assert done.stopped is None
    assert load_state(tmp_path / "run")["model"]["tokens.weight"].dtype == torch.float32


# --- switches ---


@pytest.mark.parametrize(
    ("switches", "words"),
    [
        ({"atention": "softmax"}, "did you mean attention"),
        ({"attention": "sofmax"}, "choose one of softmax"),
        ({"layers": "many"}, "expected int"),
        ({"causal": "maybe"}, "expected bool"),
        ({"kind": "decodr"}, "did you mean decoder"),
        ({"masking": 1.5}, "from 0 to 1"),
        ({"steps": 0}, "at least 1"),
        ({"project": "tangent", "rank": 500}, "smaller rank"),
        ({"kind": "encoder", "objective": "next"}, "sees its next token"),
    ],
)
def test_switches_that_make_no_sense_say_so(switches: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        changed(Experiment(), switches)


def test_switches_given_as_text_have_their_type() -> None:
    made = changed(Experiment(), {"layers": "3", "dropout": "0", "tied": "False", "mlp": "none", "text": "zipf"})
    assert (made.model.layers, made.model.dropout, made.model.tied) == (3, 0.0, False)
    assert isinstance(made.model.dropout, float)
    assert differences(Experiment(), made) == {"layers": (4, 3), "tied": (True, False), "text": ("topics", "zipf")}
    assert Experiment.from_json(json.loads(json.dumps(made.to_json()))) == made


def test_cells_change_one_switch_at_a_time() -> None:
    found = cells(Experiment(), ["attention=softmax,uniform", "text=zipf;topics", "width=64"])
    assert list(found) == ["base", "attention-uniform", "text-zipf", "width-64"]
    assert all(len(differences(found["base"], cell)) <= 1 for cell in found.values())
    assert list(over_seeds(found, 2))[-1] == "width-64-seed-1"


def test_the_learning_rate_rises_and_falls() -> None:
    recipe = replace(Experiment().recipe, steps=200, warmup=0.1, learning_rate=2.0, floor=0.1)
    rates = [learning_rate(recipe, step) for step in range(201)]
    assert rates.index(max(rates)) in (19, 20)
    assert rates[:20] == pytest.approx(np.linspace(0.1, 2.0, 20))
    assert rates[-1] == pytest.approx(0.2)
    assert all(a >= b for a, b in pairwise(rates[20:]))


# --- twins ---


def test_twins_share_first_weights_data_and_its_order(tmp_path: Path) -> None:
    seen: dict[str, list[dict[str, Tensor]]] = {}
    first: dict[str, dict[str, Tensor]] = {}
    for name, cell in cells(tiny(), []).items():
        looker = Looker()
        train_cell(cell, tmp_path, name, observe=looking(looker))
        seen[name] = [call for call in looker.inputs if "labels" in call]
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


def test_twins_go_on_where_they_stopped(tmp_path: Path) -> None:
    wanted = cells(tiny(), ["attention=softmax,uniform"])
    train_cell(wanted["base"], tmp_path, "base")
    train_cell(wanted["attention-uniform"], tmp_path, "attention-uniform", observe=looking(Looker(stop_at=5)))
    again = {name: train_cell(cell, tmp_path, name, resume=True) for name, cell in wanted.items()}
    assert [done.step for done in again.values()] == [12, 12]
    assert again["base"].seconds == 0.0
    train(wanted["attention-uniform"], tmp_path / "whole")
    same(tmp_path / "whole", tmp_path / "attention-uniform", extra=("step-5",))
    with pytest.raises(InputError, match="other switches"):
        train_cell(tiny(width=32), tmp_path, "base", resume=True)


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


# --- interventions ---


def stream(folder: Path, step: int = 12) -> Tensor:
    """Outputs of the last block on held-out text, (n, width)."""
    model: Any = open_model(folder / "checkpoints" / f"step-{step}").model
    data = open_data(folder / "data")
    kept: list[Tensor] = []
    model.blocks[-1].register_forward_hook(lambda _m, _i, out: kept.append(out))
    with torch.no_grad():
        model(data.held_out(64, 16))
    return kept[0].flatten(0, 1)


def test_the_regulariser_moves_isotropy_the_way_it_is_told(tmp_path: Path) -> None:
    score = {}
    for weight in (-3.0, 0.0, 3.0):
        done = train(tiny(isoscore=weight, steps=60), tmp_path / f"{weight}")
        score[weight] = float(isoscore_star(stream(done.folder, 60), 0.0))
    assert score[-3.0] < score[0.0] < score[3.0]


def test_centring_keeps_the_mean_of_the_stream_small(tmp_path: Path) -> None:
    share = {}
    for strength in (0.0, 1.0):
        x = stream(train(tiny(centring=strength, steps=60), tmp_path / f"{strength}").folder, 60)
        share[strength] = float(x.mean(0).norm() / x.square().sum(1).mean().sqrt())
    assert share[1.0] < 0.5 * share[0.0]


@pytest.mark.parametrize("part", ["tangent", "normal", "random"])
def test_projected_gradients_stay_in_their_part(part: str) -> None:
    model = Transformer(Config(vocabulary=20, context=8, layers=3, width=16, heads=2))
    ids = torch.randint(0, 20, (6, 8), generator=torch.Generator().manual_seed(0))
    recipe = tiny(project=part, rank=3).recipe
    grads: dict[int, Tensor] = {}
    expected: list[Tensor] = principal_directions(model, ids, 3)
    with Interventions(model, recipe, ids) as interventions:
        interventions.before_step(0)
        for layer, block in enumerate(model.blocks):
            block.register_forward_hook(_noting(grads, layer))
        model(ids, labels=ids).loss.backward()
    bases = interventions.bases
    if part != "random":
        assert all(torch.allclose(a @ a.mT, b @ b.mT, atol=1e-5) for a, b in zip(bases, expected, strict=True))
    for layer, basis in enumerate(bases):
        torch.testing.assert_close(basis.mT @ basis, torch.eye(3), atol=1e-5, rtol=0)
        inside = float((grads[layer] @ basis).norm() / grads[layer].norm())
        assert inside == pytest.approx(0.0 if part == "normal" else 1.0, abs=1e-4)
    grads.clear()
    model(ids, labels=ids).loss.backward()  # outside the `with` nothing is left
    assert 0.01 < float((grads[1] @ bases[1]).norm() / grads[1].norm()) < 0.999


def _noting(grads: dict[int, Tensor], layer: int) -> Callable[..., None]:
    return lambda _m, _i, out: out.register_hook(lambda g: grads.__setitem__(layer, g)) and None


def test_principal_directions_are_those_of_a_full_decomposition() -> None:
    model = Transformer(Config(vocabulary=20, context=8, layers=2, width=16, heads=2)).train()
    ids = torch.randint(0, 20, (30, 8), generator=torch.Generator().manual_seed(0))
    kept: list[Tensor] = []
    hook = model.blocks[1].register_forward_hook(lambda _m, _i, out: kept.append(out.detach().flatten(0, 1)))
    found = principal_directions(model, ids, 4)[1]
    hook.remove()
    x = kept[0].double().numpy()
    axes = np.linalg.svd(x - x.mean(0))[2][:4].T
    assert np.allclose(axes @ axes.T, found @ found.mT, atol=1e-4)
    assert model.training
