"""The processes of a distributed job: their ranks, what they exchange, and sharded parameters."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from anisoscope.stats.moments import Moments
from anisoscope.stats.packing import pack, unpack

S = TypeVar("S")
T = TypeVar("T")


@dataclass(frozen=True)
class Ranks:
    """This process and the others of its job; a single process by default."""

    rank: int = 0
    world: int = 1
    group: Any = None  # that objects are exchanged through; None for the default group of torch.distributed
    device: str | None = None  # the GPU of this process, if the launcher assigned one

    @property
    def is_first(self) -> bool:
        """Whether this is the process that prints and writes."""
        return self.rank == 0

    def gather(self, value: T) -> list[T]:
        """Return the values of all ranks, on every rank."""
        if self.world == 1:
            return [value]
        out: list[Any] = [None] * self.world
        dist.all_gather_object(out, value, group=self.group)
        return out

    def gather_first(self, value: T) -> list[T]:
        """Return the values of all ranks on rank 0, and an empty list elsewhere."""
        if self.world == 1:
            return [value]
        out: list[Any] | None = [None] * self.world if self.rank == 0 else None
        dist.gather_object(value, out, dst=0, group=self.group)
        return out or []

    def agree(self, value: T) -> T:
        """Return rank 0's value on every rank: clocks differ, decisions must not."""
        if self.world == 1:
            return value
        shared: list[Any] = [value]
        dist.broadcast_object_list(shared, src=0, group=self.group)
        agreed: T = shared[0]
        return agreed

    def add(self, x: Tensor) -> Tensor:
        """Return the sum of a tensor of the same shape over all ranks, on every rank, in one collective."""
        if self.world == 1:
            return x
        total = x.detach().clone()
        dist.all_reduce(total, group=self.group)
        return total

    def add_on_first(self, x: Tensor) -> Tensor:
        """Return the sum over all ranks on rank 0; elsewhere the content is undefined. No rank holds two copies."""
        if self.world == 1:
            return x
        total = x.detach().clone()
        dist.reduce(total, dst=0, group=self.group)
        return total

    def collect(self, value: T, owner: int) -> Iterator[T]:
        """Yield the values of the other ranks on `owner`, one at a time so that only one is held; nothing elsewhere."""
        if self.rank != owner:
            dist.send_object_list([value], dst=owner, group=self.group)
            return
        for rank in range(self.world):
            if rank != owner:
                received: list[Any] = [None]
                dist.recv_object_list(received, src=rank, group=self.group)
                yield received[0]


def joined_ranks() -> Ranks:
    """Return the ranks of the running job, which exchange objects through its default group."""
    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
        return Ranks()
    return Ranks(dist.get_rank(), dist.get_world_size())


def host_ranks() -> Ranks:
    """Return the ranks of the running job, which exchange statistics on the host through gloo.

    All ranks must call this together, because a group is created if the job's backend is not gloo.
    """
    ranks = joined_ranks()
    if ranks.world == 1:
        return ranks
    group = dist.group.WORLD if dist.get_backend() == "gloo" else dist.new_group(backend="gloo")
    return Ranks(ranks.rank, ranks.world, group)


def add_over_ranks(statistic: S | None, kind: type[S], ranks: Ranks | None = None) -> S | None:
    """Return the sum of a statistic over all ranks, on every rank; a rank without rows passes None.

    Statistics are small, so they are exchanged whole and added in rank order, so the sum is bit-identical on all ranks.
    """
    ranks = joined_ranks() if ranks is None else ranks
    arrays = ranks.gather(None if statistic is None else pack(statistic))
    parts: list[Any] = [unpack(kind, each) for each in arrays if each is not None]
    total: S | None = reduce(lambda a, b: a + b, parts) if parts else None
    return total


def add_moments_on_first(
    parts: Sequence[Moments | None], dim: Sequence[int], ranks: Ranks, like: Tensor
) -> list[Moments | None]:
    """Return, on rank 0, the sum of each of several moments over all ranks; elsewhere, only its count is meaningful.

    One collective finds the common means. Then one per sum is reduced, so that rank 0 holds one sum at a time besides
    the results, whatever the number of ranks.

    Args:
        parts: This rank's moments in the same order on every rank; None if it has no rows.
        dim: The width of each.
        ranks: The processes.
        like: A tensor on the device that the collectives use.

    Returns:
        The sums; None if no rank has rows.
    """
    if ranks.world == 1:
        return list(parts)
    sums = [
        like.new_zeros(d + 1) if m is None else torch.cat((m.mean * m.n, m.mean.new_full((1,), m.n))).to(like)
        for m, d in zip(parts, dim, strict=True)
    ]
    totals = list(ranks.add(torch.cat(sums)).split([d + 1 for d in dim]))
    out: list[Moments | None] = []
    for moments, total in zip(parts, totals, strict=True):
        n = int(total[-1])
        if not n:
            out.append(None)
            continue
        mean = total[:-1] / n
        flat = (
            torch.zeros(len(mean) ** 2 + len(mean) + 1).to(like)
            if moments is None
            else moments.about(mean.to(moments.mean)).to(like)
        )
        summed = ranks.add_on_first(flat)
        d = len(mean)
        out.append(Moments(n, mean, summed[: d * d].reshape(d, d), summed[d * d : -1], summed[-1]))
    return out


@contextmanager
def launched() -> Iterator[Ranks]:
    """Join the processes that `torchrun` started for the duration of the `with`; without a launcher, run alone."""
    if "TORCHELASTIC_RUN_ID" not in os.environ or int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield Ranks()
        return
    # statistics are added on the host through gloo; only layers that are split over GPUs need nccl
    cuda = torch.cuda.is_available()
    dist.init_process_group("cpu:gloo,cuda:nccl" if cuda else "gloo")
    device = f"cuda:{os.environ['LOCAL_RANK']}" if cuda else None
    try:
        yield Ranks(dist.get_rank(), dist.get_world_size(), device=device)
    finally:
        dist.destroy_process_group()


def unwrapped(model: nn.Module) -> nn.Module:
    """Return the module inside DistributedDataParallel, DataParallel and what `torch.compile` returned.

    Modules sharded by `fully_shard` have no wrapper and are returned unchanged.
    """
    while True:
        if isinstance(model, DistributedDataParallel | DataParallel):
            model = model.module
        elif isinstance(inner := getattr(model, "_orig_mod", None), nn.Module):
            model = inner
        else:
            return model


def is_sharded(model: nn.Module) -> bool:
    """Return whether parameters are sharded (fully_shard): then a forward pass needs all ranks at once."""
    return bool(_sharded_modules(model))


def reshard(model: nn.Module) -> None:
    """Free the parameters that a forward without a backward gathered; an update would not reach those copies."""
    for module in _sharded_modules(model):
        module.reshard()


def full_tensor(x: Tensor) -> Tensor:
    """Return a sharded tensor gathered from all ranks (which must all call this), any other tensor unchanged."""
    tensors = sys.modules.get("torch.distributed.tensor")
    if tensors is None or not isinstance(x, tensors.DTensor):
        return x
    whole: Tensor = x.full_tensor()
    return whole


def _sharded_modules(model: nn.Module) -> list[Any]:
    """The modules that gather and free parameters. FSDP is slow to import, and imported already if there are any."""
    library = sys.modules.get("torch.distributed.fsdp")
    return [] if library is None else [m for m in model.modules() if isinstance(m, library.FSDPModule)]
