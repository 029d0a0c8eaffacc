"""How many bytes the statistics of all sites take during a pass: in memory, and in scratch files."""

from __future__ import annotations

import ctypes
import math
import shutil
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch

from anisoscope.errors import InputError
from anisoscope.measurement.engine import Engine
from anisoscope.measurement.request import MODEL_SAMPLE, Request
from anisoscope.measurement.site_statistics import SiteShape
from anisoscope.stats.cloud import HELD_NUMBERS, to_arrays
from anisoscope.stats.collect import BLOCKS
from anisoscope.stats.collector import PENDING
from anisoscope.stats.row_norms import Norms
from anisoscope.stats.rows import bare_rows
from anisoscope.stats.scratch import Room, bytes_of

_TABLE = 56  # bytes that a kept row takes besides its numbers: its columns and its priority
_WORTH_A_NOTE = 256 << 20  # bytes of scratch files


@dataclass(frozen=True)
class Holdings:
    """The bytes of statistics that sites of these shapes hold.

    Attributes:
        shapes: The sites.
        rows: Rows of the keyed sample.
        extremes: Rows of largest norm in a block.
        scatters: Matrices of d × d in a block: two if it has many first tokens of windows.
        waiting: Rows of the open block that are not in its sums yet.
        blocks: Blocks that are closed during the pass.
        room: What may stay in memory.
        sites: Number of sites that share the room.
    """

    shapes: Sequence[SiteShape]
    rows: int
    extremes: int
    scatters: int
    waiting: int
    blocks: int
    room: Room
    sites: int

    def block(self, shape: SiteShape) -> int:
        """Bytes of one block of one cloud."""
        d, histogram = shape.width, bytes_of(to_arrays({"Norms": Norms.of(bare_rows(torch.ones(1, 1)))}).values())
        return self.scatters * 8 * d * (d + 5) + histogram + self.extremes * (d * shape.number + _TABLE)

    def open(self, shape: SiteShape) -> int:
        """Bytes of the open block and of the sample of one cloud."""
        return self.block(shape) + (self.rows + self.waiting) * (shape.width * shape.number + _TABLE)

    @property
    def memory(self) -> int:
        """Bytes in memory at the end of the pass."""
        everything = sum(shape.clouds * (self.open(shape) + self._closed(shape)) for shape in self.shapes)
        return everything - self.scratch

    @property
    def scratch(self) -> int:
        """Bytes in scratch files at the end of the pass."""
        return sum(
            shape.clouds * (self.open(shape) * self._rests(shape) + self._closed(shape) * self._spills(shape))
            for shape in self.shapes
        )

    @property
    def unfinished(self) -> int:
        """Bytes of the unfinished pass in the run folder: what memory holds, twice while a copy replaces another."""
        return 2 * self.memory

    @property
    def evaluation(self) -> int:
        """Bytes of the blocks of the largest cloud while it is evaluated: as they are stored, and as sums."""
        if not self.shapes:
            return 0
        held = 8 * HELD_NUMBERS
        largest = max(self.shapes, key=self.block)
        scatters = BLOCKS * 8 * largest.width**2
        return min(held, min(self.blocks, BLOCKS) * self.block(largest)) + min(held, scatters)

    def _closed(self, shape: SiteShape) -> int:
        return (self.blocks - 1) * self.block(shape)  # the last one is open until the end

    def _share(self, shape: SiteShape) -> Room:
        return self.room.shared(self.sites * shape.clouds)

    def _rests(self, shape: SiteShape) -> bool:
        return self.open(shape) > self._share(shape).open

    def _spills(self, shape: SiteShape) -> bool:
        return self.block(shape) > self._share(shape).blocks // (2 * BLOCKS)


def holdings_of(engine: Engine, request: Request, tokens: int | None, blocks: int) -> Holdings:
    """Return what the sites of an engine will hold after that many tokens and blocks; it has seen one batch."""
    sample = request.statistics.sample or MODEL_SAMPLE
    rows = sample if tokens is None else min(sample, tokens)
    in_block = math.inf if tokens is None else tokens / blocks
    has_first = not engine.layout.grid and request.statistics.rows == "tokens"
    first = in_block * engine.windows / engine.tokens if has_first else 0.0  # tokens of a block that begin windows
    others = in_block if first == math.inf else in_block - first
    extremes = math.ceil(min(engine.extremes, first) + min(engine.extremes, others))
    scatters = 2 if first > engine.extremes else 1  # up to that many first tokens are kept as rows
    waiting = math.ceil(min(PENDING, max(0.0, others - engine.extremes)))
    shapes = list(engine.shapes.values())
    return Holdings(shapes, rows, extremes, scatters, waiting, blocks, engine.room, len(engine.sites))


def scratch_note(engine: Engine, request: Request, tokens: int | None, folder: Path | None) -> str | None:
    """Return a sentence about the scratch files that a pass will need, if they are large.

    Raises:
        InputError: The disk is too small for them.
    """
    if not engine.shapes:
        return None
    holdings = holdings_of(engine, request, tokens, 2 * BLOCKS)
    needed = holdings.scratch + (0 if folder is None else holdings.unfinished)
    where = Path(tempfile.gettempdir()) if folder is None else folder
    free = shutil.disk_usage(where).free
    if needed > free:
        raise InputError(
            f"up to {_gigabytes(needed)} of scratch files are needed in {where}, which has {_gigabytes(free)} free. "
            "Choose another --out, or measure fewer --sites"
        )
    if needed < _WORTH_A_NOTE:
        return None
    return f"Up to {_gigabytes(needed)} of scratch files in {where} until the run is complete."


def _gigabytes(size: int) -> str:
    return f"{size / 1e9:,.1f} GB"


def return_freed_memory() -> None:
    """Return the freed memory of this process to the system, where the C library is glibc; do nothing elsewhere.

    Once an array of up to 32 MB was freed, glibc keeps the memory of all arrays below that size. It was 0.4 GB after
    one batch of a model with 30 layers of width 576. This takes a few milliseconds.
    """
    with suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)
