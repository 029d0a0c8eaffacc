"""Two real processes: what DDP and FSDP2 trainings record equals what one process records of the whole batch."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.multiprocessing.spawn import spawn
from torch.nn.parallel import DistributedDataParallel

from anisoscope import Record, Tracker
from anisoscope.alerts import alert, stop
from anisoscope.schedule import every
from tests.training import held_out, hooks_of, records, small_model, words

CALM = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
WEIGHT = "transformer.h.1.mlp.c_fc.weight"
STEPS = 3


def part_of(step: int, rank: int | None) -> dict[str, torch.Tensor]:
    """One rank's half of a step's batch, or the whole of it."""
    whole = words(step)
    return whole if rank is None else {name: x[2 * rank : 2 * rank + 2] for name, x in whole.items()}


def loop(model: nn.Module, tracker: Tracker, rank: int | None) -> None:
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(STEPS):
        tracker.probe(step)
        model(**part_of(step, rank)).loss.backward()
        tracker.watch(step)
        optimiser.step()
        optimiser.zero_grad()


def follow(model: nn.Module, folder: Path, rank: int | None = None, **options: Any) -> Tracker:
    tracker = Tracker(model, held_out(), folder / "run", schedule=every(2), weights=[WEIGHT], **options)
    loop(model, tracker, rank)
    tracker.close()
    return tracker


def say_stop(looked: Any) -> list[Record]:
    return [alert(looked[0], "always", "as it must")]


def ddp(rank: int, folder: Path) -> None:
    model = small_model(**CALM)
    tracker = follow(DistributedDataParallel(model), folder, rank, alerts=[stop(say_stop)])
    assert tracker.should_stop  # on every rank, though rank 0 alone has asked its rules
    assert hooks_of(model) == 0


def fsdp(rank: int, folder: Path) -> None:
    model = small_model(tie_word_embeddings=False, **CALM)
    for block in model.transformer.h:
        fully_shard(block)
    fully_shard(model)
    follow(model, folder, rank)


def budget(rank: int, folder: Path) -> None:
    """Clocks differ between ranks; what they leave out must not, or one waits for the other for ever."""
    model = DistributedDataParallel(small_model(**CALM))
    follow(model, folder, rank, max_overhead=1e-9 if rank else 1e9)


def in_process(rank: int, port: int, job: Callable[[int, Path], None], folder: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    try:
        job(rank, folder)
    finally:
        dist.destroy_process_group()


def on_two_ranks(job: Callable[[int, Path], None], folder: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    spawn(in_process, args=(port, job, folder), nprocs=2)


def assert_as_one_process(folder: Path, found: list[Record], tolerance: float) -> None:
    expected = [r for r in records(folder) if r.metric != "alert"]
    assert [(r.step, r.site, r.metric, r.index) for r in found] == [
        (r.step, r.site, r.metric, r.index) for r in expected
    ]
    for a, b in zip(found, expected, strict=True):
        assert a.n == b.n, (a.site, a.metric)
        assert a.value == pytest.approx(b.value, rel=tolerance, abs=tolerance), (a.step, a.site, a.metric)


@pytest.mark.parametrize(("job", "changes"), [(ddp, {}), (fsdp, {"tie_word_embeddings": False})])
def test_two_ranks_record_what_one_process_does(tmp_path: Path, job: Any, changes: dict[str, Any]) -> None:
    on_two_ranks(job, tmp_path / "two")
    follow(small_model(**changes, **CALM), tmp_path / "one")
    assert_as_one_process(tmp_path / "one", [r for r in records(tmp_path / "two") if r.metric != "alert"], 1e-4)


def test_the_first_gradients_of_two_ranks_are_those_of_the_whole_batch(tmp_path: Path) -> None:
    """Before any update the models are the same to the last bit: only the order of sums differs."""
    on_two_ranks(ddp, tmp_path / "two")
    follow(small_model(**CALM), tmp_path / "one")
    for expected in records(tmp_path / "one", step=0):
        (found,) = records(
            tmp_path / "two",
            step=0,
            site=expected.site,
            metric=expected.metric,
            tokens=expected.tokens,
            index=expected.index,
            variant=expected.variant,
        )
        assert found.value == pytest.approx(expected.value, rel=1e-6, abs=1e-9), (expected.site, expected.metric)


def test_ranks_whose_clocks_differ_leave_out_the_same_steps(tmp_path: Path) -> None:
    on_two_ranks(budget, tmp_path)
    assert {r.step for r in records(tmp_path)} == {0, 2}
