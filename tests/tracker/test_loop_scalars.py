"""The scalars of every step: right, complete, invisible, and never read before they are written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from anisoscope import InputError, Record, Tracker, alerts
from anisoscope.schedule import at
from anisoscope.tracker import loop_scalars
from anisoscope.tracker.journal import WRITE_EVERY
from anisoscope.tracker.roll_call import Agreement, RollCall
from tests.training import LAYERS, held_out, records, small_model, words

CHEAP: dict[str, Any] = {"metrics": ["mean_cosine"], "bars_every": None, "schedule": at(0), "gradients": False}


def follow(folder: Path, steps: int = 3, **options: Any) -> tuple[Any, list[float], list[float]]:
    """Train with a tracker; return the model, the losses and the gradient norms as plain torch gives them."""
    model = small_model()
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses, norms = [], []
    with Tracker(model, held_out(), folder / "run", **{**CHEAP, **options}) as tracker:
        torch.manual_seed(7)
        for step in range(steps):
            optimiser.param_groups[0]["lr"] = 1e-3 * (step + 1)
            tracker.probe(step)
            loss = model(**words(step)).loss
            loss.backward()
            tracker.watch(step, loss=loss)
            losses.append(float(loss.detach()))
            norms.append(float(torch.nn.utils.get_total_norm([p.grad for p in model.parameters()])))
            optimiser.step()
            optimiser.zero_grad()
    return model, losses, norms


def curve(folder: Path, metric: str, site: str = "loop") -> list[float | None]:
    return [record.value for record in records(folder, metric=metric, site=site)]


def test_every_step_has_its_loss_gradient_norm_learning_rate_and_update(tmp_path: Path) -> None:
    _, losses, norms = follow(tmp_path)
    assert curve(tmp_path, "train_loss") == pytest.approx(losses, rel=1e-6)
    assert curve(tmp_path, "gradient_norm") == pytest.approx(norms, rel=1e-5)
    assert curve(tmp_path, "learning_rate") == pytest.approx([2e-3, 3e-3])  # the optimiser is found at its first step
    updates = curve(tmp_path, "update_ratio")
    assert len(updates) == 3
    assert all(update is not None and 0 < update < 0.5 for update in updates)
    assert {r.site for r in records(tmp_path, metric="gradient_norm", step=0)} == {
        "loop", "weight.rest", *(f"resid.{i}" for i in range(LAYERS)),
    }  # fmt: skip


def test_a_given_optimiser_has_its_learning_rate_from_the_first_step(tmp_path: Path) -> None:
    model = small_model()
    optimiser = torch.optim.SGD(model.parameters(), lr=torch.tensor(0.25))
    with Tracker(model, held_out(), tmp_path / "run", optimizer=optimiser, **CHEAP) as tracker:
        tracker.probe(0)
        model(**words(0)).loss.backward()
        tracker.watch(0)
    assert curve(tmp_path, "learning_rate") == [0.25]


def test_weights_are_the_same_with_and_without_scalars(tmp_path: Path) -> None:
    plain, _, _ = follow(tmp_path / "a", scalars=False)
    followed, _, _ = follow(tmp_path / "b")
    assert all(torch.equal(x, followed.state_dict()[name]) for name, x in plain.state_dict().items())
    assert not records(tmp_path / "a", site="loop")


def test_scalars_are_written_in_batches_and_layers_at_every_tenth_step(tmp_path: Path) -> None:
    model = small_model(n_layer=1)
    written: list[int] = []
    with Tracker(model, held_out(), tmp_path / "run", log=[lambda r: written.append(len(r))], **CHEAP) as tracker:
        for step in range(WRITE_EVERY + 3):
            tracker.probe(step)
            if step == 0:
                model(**words(step)).loss.backward()
            tracker.watch(step, loss=1.0)
    assert len(written) == 3  # the probe, the scalars of the first ten steps, and the rest
    assert {r.step for r in records(tmp_path, site="resid.0", metric="gradient_norm")} == set(
        range(0, WRITE_EVERY + 3, 10)
    )


def test_a_loss_of_nan_is_recorded_and_raises_an_alert_with_its_step(tmp_path: Path) -> None:
    model = small_model()
    with Tracker(model, held_out(), tmp_path / "run", alerts=alerts.stability(), **CHEAP) as tracker:
        for step in range(3):
            tracker.probe(step)
            loss = model(**words(step)).loss * (float("nan") if step == 1 else 1.0)
            tracker.watch(step, loss=loss)
    assert [(r.value is None, r.note) for r in records(tmp_path, metric="train_loss")][1] == (True, "train_loss is nan")
    (found,) = records(tmp_path, metric="alert")
    assert (found.step, found.site, found.variant["rule"]) == (1, "loop", "not_finite")
    assert "train_loss is nan" in (found.note or "")
    assert "Usually helps:" in (found.note or "")


def test_on_a_cpu_an_alert_of_the_loop_is_written_before_the_next_forward(tmp_path: Path) -> None:
    model = small_model()
    with Tracker(model, held_out(), tmp_path / "run", **CHEAP) as tracker:
        for step in range(4):
            tracker.probe(step)
            assert bool(records(tmp_path, metric="alert")) == (step == 3)
            loss = model(**words(step)).loss
            loss.backward()
            tracker.watch(step, loss=loss * float("nan") if step == 2 else loss)


def test_a_value_of_the_loop_is_recorded_under_its_name(tmp_path: Path) -> None:
    for scalars in (True, False):
        folder = tmp_path / str(scalars)
        with Tracker(small_model(), held_out(), folder / "run", scalars=scalars, **CHEAP) as tracker:
            tracker.log(5, validation_loss=torch.tensor(2.5), perplexity=12)
            with pytest.raises(InputError, match="letters, digits and underscores"):
                tracker.log(5, **{"validation loss": 1.0})
            with pytest.raises(InputError, match="Log a number"):
                tracker.log(5, text="high")  # type: ignore[arg-type]
        found = {(r.step, r.metric): r.value for r in records(folder, site="loop")}
        assert found == {(5, "validation_loss"): 2.5, (5, "perplexity"): 12.0}


class HostReads(TorchDispatchMode):
    """Counts the float tensors whose values Python reads: on a GPU, each read waits for the device."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        reads = func in (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.nonzero.default)
        self.count += reads and isinstance(args[0], Tensor) and args[0].is_floating_point()
        return func(*args, **(kwargs or {}))


