"""An unfinished pass on disk, inside the run's folder, so that an interrupted or killed measurement can be resumed."""

from __future__ import annotations

import shutil
import time
from contextlib import suppress
from pathlib import Path

from anisoscope.errors import StoreError
from anisoscope.measurement.engine import Engine
from anisoscope.stats.scratch import remove_stale
from anisoscope.store.files import file_errors, parse_errors, replacing

_FOLDER = "partial"
_POINTER = "partial.txt"  # names the folder that is complete; written last
_LONGEST = 64  # characters of the pointer
_REMEDY = f"delete {_POINTER} and the {_FOLDER}-* folders to measure from the start"
SAVED_EVERY = 60.0  # seconds between two writes, at least,
_PRICE = 20.0  # and this many times as long as the last write took: at most 5 % of the time


class Partial:
    """Keeps what an engine has counted so far; without a folder nothing is kept."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        if folder is not None and folder.is_dir():
            remove_stale(folder)  # this process has the lock of the run
        self._next = time.monotonic() + SAVED_EVERY
        self._number = 0

    @property
    def scratch(self) -> Path | None:
        """Where the pass may store what does not fit into memory: on the disk that the unfinished pass is kept on."""
        if self._folder is not None:
            self._folder.mkdir(parents=True, exist_ok=True)
        return self._folder

    def load(self, engine: Engine) -> bool:
        """Load what an earlier process counted into the engine; return whether there was anything."""
        number = self._complete_folder()
        if self._folder is None or number is None:
            return False
        folder = self._folder / f"{_FOLDER}-{number}"
        with parse_errors(folder, _REMEDY, StoreError), file_errors("read", folder):
            engine.load(folder)
        self._number = number
        return True

    def keep(self, engine: Engine, *, now: bool = False) -> None:
        """Write what was counted, if it is time, or `now`."""
        if self._folder is None or not (now or time.monotonic() > self._next):
            return
        began = time.monotonic()
        self._number += 1
        folder = self._folder / f"{_FOLDER}-{self._number}"
        shutil.rmtree(folder, ignore_errors=True)  # left by a process that was killed while writing
        try:
            with file_errors("write", folder):
                engine.save(folder)
                with replacing(self._folder / _POINTER) as pointer:
                    pointer.write_text(folder.name)
        except BaseException:
            if self._complete_folder() != self._number:  # the pointer may be written, and only syncing it have failed
                shutil.rmtree(folder, ignore_errors=True)  # the disk may be full
            raise
        self._drop_folders(but=folder)
        took = time.monotonic() - began
        self._next = time.monotonic() + max(SAVED_EVERY, _PRICE * took)

    def drop(self) -> None:
        """Delete everything: the measurement is complete."""
        if self._folder is not None:
            (self._folder / _POINTER).unlink(missing_ok=True)
            self._drop_folders(but=None)
            with suppress(OSError):
                self._folder.rmdir()  # a rank's own folder; a run's folder is never empty

    def _complete_folder(self) -> int | None:
        """The number of the folder that is complete, if any. It is a number, so no name leads out of the run."""
        if self._folder is None or not (self._folder / _POINTER).is_file():
            return None
        pointer = self._folder / _POINTER
        with parse_errors(pointer, _REMEDY, StoreError), file_errors("read", pointer), pointer.open() as file:
            return int(file.read(_LONGEST).strip().removeprefix(f"{_FOLDER}-"))

    def _drop_folders(self, but: Path | None) -> None:
        assert self._folder is not None
        for old in self._folder.glob(f"{_FOLDER}-*"):
            if old != but:
                shutil.rmtree(old, ignore_errors=True)
