"""The tracker in a plain loop: invisible, paired, resumable, and honest about what failed."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from anisoscope import CaptureError, InputError, Run, StoreError, Tracker, metric
from anisoscope.schedule import at, every
from anisoscope.stats.moments import Moments
from tests.training import held_out, hooks_of, records, small_model, tracked, train, value, words

CHEAP: dict[str, Any] = {"metrics": ["mean_cosine"]}  # where it does not matter what is measured


def state_of(model: nn.Module, optimiser: torch.optim.Optimizer) -> dict[str, Tensor]:
    state = {f"weight {name}": x for name, x in model.state_dict().items()}
    for number, moments in optimiser.state_dict()["state"].items():
        state |= {f"optimiser {number} {name}": x for name, x in moments.items()}
    return {**state, "random": torch.get_rng_state()}


# --- invisible ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("micro", [1, 2])
def test_weights_optimiser_and_random_numbers_are_the_same_with_and_without_a_tracker(
    tmp_path: Path, micro: int
) -> None:
    states = []
    for follow in (False, True):
        model = small_model()
        tracker = tracked(tmp_path, model, weights=["transformer.h.1.mlp.c_fc.weight"]) if follow else None
        random.seed(3)
        np.random.seed(3)
        optimiser = train(model, tracker, range(4), micro=micro)
        states.append({**state_of(model, optimiser), "python": random.random(), "numpy": float(np.random.rand())})
    plain, followed = states
    assert plain.keys() == followed.keys()
    for name, before in plain.items():
        assert torch.equal(torch.as_tensor(before), torch.as_tensor(followed[name])), name


def test_modes_gradients_and_hooks_are_untouched_by_a_probe(tmp_path: Path) -> None:
    model = small_model()
    model.transformer.h[1].eval()  # a part that the user froze
    model.transformer.wte.weight.requires_grad_(False)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter) if parameter.requires_grad else None
    before = [(m.training, hooks_of(m)) for m in model.modules()]
    asked = [p.requires_grad for p in model.parameters()]
    tracker = tracked(tmp_path, model, gradients=False)
    tracker.probe(0)
    assert [(m.training, hooks_of(m)) for m in model.modules()] == before
    assert [p.requires_grad for p in model.parameters()] == asked
    assert all(p.grad is None or bool((p.grad == 1).all()) for p in model.parameters())


def test_hooks_are_there_only_between_probe_and_watch_of_a_due_step(tmp_path: Path) -> None:
    model = small_model()
    tracker = tracked(tmp_path, model, **CHEAP)
    for step in range(4):
        tracker.probe(step)
        assert (hooks_of(model) > 0) == (step % 2 == 0)
        model(**words(step)).loss.backward()
        tracker.watch(step)
        assert hooks_of(model) == 0


class Running(nn.Module):
    """A model that counts its own forwards in a buffer, whatever its mode."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = small_model()
        self.calls: Tensor
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, input_ids: Tensor, labels: Tensor) -> Any:
        self.calls += 1
        return self.inner(input_ids=input_ids, labels=labels)


def test_buffers_that_a_forward_writes_to_are_put_back(tmp_path: Path) -> None:
    model = Running()
    tracker = tracked(tmp_path, model, **CHEAP)
    tracker.probe(0)
    assert int(model.calls) == 0


