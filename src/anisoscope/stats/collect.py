"""From rows that can be looked at twice to a collected cloud."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from anisoscope.errors import InputError
from anisoscope.stats.cloud import Block, Cloud
from anisoscope.stats.collector import Collector
from anisoscope.stats.documents import segments
from anisoscope.stats.moments import Moments
from anisoscope.stats.registry import COLLECTED, SECOND_PASS
from anisoscope.stats.rows import Rows, bare_rows
from anisoscope.stats.sample import Sample

BLOCKS = 16
_BATCH = 8192


def collect(look: Callable[[], Iterable[Rows]], names: Iterable[str], **options: Any) -> Cloud:
    """The statistics of these names over rows that `look` gives, as often as it is called (twice at the most)."""
    names = set(names)
    second = [name for name in SECOND_PASS if name in names]
    collector = Collector(sorted((names - set(SECOND_PASS)) | ({"Moments"} if second else set())), **options)
    for rows in look():
        collector.add(rows)
    cloud = collector.finish()
    return second_pass(cloud, look(), second) if second else cloud


def second_pass(cloud: Cloud, rows: Iterable[Rows], names: Iterable[str]) -> Cloud:
    """The cloud with the statistics that need its pooled Moments, from rows seen again (or from its own sample)."""
    moments = cloud.get(Moments)
    if not bool(moments.fourth.isfinite()):
        return cloud  # NaN or Inf: every metric says so before it asks for more
    make = {name: partial(COLLECTED[name].of, moments=moments) for name in names}
    again = Collector(make, make=make)
    for part in rows:
        again.add(part)
    added = again.finish()
    extra = {block.number: block.stats for block in added.blocks}
    return cloud.with_stats(added.stats, [_with_more(block, extra.get(block.number, {})) for block in cloud.blocks])


def second_pass_on_sample(cloud: Cloud, names: Iterable[str]) -> Cloud:
    """The same from the rows of the cloud's sample, where the rows themselves have gone by."""
    rows = cloud.get(Sample).rows
    by_block = rows.take(torch.sort(rows.tokens.block, stable=True).indices)  # a collector takes a block at a time
    return second_pass(cloud, [by_block], names)


def cloud_of(x: Any, names: Iterable[str], *, documents: Any = None, **options: Any) -> Cloud:
    """The cloud of an array of rows in memory."""
    rows = as_rows(x)
    document = None if documents is None else torch.as_tensor(documents)
    return collect(lambda: batches_of(rows, document), with_documents(names, document), **options)


def with_documents(names: Iterable[str], document: Tensor | None) -> set[str]:
    """Documents are collected wherever they are known (the nulls use them, with a sample) and nowhere else."""
    names = set(names)
    return names - {"Documents"} if document is None else names | {"Documents", "Sample"}


def batches_of(x: Tensor, document: Tensor | None = None, *, blocks: int = BLOCKS, seed: int = 0) -> Iterator[Rows]:
    """Bare rows in batches, each numbered, keyed and in its block."""
    block = block_numbers(len(x), document, blocks)
    for first in range(0, len(x), _BATCH):
        there = slice(first, first + _BATCH)
        yield bare_rows(
            x[there],
            first=first,
            document=None if document is None else document[there],
            block=block[there],
            seed=seed,
        )


def block_numbers(n: int, document: Tensor | None = None, blocks: int = BLOCKS) -> Tensor:
    """The block of each of n rows: contiguous runs of n/blocks rows, moved to where documents begin."""
    unit = max(1, -(-n // blocks))
    if document is None:
        return torch.arange(n) // unit
    if len(document) != n:
        raise InputError(f"{n} rows but {len(document)} document ids; give one id a row")
    starts, ids = segments(document)
    if len(ids.unique()) != len(ids):
        raise InputError("the rows of one document are not contiguous; sort the rows by document")
    lengths = starts.diff(append=torch.tensor([n]))
    return torch.repeat_interleave(starts // unit, lengths)


def as_rows(x: Any) -> Tensor:
    """An (n, d) float tensor from an array, a nested list or a tensor, or an InputError that says what came instead."""
    try:
        rows = x if isinstance(x, Tensor) else torch.as_tensor(x)
    except (TypeError, ValueError, RuntimeError) as why:
        raise InputError(f"rows must be an array of numbers, got {type(x).__name__} ({why})") from None
    if rows.is_complex() or rows.dtype == torch.bool:
        raise InputError(f"rows must be real numbers, got {rows.dtype}")
    if rows.ndim != 2 or not rows.shape[0] or not rows.shape[1]:
        raise InputError(f"rows must be a matrix (n, d) with n, d > 0, got shape {tuple(rows.shape)}")
    return rows if rows.is_floating_point() else rows.double()


def _with_more(block: Block, more: Any) -> Block:
    assert isinstance(more, dict)  # a second look's statistics are small and stay in memory
    return replace(block, more={**block.more, **more})
