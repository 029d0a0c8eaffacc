"""The processes that `torchrun` starts: which one this is, and which GPU is its own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True)
class Launched:
    """This process among those of the job; rank 0 is the one that speaks and writes."""

    rank: int = 0
    world: int = 1
    device: str | None = None

    @property
    def speaks(self) -> bool:
        return self.rank == 0


@contextmanager
def launched() -> Iterator[Launched]:
    """Joins the processes of a job for as long as the block lasts; alone where no launcher was used."""
    if "TORCHELASTIC_RUN_ID" not in os.environ or int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield Launched()
        return
    import torch
    import torch.distributed as dist

    # statistics are added on the host, through gloo; only layers that are split over GPUs need nccl
    cuda = torch.cuda.is_available()
    dist.init_process_group("cpu:gloo,cuda:nccl" if cuda else "gloo")
    device = f"cuda:{os.environ['LOCAL_RANK']}" if cuda else None
    try:
        yield Launched(dist.get_rank(), dist.get_world_size(), device)
    finally:
        dist.destroy_process_group()