class Caching(nn.Module):
    """A model that makes a table for a shape of batch when it first needs it, and keeps it."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = small_model()
        self.scale = nn.Parameter(torch.ones(1))
        self.kept: Tensor | None = None

    def forward(self, input_ids: Tensor, labels: Tensor) -> Any:
        if self.kept is None or self.kept.shape != input_ids.shape:
            self.kept = torch.ones(input_ids.shape)
        output = self.inner(input_ids=input_ids, labels=labels)
        return {"loss": output.loss + (self.scale * self.kept).mean()}


def test_what_a_model_caches_during_a_probe_can_take_part_in_training(tmp_path: Path) -> None:
    model = Caching()
    with tracked(tmp_path, model, **CHEAP) as tracker:
        train(model, tracker, range(2), batch=lambda seed: words(seed, items=8))  # of the probe's shape


@pytest.mark.parametrize("what", [RuntimeError("boom"), KeyboardInterrupt()], ids=lambda e: type(e).__name__)
def test_an_exception_in_the_model_during_a_probe_leaves_it_as_it_was(tmp_path: Path, what: BaseException) -> None:
    model = small_model()
    tracker = tracked(tmp_path, model)
    drawn = torch.get_rng_state()

    def fail(*_: Any) -> None:
        torch.rand(3)
        raise what

    handle = model.transformer.h[1].register_forward_hook(fail)
    with pytest.raises(type(what)):
        tracker.probe(0)
    handle.remove()
    assert hooks_of(model) == 0
    assert all(module.training for module in model.modules())
    assert torch.equal(torch.get_rng_state(), drawn)


def test_a_live_forward_that_fails_takes_the_hooks_along(tmp_path: Path) -> None:
    model = small_model()
    tracker = tracked(tmp_path, model, **CHEAP)
    tracker.probe(0)
    with pytest.raises(IndexError):
        model(torch.full((1, 4), 10**6))
    assert hooks_of(model) == 0


def test_hooks_that_ctrl_c_left_behind_go_with_the_next_probe_or_the_tracker(tmp_path: Path) -> None:
    model = small_model()

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    with tracked(tmp_path, model, **CHEAP) as tracker:
        tracker.probe(0)
        handle = model.transformer.h[2].register_forward_hook(interrupt)
        with pytest.raises(KeyboardInterrupt):
            model(**words(0))
        handle.remove()
        assert hooks_of(model) > 0
        tracker.probe(1)
        assert hooks_of(model) == 0
        tracker.probe(2)
    assert hooks_of(model) == 0


# --- what is recorded ---------------------------------------------------------------------------------------------


def test_a_due_step_has_layers_attention_drift_and_gradients(tmp_path: Path) -> None:
    model = small_model()
    with tracked(tmp_path, model, weights=["lm_head.weight"]) as tracker:
        train(model, tracker, range(3))
    found = {(r.site, r.metric) for r in records(tmp_path, step=2)}
    for site in ("embed", "resid.0", "resid.2", "final"):
        assert {(site, m) for m in ("mean_cosine", "isoscore", "two_nn", "cka", "subspace_angle")} <= found
    assert {("pattern.1", m) for m in ("attention_entropy", "q_drift", "qk_cosine", "k_direction_drift")} <= found
    for site in ("grad.resid.0", "grad.resid.2"):
        assert {(site, m) for m in ("gradient_norm", "isoscore", "spectral_anisotropy", "gradient_energy")} <= found
    assert ("grad.weight.lm_head.weight", "gradient_norm") in found
    assert {r.step for r in records(tmp_path)} == {0, 2}
    assert not [r for r in records(tmp_path) if r.value is None]


def test_steps_are_paired_and_nothing_has_moved_at_the_reference_itself(tmp_path: Path) -> None:
    model = small_model()
    with tracked(tmp_path, model) as tracker:
        train(model, tracker, range(3))
    for site in ("embed", "resid.1"):
        assert value(tmp_path, step=0, site=site, metric="cka") == pytest.approx(1, abs=1e-9)
        assert value(tmp_path, step=0, site=site, metric="mean_direction_drift") == pytest.approx(1, abs=1e-9)
        assert 0.5 < value(tmp_path, step=2, site=site, metric="cka") < 0.999999


def test_the_reference_can_be_a_later_step(tmp_path: Path) -> None:
    model = small_model()
    with tracked(tmp_path, model, reference=2, gradients=False, metrics=["cka"]) as tracker:
        train(model, tracker, range(5))
    assert {r.step for r in records(tmp_path, metric="cka")} == {2, 4}


def test_error_bars_come_at_every_tenth_probe_only(tmp_path: Path) -> None:
    model = small_model()
    with tracked(tmp_path, model, schedule=every(1), bars_every=2, gradients=False, metrics=["isoscore"]) as tracker:
        for step in range(4):
            tracker.probe(step)
    found = records(tmp_path, site="resid.1", metric="isoscore", tokens="no-sink")
    assert {r.step: r.error is not None for r in found} == {0: True, 1: False, 2: True, 3: False}


def test_packed_sequences_are_windows(tmp_path: Path) -> None:
    model = small_model()
    parts = held_out(4)["input_ids"]
    packed = {
        "input_ids": parts.reshape(1, -1),
        "position_ids": torch.arange(16).repeat(4)[None],
    }
    with Tracker(model, packed, tmp_path / "run", gradients=False, metrics=["mean_cosine"]) as tracker:
        tracker.probe(0)
    (found,) = records(tmp_path, site="resid.1", tokens="no-sink")
    assert found.n == 4 * 15  # each part's first token is a sink
    assert Run.open(tmp_path / "run").info["unit"] == "windows"


# --- misuse and failure -------------------------------------------------------------------------------------------


def test_watch_without_probe_says_what_to_call(tmp_path: Path) -> None:
    tracker = tracked(tmp_path, small_model())
    with pytest.raises(InputError, match=r"Call tracker\.probe\(3\) before the forward"):
        tracker.watch(3)
    tracker.probe(2)
    with pytest.raises(InputError, match=r"after probe\(2\)"):
        tracker.watch(3)


def test_calls_around_no_forward_or_no_backward_say_so(tmp_path: Path) -> None:
    model = small_model()
    tracker = tracked(tmp_path, model, **CHEAP)
    tracker.probe(0)
    with pytest.raises(CaptureError, match="No forward of GPT2LMHeadModel ran"):
        tracker.watch(0)
    tracker.probe(2)
    model(**words(0))
    with pytest.raises(CaptureError, match=r"Call watch after loss\.backward"):
        tracker.watch(2)
    assert hooks_of(model) == 0


def test_a_silent_step_later_in_training_is_noted_and_training_goes_on(tmp_path: Path) -> None:
    model = small_model()
    with tracked(tmp_path, model, **CHEAP) as tracker:
        train(model, tracker, range(1))
        tracker.probe(2)
        tracker.watch(2)
    (found,) = records(tmp_path, step=2, metric="gradient_norm")
    assert found.value is None
    assert "No forward" in (found.note or "")


@metric(Moments, low=0, high=1, keeps=set(), paper="none")
def broken(moments: Moments) -> float:
    """Always fails."""
    raise ZeroDivisionError("as it must")


def test_a_failing_metric_is_written_down_and_training_goes_on(tmp_path: Path) -> None:
    model = small_model()
    with tracked(tmp_path, model, metrics=["isoscore", broken], gradients=False) as tracker:
        train(model, tracker, range(2))
    (found,) = records(tmp_path, site="resid.0", metric="broken", tokens="all")
    assert found.value is None
    assert "ZeroDivisionError: as it must" in (found.note or "")
    assert value(tmp_path, site="resid.0", metric="isoscore", tokens="all") > 0


def test_strict_raises_where_a_metric_fails(tmp_path: Path) -> None:
    model = small_model()
    tracker = tracked(tmp_path, model, metrics=[broken], strict=True)
    with pytest.raises(ZeroDivisionError):
        tracker.probe(0)
    assert hooks_of(model) == 0
    assert all(module.training for module in model.modules())


def test_a_logger_that_fails_does_not_end_the_training(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    told: list[int] = []

    def lost(_: Any) -> None:
        raise ConnectionError("no network")

    model = small_model()
    with tracked(tmp_path, model, **CHEAP, log=[lost, lambda records: told.append(len(records))]) as tracker:
        train(model, tracker, range(1))
    assert "no network" in caplog.text
    assert len(told) == 2  # the probe and the watch
    assert sum(told) == len(records(tmp_path))


def test_a_weight_that_does_not_exist_is_refused_with_its_neighbours(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"lm_head\.weight"):
        tracked(tmp_path, small_model(), weights=["lm_heads.weight"])


def test_an_empty_probe_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="held-out tokens"):
        Tracker(small_model(), [], tmp_path / "run")


# --- resume -------------------------------------------------------------------------------------------------------


def test_a_restarted_training_continues_its_run_and_no_step_appears_twice(tmp_path: Path) -> None:
    model = small_model()
    with tracked(tmp_path, model) as tracker:
        train(model, tracker, range(7))
    before = {(r.site, r.metric, r.tokens, r.index, str(r.variant)) for r in records(tmp_path, step=6)}
    again = small_model(seed=1)  # as if restored from a checkpoint of step 4
    with tracked(tmp_path, again, resume=4) as tracker:
        assert {r.step for r in records(tmp_path)} == {0, 2}
        train(again, tracker, range(4, 7))
    found = records(tmp_path)
    assert {r.step for r in found} == {0, 2, 4, 6}
    keys = [(r.step, r.site, r.metric, r.tokens, r.index, str(r.variant)) for r in found]
    assert len(set(keys)) == len(keys)
    assert {key[1:] for key in keys if key[0] == 6} == before
    # the reference is still step 0 of the first training, whose model had other weights
    assert value(tmp_path, step=4, site="resid.2", metric="mean_direction_drift") < 0.9


def test_a_run_is_not_continued_with_other_held_out_tokens(tmp_path: Path) -> None:
    tracked(tmp_path, small_model()).close()
    with pytest.raises(InputError, match="other held-out tokens"):
        Tracker(small_model(), words(5), tmp_path / "run", resume=1)
    tracked(tmp_path, small_model(), resume=1).close()  # the run is free again


def test_an_existing_run_is_not_overwritten_by_accident(tmp_path: Path) -> None:
    tracked(tmp_path, small_model()).close()
    with pytest.raises(StoreError, match="resume=step"):
        tracked(tmp_path, small_model())


# --- overhead -----------------------------------------------------------------------------------------------------


def test_the_tracker_reports_its_own_time(tmp_path: Path) -> None:
    model = small_model()
    with tracked(tmp_path, model, **CHEAP) as tracker:
        train(model, tracker, range(3))
        assert tracker.overhead > 0
    facts = Run.open(tmp_path / "run").info["tracker"]
    assert facts["probes"] == 2
    assert facts["seconds"] > 0


def test_a_budget_that_is_spent_stretches_the_schedule(tmp_path: Path) -> None:
    model = small_model()
    with tracked(tmp_path, model, schedule=every(1), max_overhead=1e-6, gradients=False, **CHEAP) as tracker:
        train(model, tracker, range(4))
    assert {r.step for r in records(tmp_path)} == {0}
    assert Run.open(tmp_path / "run").info["tracker"]["skipped to stay within max_overhead"] == 3


def test_a_budget_that_is_not_spent_leaves_the_schedule_alone(tmp_path: Path) -> None:
    model = small_model()
    with tracked(tmp_path, model, schedule=at(0, 1), max_overhead=1e6, gradients=False, **CHEAP) as tracker:
        train(model, tracker, range(2))
    assert {r.step for r in records(tmp_path)} == {0, 1}
