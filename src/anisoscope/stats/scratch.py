"""Scratch folders, and how much of what is collected may stay in memory instead."""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

SCRATCH = "scratch-"  # how the names of scratch folders begin
_BLOCKS = 128 << 20  # bytes of closed blocks that may stay in memory, over all sites
_OPEN = 640 << 20  # bytes of open blocks and samples that may stay in memory between two batches, over all sites


class Scratch:
    """A temporary folder that is deleted when nothing refers to it any more."""

    def __init__(self, parent: Path | None = None) -> None:
        """Create it in a folder, by default in that of the system's temporary files."""
        self.path = Path(tempfile.mkdtemp(prefix=f"anisoscope-{SCRATCH}" if parent is None else SCRATCH, dir=parent))
        weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)


@dataclass(frozen=True)
class Room:
    """How many bytes a collector may hold in memory; what is beyond goes to a scratch folder inside `parent`.

    Attributes:
        blocks: Bytes of all closed blocks.
        open: Bytes of the open block and of the sample, between two batches.
        parent: Where scratch folders are created; None for the system's temporary folder.
    """

    blocks: int = _BLOCKS
    open: int = _OPEN
    parent: Path | None = None

    def shared(self, among: int) -> Room:
        """Return the room of each collector if it is shared among several."""
        return Room(self.blocks // among, self.open // among, self.parent)


def remove_stale(parent: Path) -> None:
    """Delete the scratch folders of processes that were killed; no other process may be using `parent`."""
    for folder in parent.glob(f"{SCRATCH}*"):
        shutil.rmtree(folder, ignore_errors=True)


def link_or_copy(source: Path, to: Path) -> None:
    """Give a file that never changes a second name; copy it if the two names are on different file systems."""
    with suppress(FileNotFoundError):
        to.unlink()
    try:
        os.link(source, to)
    except OSError:
        shutil.copyfile(source, to)


def bytes_of(arrays: Iterable[Tensor]) -> int:
    """Return how many bytes arrays have."""
    return sum(x.numel() * x.element_size() for x in arrays)
