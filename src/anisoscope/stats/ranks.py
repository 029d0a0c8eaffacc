"""Summing statistics over the processes of a distributed job: the add law between machines."""

from __future__ import annotations

from functools import reduce
from typing import Any, TypeVar

import torch.distributed as dist

from anisoscope.stats.pack import pack, unpack

S = TypeVar("S")


def add_over_ranks(statistic: S | None, kind: type[S]) -> S | None:
    """The sum of a statistic over all ranks, on every rank, in rank order; a rank without rows passes None.

    Statistics are small, so they travel whole and are added in the same order everywhere: all ranks hold the same
    bits. Works on any backend; on one process it is the statistic itself.
    """
    arrays = _gathered(None if statistic is None else pack(statistic))
    parts: list[Any] = [unpack(kind, each) for each in arrays if each is not None]
    total: S | None = reduce(lambda a, b: a + b, parts) if parts else None
    return total


def _gathered(mine: Any) -> list[Any]:
    if not (dist.is_available() and dist.is_initialized()):
        return [mine]
    out: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(out, mine)
    return out
