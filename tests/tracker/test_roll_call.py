"""Ranks that are late, absent or failing: every rank decides alike, in bounded time, and the step is recorded."""

from __future__ import annotations

import json
import time
from collections import Counter
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import spawn
from torch.nn.parallel import DistributedDataParallel

from anisoscope import Tracker
from anisoscope.distributed import Ranks, add_moments_on_first, joined_ranks
from anisoscope.schedule import every
from anisoscope.stats.moments import Moments
from anisoscope.stats.rows import bare_rows
from anisoscope.tracker.roll_call import RollCall
from tests.ranks import join_group, leave_group
from tests.training import LAYERS, held_out, records, small_model, words

RANKS = 3
COLLECTIVES = ("all_reduce", "reduce", "all_gather_object", "gather_object", "broadcast_object_list", "barrier")
NO_DROPOUT: dict[str, Any] = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}


def test_one_process_agrees_with_itself() -> None:
    agreed = RollCall(Ranks(), wait=1.0)("watch 0", "stop")
    assert (agreed.message, agreed.skipped) == ("stop", None)


def meet(rank: int, wait: float) -> dict[str, Any]:
    """Three roll calls: everyone comes, rank 2 comes late, rank 0 comes late."""
    roll_call = RollCall(joined_ranks(), wait)
    found: dict[str, Any] = {"all": vars(roll_call("all", f"from {rank}"))}
    for name, late, delay in (("late", 2, 3 * wait), ("first late", 0, 4 * wait)):
        dist.barrier()
        if rank == late:
            time.sleep(delay)
        found[name] = vars(roll_call(name))
    return found


def counted(rank: int, folder: Path) -> dict[str, int]:
    """The collectives that a due step calls, one watch that rank 1 leaves out, and the next due step."""
    counts: Counter[str] = Counter()
    originals = {name: getattr(dist, name) for name in COLLECTIVES}
    model: Any = DistributedDataParallel(small_model(tie_word_embeddings=False, **NO_DROPOUT))
    options: dict[str, Any] = {"metrics": ["mean_cosine"], "bars_every": None, "scalars": False}
    tracker = Tracker(model, held_out(), folder / "run", schedule=every(1), wait=1.5, **options)
    for name, original in originals.items():
        setattr(dist, name, lambda *a, _name=name, _do=original, **k: (counts.update([_name]), _do(*a, **k))[1])
    due: dict[str, int] = {}
    for step in range(3):
        tracker.probe(step)
        assert not counts or step
        model(**words(100 * step + rank)).loss.backward()
        counts.clear()  # of DDP
        if not (step == 1 and rank == 1):
            tracker.watch(step)
        if step == 0:
            due = dict(counts)
        model.zero_grad()
        counts.clear()
    for name, original in originals.items():
        setattr(dist, name, original)
    tracker.close()
    return due


def add_rows(rank: int) -> float:
    """The largest difference, on rank 0, between moments that are added over ranks and those of all rows together."""
    parts = [torch.randn(50 + 10 * r, 6, generator=torch.Generator().manual_seed(r)).double() + r for r in range(RANKS)]
    mine = None if rank == 1 else Moments.of(bare_rows(parts[rank]))
    (total, nothing) = add_moments_on_first([mine, None], [6, 4], joined_ranks(), torch.zeros(0, dtype=torch.float64))
    whole = Moments.of(bare_rows(torch.cat((parts[0], parts[2]))))
    assert total is not None
    assert nothing is None
    assert total.n == whole.n
    pairs = [(total.mean, whole.mean), (total.scatter, whole.scatter), (total.third, whole.third)]
    return max(float((a - b).abs().max() / b.abs().max()) for a, b in [*pairs, (total.fourth, whole.fourth)])


def work(rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
    join_group(folder, rank, RANKS)
    found = {"meet": meet(rank, 1.0), "added": add_rows(rank), "due": counted(rank, folder)}
    (folder / f"{rank}.json").write_text(json.dumps(found))
    leave_group()


def test_ranks_that_are_late_or_absent_are_skipped_by_all_and_never_waited_for(tmp_path: Path) -> None:
    spawn(work, args=(tmp_path,), nprocs=RANKS)
    ranks = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(RANKS)]
    assert [each["meet"] for each in ranks[1:]] == [ranks[0]["meet"]] * (RANKS - 1)  # all decide alike
    meeting = ranks[0]["meet"]
    assert meeting["all"] == {"message": "from 0", "skipped": None}
    assert meeting["late"]["skipped"] == "rank 2 did not arrive at late within 1 s"
    assert meeting["first late"]["skipped"] == "rank 0 did not decide on first late within 2 s"
    assert ranks[0]["added"] < 1e-12
    # one all_reduce of counts, one of widths and one of means, and one reduce per layer
    assert all(each["due"] == {"all_reduce": 3, "reduce": LAYERS} for each in ranks)
    (skipped,) = records(tmp_path, metric="skipped")
    assert (skipped.step, skipped.site, skipped.value) == (1, "loop", None)
    assert "rank 1 did not arrive at watch 1" in (skipped.note or "")
    assert {r.step for r in records(tmp_path, site="grad.resid.1", metric="gradient_norm")} == {0, 2}
