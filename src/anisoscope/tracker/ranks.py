"""The processes of a distributed training: who writes, what all agree on, whose parameters are sharded."""

from __future__ import annotations

import sys
from typing import Any, TypeVar

import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

T = TypeVar("T")


def together() -> bool:
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def rank() -> int:
    return dist.get_rank() if together() else 0


def world() -> int:
    return dist.get_world_size() if together() else 1


def agree(value: T) -> T:
    """What rank 0 says, on every rank: clocks differ, decisions must not."""
    if not together():
        return value
    said: list[Any] = [value]
    dist.broadcast_object_list(said, src=0)
    agreed: T = said[0]
    return agreed


def gather(value: T) -> list[T]:
    """The values of all ranks, on every rank."""
    if not together():
        return [value]
    out: list[Any] = [None] * world()
    dist.all_gather_object(out, value)
    return out


def bare(model: nn.Module) -> nn.Module:
    """The module itself inside what DistributedDataParallel and `torch.compile` put around it.

    Sharded modules (fully_shard) are their own wrappers and stay as they are.
    """
    while True:
        if isinstance(model, DistributedDataParallel | DataParallel):
            model = model.module
        elif isinstance(inner := getattr(model, "_orig_mod", None), nn.Module):
            model = inner
        else:
            return model


def is_sharded(model: nn.Module) -> bool:
    """Whether parameters lie in pieces (fully_shard): then a forward needs all ranks at once."""
    return bool(_sharding(model))


def put_away(model: nn.Module) -> None:
    """Free what a forward without a backward has left gathered: the next update would not reach those copies."""
    for module in _sharding(model):
        module.reshard()


def full(x: Tensor) -> Tensor:
    """A sharded tensor, gathered from all ranks (which must all ask); any other as it is."""
    tensors = sys.modules.get("torch.distributed.tensor")
    if tensors is None or not isinstance(x, tensors.DTensor):
        return x
    whole: Tensor = x.full_tensor()
    return whole


def _sharding(model: nn.Module) -> list[Any]:
    """The modules that gather and free parameters; the library takes seconds to load, and was if there are any."""
    library = sys.modules.get("torch.distributed.fsdp")
    return [] if library is None else [m for m in model.modules() if isinstance(m, library.FSDPModule)]
