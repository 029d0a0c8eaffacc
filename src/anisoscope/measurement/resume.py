"""A half-done pass on disk, inside the run's folder, so that a killed or interrupted measurement goes on."""

from __future__ import annotations

import shutil
import time
from contextlib import suppress
from pathlib import Path

from anisoscope.errors import StoreError
from anisoscope.measurement.engine import Engine
from anisoscope.store.files import explained, replacing, understood

_FOLDER = "partial"
_POINTER = "partial.txt"  # names the folder that is whole; written last
_LONGEST = 64  # characters of the pointer
_REMEDY = f"delete {_POINTER} and the {_FOLDER}-* folders to measure from the start"
_EVERY = 60.0  # seconds between two writes at least,
_PRICE = 20.0  # and so many times as long as the last write took: 5 % of the time at most


class Partial:
    """Where a survey keeps what it has counted so far; without a run's folder nothing is kept."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._next = time.monotonic() + _EVERY
        self._number = 0

    def load(self, survey: Engine) -> bool:
        """Lets the survey go on where an earlier process stopped; False if there is nothing to go on from."""
        number = self._pointed()
        if self._folder is None or number is None:
            return False
        place = self._folder / f"{_FOLDER}-{number}"
        with understood(place, _REMEDY, StoreError), explained("read", place):
            survey.load(place)
        self._number = number
        return True

    def keep(self, survey: Engine, *, now: bool = False) -> None:
        """Writes what was counted, if it is time or if told to."""
        if self._folder is None or not (now or time.monotonic() > self._next):
            return
        began = time.monotonic()
        self._number += 1
        place = self._folder / f"{_FOLDER}-{self._number}"
        shutil.rmtree(place, ignore_errors=True)  # left by a process that was killed while writing
        try:
            with explained("write", place):
                survey.save(place)
                with replacing(self._folder / _POINTER) as pointer:
                    pointer.write_text(place.name)
        except BaseException:
            if self._pointed() != self._number:  # the pointer may be there, and only its way to the disk have failed
                shutil.rmtree(place, ignore_errors=True)  # the space may be what is lacking
            raise
        self._drop_folders(but=place)
        took = time.monotonic() - began
        self._next = time.monotonic() + max(_EVERY, _PRICE * took)

    def drop(self) -> None:
        """The measurement is whole: nothing to go on from is needed any more."""
        if self._folder is not None:
            (self._folder / _POINTER).unlink(missing_ok=True)
            self._drop_folders(but=None)
            with suppress(OSError):
                self._folder.rmdir()  # a rank's own place; a run's folder is never empty

    def _pointed(self) -> int | None:
        """The number of the folder that is whole; None where there is none. A name would not lead out of the run."""
        if self._folder is None or not (self._folder / _POINTER).is_file():
            return None
        pointer = self._folder / _POINTER
        with understood(pointer, _REMEDY, StoreError), explained("read", pointer), pointer.open() as file:
            return int(file.read(_LONGEST).strip().removeprefix(f"{_FOLDER}-"))

    def _drop_folders(self, but: Path | None) -> None:
        assert self._folder is not None
        for old in self._folder.glob(f"{_FOLDER}-*"):
            if old != but:
                shutil.rmtree(old, ignore_errors=True)
