"""The tracker in training loops: invisible, complete, resumable, on one process and on two."""

from __future__ import annotations

import gc
import random
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import accelerate
import numpy as np
import psutil
import pytest
import torch
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.multiprocessing.spawn import spawn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

from anisoscope import CaptureError, InputError, Record, Tracker, alerts
from anisoscope.alerts import alert, stop
from anisoscope.schedule import every
from tests.ranks import join_group, leave_group
from tests.training import (
    held_out,
    hooks_of,
    records,
    small_model,
    tracked,
    train,
    value,
    words,
)

CHEAP: dict[str, Any] = {"metrics": ["mean_cosine"]}  # for tests that use no particular metric


def state_of(model: nn.Module, optimiser: torch.optim.Optimizer) -> dict[str, Tensor]:
    state = {f"weight {name}": x for name, x in model.state_dict().items()}
    for number, moments in optimiser.state_dict()["state"].items():
        state |= {f"optimiser {number} {name}": x for name, x in moments.items()}
    return {**state, "random": torch.get_rng_state()}


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


def test_hooks_exist_only_between_probe_and_watch_of_a_due_step(tmp_path: Path) -> None:
    model = small_model()
    tracker = tracked(tmp_path, model, **CHEAP)
    for step in range(4):
        tracker.probe(step)
        assert (hooks_of(model) > 0) == (step % 2 == 0)
        model(**words(step)).loss.backward()
        tracker.watch(step)
        assert hooks_of(model) == 0


def test_a_training_forward_that_fails_removes_the_hooks(tmp_path: Path) -> None:
    model = small_model()
    tracker = tracked(tmp_path, model, **CHEAP)
    tracker.probe(0)
    with pytest.raises(IndexError):
        model(torch.full((1, 4), 10**6))
    assert hooks_of(model) == 0


def test_hooks_left_by_ctrl_c_are_removed_by_the_next_probe_or_by_close(tmp_path: Path) -> None:
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


def test_watch_without_probe_is_an_error_that_names_the_missing_call(tmp_path: Path) -> None:
    tracker = tracked(tmp_path, small_model())
    with pytest.raises(InputError, match=r"Call tracker\.probe\(3\) before that step's forward"):
        tracker.watch(3)
    tracker.probe(2)
    with pytest.raises(InputError, match=r"after probe\(2\)"):
        tracker.watch(3)


def test_probe_and_watch_around_no_forward_or_no_backward_are_an_error(tmp_path: Path) -> None:
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


def test_a_later_step_without_a_forward_is_recorded_and_training_continues(tmp_path: Path) -> None:
    model = small_model()
    with tracked(tmp_path, model, **CHEAP) as tracker:
        train(model, tracker, range(1))
        tracker.probe(2)
        tracker.watch(2)
    (found,) = records(tmp_path, step=2, metric="gradient_norm")
    assert found.value is None
    assert "No forward" in (found.note or "")


def test_a_weight_that_does_not_exist_is_refused_with_similar_names(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"lm_head\.weight"):
        tracked(tmp_path, small_model(), weights=["lm_heads.weight"])


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


FEW: dict[str, Any] = {"metrics": ["mean_cosine"], "bars_every": None}  # cheap: these tests use only gradients


def test_a_loss_scale_is_divided_out_of_norms_only(tmp_path: Path) -> None:
    norms: dict[float, list[float | None]] = {}
    for scale in (1.0, 1024.0):
        model = small_model()
        with tracked(tmp_path / str(scale), model, **FEW) as tracker:
            torch.manual_seed(7)
            tracker.probe(0)
            (model(**words(0)).loss * scale).backward()
            tracker.watch(0, scale=scale)
        norms[scale] = [r.value for r in records(tmp_path / str(scale)) if r.site.startswith("grad.")]
    assert norms[1024.0] == pytest.approx(norms[1.0], rel=1e-5)


def test_training_on_the_held_out_windows_gives_a_reason_instead_of_energy(tmp_path: Path) -> None:
    model = small_model()
    with tracked(tmp_path, model, **FEW) as tracker:
        train(model, tracker, range(1), batch=lambda _: held_out())
    (found,) = records(tmp_path, site="grad.resid.1", metric="gradient_energy")
    assert found.value is None
    assert "8 windows of this batch are among the held-out tokens" in (found.note or "")
    assert value(tmp_path, site="grad.resid.1", metric="gradient_norm") > 0


