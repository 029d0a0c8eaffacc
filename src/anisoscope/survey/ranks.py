"""The processes of a distributed job that measure one model together: each its share, the statistics added."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import torch.distributed as dist

T = TypeVar("T")


@dataclass(frozen=True)
class Ranks:
    """This process among those of the job; alone by default.

    What is exchanged are statistics on the host, whatever the model's devices talk through: `group` is gloo's.
    """

    rank: int = 0
    world: int = 1
    group: Any = None

    def gather(self, value: T) -> list[T]:
        """The values of all ranks, on every rank."""
        if self.world == 1:
            return [value]
        out: list[Any] = [None] * self.world
        dist.all_gather_object(out, value, group=self.group)
        return out

    def gather_first(self, value: T) -> list[T]:
        """The values of all ranks on rank 0, none elsewhere."""
        if self.world == 1:
            return [value]
        out: list[Any] | None = [None] * self.world if self.rank == 0 else None
        dist.gather_object(value, out, dst=0, group=self.group)
        return out or []

    def agree(self, value: T) -> T:
        """What rank 0 says, on every rank."""
        if self.world == 1:
            return value
        said: list[Any] = [value]
        dist.broadcast_object_list(said, src=0, group=self.group)
        agreed: T = said[0]
        return agreed

    def collect(self, value: T, owner: int) -> Iterator[T]:
        """On `owner` the values of the other ranks, one at a time, so that only one is held; elsewhere none."""
        if self.rank != owner:
            dist.send_object_list([value], dst=owner, group=self.group)
            return
        for rank in range(self.world):
            if rank != owner:
                got: list[Any] = [None]
                dist.recv_object_list(got, src=rank, group=self.group)
                yield got[0]


def all_ranks() -> Ranks:
    """The processes of the job that `torch.distributed` has joined; all of them must call this together."""
    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
        return Ranks()
    group = dist.group.WORLD if dist.get_backend() == "gloo" else dist.new_group(backend="gloo")
    return Ranks(dist.get_rank(), dist.get_world_size(), group)
