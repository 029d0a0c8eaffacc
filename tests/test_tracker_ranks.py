"""Two real processes: what DDP and FSDP2 trainings record equals what one process records of the whole batch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.multiprocessing.spawn import spawn
from torch.nn.parallel import DistributedDataParallel

from anisoscope import Record, Tracker
from anisoscope.alerts import alert, stop
from anisoscope.schedule import every
from tests.ranks import join_group, leave_group
from tests.training import held_out, records, small_model, words

CALM: dict[str, Any] = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
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


def follow(model: nn.Module, folder: Path, rank: int | None = None, **options: Any) -> Tracker:
    cheap = {"schedule": every(2), "weights": [WEIGHT], "bars_every": None, **options}
    tracker = Tracker(model, held_out(), folder / "run", **cheap)
    loop(model, tracker, rank)
    tracker.close()
    return tracker


def weights_of(model: nn.Module) -> list[torch.Tensor]:
    return [p.full_tensor() if isinstance(p, DTensor) else p.detach() for p in model.parameters()]


def say_stop(looked: Any) -> list[Record]:
    return [alert(looked[0], "always", "as it must")]


def in_copies() -> nn.Module:
    return DistributedDataParallel(small_model(tie_word_embeddings=False, **CALM))


def in_pieces() -> nn.Module:
    model = small_model(tie_word_embeddings=False, **CALM)
    for block in model.transformer.h:
        fully_shard(block)
    fully_shard(model)
    return cast(nn.Module, model)


def work(rank: int, make: Callable[[], nn.Module], folder: Path) -> None:
    torch.set_num_threads(1)
    join_group(folder, rank, 2)
    plain, followed = make(), make()
    loop(plain, None, rank)
    tracker = follow(followed, folder, rank, alerts=[stop(say_stop)])
    assert all(torch.equal(a, b) for a, b in zip(weights_of(plain), weights_of(followed), strict=True))
    assert tracker.should_stop  # on every rank, though rank 0 alone asks the rules
    if make is in_copies:  # clocks differ between ranks; what they leave out must not, or one waits for ever
        follow(make(), folder / "budget", rank, max_overhead=1e-9 if rank else 1e9, metrics=["mean_cosine"])
    leave_group()


def on_two_ranks(make: Callable[[], nn.Module], folder: Path) -> None:
    spawn(work, args=(make, folder), nprocs=2)


@pytest.mark.parametrize("make", [in_copies, in_pieces])
def test_two_ranks_record_what_one_process_does_and_train_as_if_unwatched(tmp_path: Path, make: Any) -> None:
    on_two_ranks(make, tmp_path / "two")
    follow(small_model(tie_word_embeddings=False, **CALM), tmp_path / "one")
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
    if make is in_copies:
        assert {r.step for r in records(tmp_path / "two" / "budget")} == {0, 2}