def test_a_held_out_window_is_recognised_inside_a_packed_sequence(tmp_path: Path) -> None:
    model = small_model()
    parts = torch.cat((words(0)["input_ids"][:2], held_out()["input_ids"][:1]))
    packed = {"input_ids": parts.reshape(1, -1), "position_ids": torch.arange(16).repeat(3)[None]}
    packed["labels"] = packed["input_ids"]
    with tracked(tmp_path, model, **FEW) as tracker:
        train(model, tracker, range(1), batch=lambda _: packed)
    (found,) = records(tmp_path, site="grad.resid.1", metric="gradient_energy")
    assert "1 windows" in (found.note or "")


OPTIONS: dict[str, Any] = {"metrics": ["mean_cosine"], "bars_every": None, "schedule": every(2), "scalars": False}
ITEMS, LENGTH = 4, 16


class Words(Dataset[dict[str, Tensor]]):
    """Sequences of random words."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, place: int) -> dict[str, Tensor]:
        return {name: x[0] for name, x in words(place, 1).items()}


def test_a_loop_with_accelerate_needs_only_the_tracker(tmp_path: Path) -> None:
    weights = []
    for follow in (False, True):
        accelerator: Any = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
        model = small_model()
        optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3)
        data: Any = DataLoader(Words(), batch_size=ITEMS)
        prepared, optimiser, data = accelerator.prepare(model, optimiser, data)
        tracker = Tracker(prepared, held_out(), tmp_path / "run", **OPTIONS) if follow else None
        step, fresh = 0, True
        torch.manual_seed(7)
        for batch in data:
            if tracker is not None and fresh:
                tracker.probe(step)
            fresh = False
            with accelerator.accumulate(prepared):
                accelerator.backward(prepared(**batch).loss)
                if accelerator.sync_gradients:
                    if tracker is not None:
                        tracker.watch(step)
                    step, fresh = step + 1, True
                optimiser.step()
                optimiser.zero_grad()
        if tracker is not None:
            tracker.close()
        weights.append(model.state_dict())
    assert all(torch.equal(x, weights[1][name]) for name, x in weights[0].items())
    (gradient,) = records(tmp_path, step=4, site="grad.resid.1", metric="gradient_norm")
    assert gradient.n == 2 * ITEMS * LENGTH


def held(model: Any) -> dict[str, int]:
    """What a process holds now: bytes and objects of Python, open files, hooks on the model."""
    gc.collect()
    return {
        "bytes": tracemalloc.get_traced_memory()[0],
        "objects": len(gc.get_objects()),
        "files": psutil.Process().num_fds(),
        "hooks": hooks_of(model),
    }


def followed(folder: Path, steps: int, warm: int) -> tuple[dict[str, int], dict[str, int], float]:
    """A tracked training; what it held when warm and at its end, and the memory gained in between, in MB."""
    import torch

    model = small_model(n_layer=2)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.01)
    rules = alerts.standard()
    marks = []
    tracemalloc.start()
    try:
        with Tracker(
            model, held_out(), folder / "run", schedule=every(20), bars_every=5, alerts=rules, sample=64
        ) as tracker:
            for step in range(steps):
                tracker.probe(step)
                model(**words(step))["loss"].backward()
                tracker.watch(step)
                optimiser.step()
                optimiser.zero_grad()
                if step + 1 in (warm, steps):
                    marks.append((held(model), psutil.Process().memory_info().rss / 1e6))
    finally:
        tracemalloc.stop()
    (early, before), (late, after) = marks
    return early, late, after - before


def require_flat(early: dict[str, int], late: dict[str, int], *, bytes_: int) -> None:
    assert late["hooks"] == early["hooks"] == 0
    assert late["files"] == early["files"]
    assert late["objects"] - early["objects"] < 500
    assert late["bytes"] - early["bytes"] < bytes_


def test_three_hundred_tracked_steps_leave_no_memory_files_or_hooks_behind(tmp_path: Path) -> None:
    early, late, _ = followed(tmp_path, 300, 100)
    require_flat(early, late, bytes_=100_000)


@pytest.mark.slow
def test_ten_thousand_tracked_steps_take_no_more_memory_than_two_thousand(tmp_path: Path) -> None:
    early, late, gained = followed(tmp_path, 10_000, 2_000)
    require_flat(early, late, bytes_=100_000)
    assert gained < 8.0


NO_DROPOUT: dict[str, Any] = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
WEIGHT = "transformer.h.1.mlp.c_fc.weight"
STEPS = 3


def part_of(step: int, rank: int | None) -> dict[str, torch.Tensor]:
    """One rank's half of a step's batch, or the whole of it."""
    whole = words(step)
    return whole if rank is None else {name: x[2 * rank : 2 * rank + 2] for name, x in whole.items()}


def loop(model: nn.Module, tracker: Tracker | None, rank: int | None) -> None:
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(STEPS):
        if tracker is not None:
            tracker.probe(step)
        model(**part_of(step, rank)).loss.backward()
        if tracker is not None:
            tracker.watch(step)
        optimiser.step()
        optimiser.zero_grad()


def track_on_rank(model: nn.Module, folder: Path, rank: int | None = None, **options: Any) -> Tracker:
    cheap = {"schedule": every(2), "weights": [WEIGHT], "bars_every": None, "scalars": False, **options}
    tracker = Tracker(model, held_out(), folder / "run", **cheap)
    loop(model, tracker, rank)
    tracker.close()
    return tracker


def weights_of(model: nn.Module) -> list[torch.Tensor]:
    return [p.full_tensor() if isinstance(p, DTensor) else p.detach() for p in model.parameters()]


def always_stop(published: Any) -> list[Record]:
    return [alert(published[0], "always", "as it must")]


def replicated() -> nn.Module:
    return DistributedDataParallel(small_model(tie_word_embeddings=False, **NO_DROPOUT))


def sharded() -> nn.Module:
    model = small_model(tie_word_embeddings=False, **NO_DROPOUT)
    for block in model.transformer.h:
        fully_shard(block)
    fully_shard(model)
    return cast(nn.Module, model)


def work(rank: int, make: Callable[[], nn.Module], folder: Path) -> None:
    torch.set_num_threads(1)
    join_group(folder, rank, 2)
    plain, followed = make(), make()
    loop(plain, None, rank)
    tracker = track_on_rank(followed, folder, rank, alerts=[stop(always_stop)])
    assert all(torch.equal(a, b) for a, b in zip(weights_of(plain), weights_of(followed), strict=True))
    assert tracker.should_stop  # on every rank, though rank 0 alone asks the rules
    if make is replicated:  # clocks differ between ranks; what they leave out must not, or one waits for ever
        track_on_rank(make(), folder / "budget", rank, max_overhead=1e-9 if rank else 1e9, metrics=["mean_cosine"])
    leave_group()


def on_two_ranks(make: Callable[[], nn.Module], folder: Path) -> None:
    spawn(work, args=(make, folder), nprocs=2)


@pytest.mark.parametrize("make", [replicated, sharded])
def test_two_ranks_record_the_same_as_one_process_and_train_as_without_a_tracker(tmp_path: Path, make: Any) -> None:
    on_two_ranks(make, tmp_path / "two")
    track_on_rank(small_model(tie_word_embeddings=False, **NO_DROPOUT), tmp_path / "one")
    found = [r for r in records(tmp_path / "two") if r.metric != "alert"]
    expected = records(tmp_path / "one")
    assert [(r.step, r.site, r.metric, r.index) for r in found] == [
        (r.step, r.site, r.metric, r.index) for r in expected
    ]
    for a, b in zip(found, expected, strict=True):
        # later steps start from weights whose last bits differ, and neighbours and angles magnify that
        tolerance = 1e-6 if a.step == 0 else 1e-4
        assert a.n == b.n, (a.site, a.metric)
        assert a.value == pytest.approx(b.value, rel=tolerance, abs=tolerance), (a.step, a.site, a.metric)
    if make is replicated:
        assert {r.step for r in records(tmp_path / "two" / "budget")} == {0, 2}


def test_one_row_per_sequence_is_tracked_without_gradients(tmp_path: Path) -> None:
    model = small_model()
    with pytest.raises(InputError, match="Pass gradients=False"):
        tracked(tmp_path / "refused", model, rows="last", **CHEAP)
    with tracked(tmp_path / "run", model, rows="last", gradients=False, sites=["resid"], **CHEAP) as tracker:
        train(model, tracker, range(2))
    found = records(tmp_path / "run", metric="mean_cosine")
    sequences = len(held_out()["input_ids"])
    assert {(r.n, r.tokens) for r in found} == {(sequences, "all")}
