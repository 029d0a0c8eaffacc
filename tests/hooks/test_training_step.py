"""The true gradients of the training batch, against plain autograd: accumulation, checkpointing, compilers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from anisoscope import Tracker
from anisoscope.models.devices import half_fails
from anisoscope.schedule import at
from tests.oracles.hidden_gradients import hidden_gradients, isoscore
from tests.tiny_models import build
from tests.training import (
    LAYERS,
    Stack,
    held_out,
    hf,
    hooks_of,
    records,
    small_model,
    tracked,
    train,
    value,
    words,
)

FEW: dict[str, Any] = {"metrics": ["mean_cosine"], "bars_every": None}  # cheap: these tests use only gradients


def norm_of(g: Any) -> float:
    return float(np.sqrt((g**2).sum()))


def assert_recorded(folder: Path, expected: list[Any], step: int = 0, tolerance: float = 1e-5) -> None:
    """The records of every layer equal what numpy computes from the rows of the gradients."""
    for layer, g in enumerate(expected):
        site = f"grad.resid.{layer}"
        assert value(folder, step=step, site=site, metric="gradient_norm") == pytest.approx(norm_of(g), rel=tolerance)
        assert value(folder, step=step, site=site, metric="isoscore") == pytest.approx(isoscore(g), rel=tolerance)


@pytest.mark.parametrize("micro", [1, 3])
def test_gradients_of_all_micro_batches_are_those_of_autograd(tmp_path: Path, micro: int) -> None:
    model = small_model()
    with tracked(tmp_path, model, **FEW) as tracker:
        train(model, tracker, range(1), micro=micro)
    again = small_model()
    torch.manual_seed(7)  # the state from which `train` draws its dropout
    batches = [words(part) for part in range(micro)]
    assert_recorded(tmp_path, hidden_gradients(again, again.transformer.h, batches, lambda out: out.loss / micro))


@pytest.mark.parametrize("reentrant", [False, True])
def test_gradient_checkpointing_changes_nothing_and_counts_nothing_twice(tmp_path: Path, reentrant: bool) -> None:
    for name, checkpointing in (("plain", False), ("checkpointed", True)):
        model = small_model()
        if checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": reentrant})
            model.enable_input_require_grads()
        with tracked(tmp_path / name, model, **FEW) as tracker:
            train(model, tracker, range(1), micro=2)
    plain, checked = records(tmp_path / "plain"), records(tmp_path / "checkpointed")
    assert len(plain) == len(checked)
    for a, b in zip(plain, checked, strict=True):
        assert (a.site, a.metric, a.index, a.n) == (b.site, b.metric, b.index, b.n)
        assert a.value == pytest.approx(b.value, rel=1e-6), (a.site, a.metric)


def test_padding_has_no_gradient_rows(tmp_path: Path) -> None:
    model = small_model()
    batch = words(0)
    mask = torch.ones_like(batch["input_ids"])
    mask[2:, 10:] = 0
    batch |= {"attention_mask": mask, "labels": batch["labels"].masked_fill(mask == 0, -100)}
    with tracked(tmp_path, model, **FEW) as tracker:
        train(model, tracker, range(1), batch=lambda _: batch)
    (found,) = records(tmp_path, site="grad.resid.1", metric="gradient_norm")
    assert found.n == int(mask.sum())


@pytest.mark.skipif(half_fails(torch.bfloat16) is not None, reason="bfloat16 does not work on this CPU")
def test_autocast_gradients_are_close_to_those_in_full_precision(tmp_path: Path) -> None:
    for name, on in (("full", False), ("half", True)):
        model = small_model()
        with tracked(tmp_path / name, model, **FEW) as tracker:
            torch.manual_seed(7)
            tracker.probe(0)
            with torch.autocast("cpu", torch.bfloat16, enabled=on):
                loss = model(**words(0)).loss
            loss.backward()
            tracker.watch(0)
    for layer in range(LAYERS):
        at_site = {"site": f"grad.resid.{layer}", "metric": "gradient_norm"}
        assert value(tmp_path / "half", **at_site) == pytest.approx(value(tmp_path / "full", **at_site), rel=0.05)


def test_a_layer_after_frozen_weights_only_has_no_gradient_and_a_reason(tmp_path: Path) -> None:
    model = small_model()
    model.transformer.wte.requires_grad_(False)
    model.transformer.wpe.requires_grad_(False)
    model.transformer.h[0].requires_grad_(False)
    with tracked(tmp_path, model, **FEW) as tracker:
        train(model, tracker, range(1))
    (lowest,) = records(tmp_path, site="grad.resid.0")
    assert lowest.value is None
    assert "nothing before it is trained" in (lowest.note or "")
    assert value(tmp_path, site="grad.resid.1", metric="gradient_norm") > 0


def test_a_forward_without_gradients_in_the_middle_of_a_step_does_not_count(tmp_path: Path) -> None:
    model = small_model()
    with tracked(tmp_path, model, **FEW) as tracker:
        tracker.probe(0)
        with torch.no_grad():
            model(**held_out())
        loss = model(**words(0)).loss
        with torch.no_grad():
            model(**words(6, items=2))
        loss.backward()
        tracker.watch(0)
    (found,) = records(tmp_path, site="grad.resid.1", metric="gradient_norm")
    assert found.n == words(0)["input_ids"].numel()
    assert all(r.value is not None for r in records(tmp_path, metric="gradient_energy"))


@pytest.mark.parametrize("name", ["t5", "albert"])
def test_two_stacks_and_shared_layers_have_gradients_at_every_layer(tmp_path: Path, name: str) -> None:
    model, batch = build(name)
    probe, live = ({k: x.roll(n, 1) if x.dtype == torch.int64 else x for k, x in batch.items()} for n in (0, 3))
    with Tracker(model, probe, tmp_path / "run", schedule=at(0), **FEW) as tracker:
        tracker.probe(0)
        output = model(**live)
        next(x for x in output.values() if isinstance(x, Tensor)).square().sum().backward()
        tracker.watch(0)
    found = {r.site: r.value for r in records(tmp_path, metric="gradient_norm") if r.site.startswith("grad.")}
    expected = (
        {f"grad.enc.resid.{i}" for i in range(3)} | {f"grad.dec.resid.{i}" for i in range(2)}
        if name == "t5"
        else {f"grad.resid.{i}" for i in range(3)}
    )
    assert set(found) == expected
    assert all(size is not None and size > 0 for size in found.values())


def test_rows_of_a_decoder_are_counted_by_its_own_padding(tmp_path: Path) -> None:
    model, batch = build("t5")
    labels = torch.randint(3, 90, (2, 7), generator=torch.Generator().manual_seed(1))
    labels[1, 4:] = -100
    mask = torch.ones_like(batch["input_ids"])
    mask[0, 9:] = 0
    live = {"input_ids": batch["input_ids"].roll(1, 1), "attention_mask": mask, "labels": labels}
    model.config.decoder_start_token_id = 0
    full = hf.T5ForConditionalGeneration(model.config)
    with Tracker(full, {**live, "input_ids": batch["input_ids"]}, tmp_path / "run", **FEW) as tracker:
        tracker.probe(0)
        full(**live).loss.backward()
        tracker.watch(0)
    (encoder,) = records(tmp_path, site="grad.enc.resid.1", metric="gradient_norm")
    (decoder,) = records(tmp_path, site="grad.dec.resid.1", metric="gradient_norm")
    assert encoder.n == int(mask.sum())
    assert decoder.n == int((labels >= 0).sum())


def compiled(model: nn.Module, how: str) -> nn.Module:
    if how == "in place":
        model.compile(backend="eager")
        return model
    wrapped: Any = torch.compile(model, backend="eager")
    return wrapped


@pytest.mark.parametrize("how", ["wrapped", "in place"])
def test_gradients_of_a_compiled_model_are_replayed_and_weights_stay_bit_identical(tmp_path: Path, how: str) -> None:
    plain = Stack()
    with tracked(tmp_path / "plain", plain, **FEW) as tracker:
        train(plain, tracker, range(3), micro=2)
    weights = []
    for follow in (True, False):
        model = Stack()
        run = compiled(model, how)
        if follow:
            with tracked(tmp_path / "compiled", run, **FEW) as tracker:
                train(run, tracker, range(3), micro=2)
            assert hooks_of(model) == 0
        else:
            train(run, None, range(3), micro=2)
        weights.append(model.state_dict())
        torch.compiler.reset()
    assert all(torch.equal(weights[0][name], x) for name, x in weights[1].items())
    eager, replayed = records(tmp_path / "plain"), records(tmp_path / "compiled")
    assert [(r.site, r.metric) for r in eager] == [(r.site, r.metric) for r in replayed]
    for a, b in zip(eager, replayed, strict=True):
        assert a.value == pytest.approx(b.value, rel=1e-4), (a.site, a.metric, a.step)


def test_a_model_whose_compiled_wrapper_is_unknown_to_the_tracker_is_replayed(tmp_path: Path) -> None:
    """As in a trainer that compiles the model and hands its callbacks the bare one."""
    model = Stack()
    run = compiled(model, "wrapped")
    with tracked(tmp_path, model, **FEW) as tracker:
        train(run, tracker, range(1))
    torch.compiler.reset()
    again = Stack()
    assert_recorded(tmp_path, hidden_gradients(again, list(again.blocks), [words(0)], lambda out: out["loss"]))


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # the compiler's own, and hidden by it elsewhere
def test_blocks_that_are_compiled_one_by_one_call_their_hooks(tmp_path: Path) -> None:
    model = Stack()
    for block in model.blocks:
        block.compile(backend="eager")
    with tracked(tmp_path, model, **FEW) as tracker:
        train(model, tracker, range(1))
    torch.compiler.reset()
    again = Stack()
    assert_recorded(tmp_path, hidden_gradients(again, list(again.blocks), [words(0)], lambda out: out["loss"]))


def test_a_loss_outside_a_compiled_model_is_replayed_too(tmp_path: Path) -> None:
    def loss(output: Any) -> Tensor:
        found: Tensor = output["logits"][..., 5].exp().mean()
        return found

    batch = {"input_ids": words(0)["input_ids"]}
    run = compiled(Stack(), "wrapped")
    with Tracker(run, {"input_ids": held_out()["input_ids"]}, tmp_path / "run", schedule=at(0), **FEW) as tracker:
        tracker.probe(0)
        loss(run(**batch)).backward()
        tracker.watch(0)
    torch.compiler.reset()
    again = Stack()
    assert_recorded(tmp_path, hidden_gradients(again, list(again.blocks), [batch], loss))


def test_a_model_compiled_without_graph_breaks_is_replayed(tmp_path: Path) -> None:
    """No hook may break the graph, or the compiler refuses the model."""
    model = Stack()
    run: Any = torch.compile(model, backend="eager", fullgraph=True)
    with tracked(tmp_path, run, **FEW) as tracker:
        train(run, tracker, range(1))
    torch.compiler.reset()
    again = Stack()
    assert_recorded(tmp_path, hidden_gradients(again, list(again.blocks), [words(0)], lambda out: out["loss"]))


def test_a_compiled_model_that_runs_eagerly_calls_the_hooks_of_its_blocks(tmp_path: Path) -> None:
    run = compiled(Stack(), "wrapped")
    with tracked(tmp_path, run, **FEW) as tracker, torch.compiler.set_stance("force_eager"):
        tracker.probe(0)
        run(**words(0))["loss"].backward()
        recorder = tracker._gradients.recorder
        assert recorder is not None
        assert len(recorder.moments) == LAYERS
        tracker.watch(0)
    torch.compiler.reset()