def reads_of(action: Callable[[], object]) -> int:
    with HostReads() as reads:
        action()
    return reads.count


def test_no_float_is_read_in_hooks_or_at_a_step_that_is_not_due(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop_scalars, "READ_AFTER", {})  # the CPU stands for an accelerator
    model = small_model()
    with Tracker(model, held_out(), tmp_path / "run", **{**CHEAP, "gradients": True}) as tracker:
        tracker.probe(0)
        losses: list[Tensor] = []
        hooks = reads_of(lambda: losses.append(model(**words(0)).loss)) + reads_of(lambda: losses[0].backward())
        assert hooks == 0
        tracker.watch(0, loss=losses[0])
        assert reads_of(lambda: tracker.probe(1)) == 0
        loss = model(**words(1)).loss
        loss.backward()
        assert reads_of(lambda: tracker.watch(1, loss=loss)) == 0
        assert reads_of(lambda: tracker.close()) > 0  # so that the count can fail
    assert [isinstance(record, Record) for record in records(tmp_path, metric="train_loss")] == [True, True]


def test_ranks_with_sharded_weights_meet_anew_at_every_flush(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that was used before would find the decision of that time, and nobody would wait for a late rank."""
    model = small_model()
    meetings: list[str] = []

    def meet(_self: RollCall, name: str, message: str = "") -> Agreement:
        meetings.append(name)
        return Agreement(message)

    monkeypatch.setattr(RollCall, "__call__", meet)
    monkeypatch.setattr(loop_scalars.LoopScalars, "together", True)
    with Tracker(model, held_out(), tmp_path / "run", **CHEAP) as tracker:
        for step in range(3):
            tracker.probe(step)
            model(**words(step)).loss.backward()
            tracker.watch(step)
            tracker.flush()
    assert {name for name in meetings if name.startswith("scalars")} == {f"scalars {step}" for step in range(3)}
