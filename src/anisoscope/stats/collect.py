"""Collect a cloud from rows that can be read twice."""

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


def collect(
    read: Callable[[], Iterable[Rows]], names: Iterable[str], *, precise: bool = False, **options: Any
) -> Cloud:
    """Collect statistics of rows.

    Args:
        read: Returns batches of the rows; called once, or twice if a statistic needs a second pass.
        names: Names of the statistics.
        precise: Multiply rows in float64.
        **options: Options of `Collector`.
    """
    names = set(names)
    second = [name for name in SECOND_PASS if name in names]
    if precise:
        options["make"] = {"Moments": partial(Moments.of, precise=True)}
    collector = Collector(sorted((names - set(SECOND_PASS)) | ({"Moments"} if second else set())), **options)
    for rows in read():
        collector.add(rows)
    cloud = collector.finish()
    return second_pass(cloud, read(), second) if second else cloud


def second_pass(cloud: Cloud, rows: Iterable[Rows], names: Iterable[str]) -> Cloud:
    """Return the cloud with statistics that need its Moments, from a second pass over its rows."""
    moments = cloud.get(Moments)
    if not bool(moments.fourth.isfinite()):
        return cloud  # NaN or Inf: metrics raise before they need more
    make = {name: partial(COLLECTED[name].of, moments=moments) for name in names}
    again = Collector(make, make=make)
    for part in rows:
        again.add(part)
    added = again.finish()
    extra = {block.number: block.stats for block in added.blocks}
    return cloud.with_stats(added.stats, [_with_more(block, extra.get(block.number, {})) for block in cloud.blocks])


def second_pass_on_sample(cloud: Cloud, names: Iterable[str]) -> Cloud:
    """Do the second pass on the sample of the cloud, if its rows cannot be read again."""
    rows = cloud.get(Sample).rows
    by_block = rows.take(torch.sort(rows.tokens.block, stable=True).indices)  # collectors take blocks in order
    return second_pass(cloud, [by_block], names)


def cloud_of(
    x: Any, names: Iterable[str], *, documents: Any = None, mask: Any = None, blocks: int = BLOCKS, **options: Any
) -> Cloud:
    """Collect statistics of an array of rows in memory.

    Args:
        x: Rows (n, d): a tensor, an array or nested lists.
        names: Names of the statistics.
        documents: A document number for each row.
        mask: Which rows count, (n,). Default: all.
        blocks: Number of blocks.
        precise: Multiply rows in float64.
        **options: Options of `Collector`.

    >>> cloud_of([[1.0, 2.0], [3.0, 4.0]], ["Moments"]).n
    2
    """
    rows = as_rows(x)
    document = None if documents is None else torch.as_tensor(documents)
    if mask is not None:
        keep = _kept(mask, len(rows))
        rows, document = rows[keep.to(rows.device)], None if document is None else document[keep]
    names = with_documents(names, document)
    return collect(lambda: batches_of(rows, document, blocks=blocks), names, blocks=blocks, **options)


def with_documents(names: Iterable[str], document: Tensor | None) -> set[str]:
    """Add the statistics that nulls need if documents are known; drop Documents if they are not."""
    names = set(names)
    return names - {"Documents"} if document is None else names | {"Documents", "Sample"}


def batches_of(x: Tensor, document: Tensor | None = None, *, blocks: int = BLOCKS, seed: int = 0) -> Iterator[Rows]:
    """Yield vectors (n, d) as batches of rows with document numbers, keys and blocks."""
    block = block_numbers(len(x), document, blocks)
    for first in range(0, len(x), _BATCH):
        batch = slice(first, first + _BATCH)
        yield bare_rows(
            x[batch],
            first=first,
            document=None if document is None else document[batch],
            block=block[batch],
            seed=seed,
        )


def block_numbers(n: int, document: Tensor | None = None, blocks: int = BLOCKS) -> Tensor:
    """Return the block of each of n rows: runs of n/blocks rows that start where documents start.

    Raises:
        InputError: The document ids do not match the rows, or rows of a document are not contiguous.
    """
    unit = max(1, -(-n // blocks))
    if document is None:
        return torch.arange(n) // unit
    if len(document) != n:
        raise InputError(f"There are {n} rows but {len(document)} document ids. Give one id per row.")
    starts, ids = segments(document)
    if len(ids.unique()) != len(ids):
        raise InputError("The rows of a document are not contiguous. Sort the rows by document.")
    lengths = starts.diff(append=torch.tensor([n]))
    return torch.repeat_interleave(starts // unit, lengths)


def as_rows(x: Any) -> Tensor:
    """Return an array, a nested list, a data frame or a tensor as a float tensor (n, d).

    Raises:
        InputError: It is not a matrix of real numbers.
    """
    if hasattr(x, "select_dtypes"):  # a data frame
        x = _numbers(x)
    try:
        rows = x if isinstance(x, Tensor) else torch.as_tensor(x)
    except (TypeError, ValueError, RuntimeError) as why:
        raise InputError(f"Rows must be an array of numbers, not {type(x).__name__} ({why}).") from None
    if rows.is_complex() or rows.dtype == torch.bool:
        raise InputError(f"Rows must be real numbers, not {rows.dtype}.")
    if rows.ndim != 2 or not rows.shape[0] or not rows.shape[1]:
        raise InputError(f"Rows must be a matrix (n, d) with n, d > 0. The shape is {tuple(rows.shape)}.")
    return rows if rows.is_floating_point() else rows.double()


def _kept(mask: Any, n: int) -> Tensor:
    """The mask as bool, (n,)."""
    keep = torch.as_tensor(mask).cpu().bool()
    if keep.shape != (n,) or not keep.any():
        raise InputError(f"The mask has {int(keep.sum())} rows that count and shape {tuple(keep.shape)}. Use ({n},).")
    return keep


def _numbers(frame: Any) -> Any:
    """The columns of a data frame as an array."""
    numeric = frame.select_dtypes("number")
    others = [str(name) for name in frame.columns if name not in numeric.columns]
    if others:
        raise InputError(f"Columns of the data frame are not numbers: {', '.join(others[:4])}. Leave them out.")
    return numeric.to_numpy(dtype=float, copy=True)


def _with_more(block: Block, more: Any) -> Block:
    assert isinstance(more, dict)  # statistics of a second pass are small and stay in memory
    return replace(block, more={**block.more, **more})
