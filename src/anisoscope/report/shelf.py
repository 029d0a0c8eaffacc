"""The runs below a folder: found, listed and read for the live page. Nothing outside the folder is ever opened."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from anisoscope.errors import AnisoscopeError, InputError
from anisoscope.store.run import Run

_HEAD, _RECORDS = "run.json", "records.jsonl"
_DEEPEST = 6  # folders below the root in which runs are looked for


class Shelf:
    """A folder of runs. A run is asked for by its id, its path below the folder, and looked up, never joined.

    >>> sorted(Shelf("runs").ids())                                      # doctest: +SKIP
    ['exp1', 'sweep/a', 'sweep/b']
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = Path(root).resolve()
        if not self.root.is_dir():
            raise InputError(f"{root} is not a folder; give the folder that holds your runs")

    def ids(self) -> dict[str, Path]:
        """The runs there are now: folders with a run.json, in the folder itself or below it; links are not followed."""
        found: dict[str, Path] = {}
        for folder, inside, names in os.walk(self.root, followlinks=False):
            path = Path(folder)
            depth = len(path.relative_to(self.root).parts)
            if not _is_text(folder):
                inside.clear()  # no page and no address can spell it
            elif _HEAD in names:
                found[path.relative_to(self.root).as_posix()] = path
                inside.clear()  # a run holds no runs
            elif depth >= _DEEPEST:
                inside.clear()
            else:
                inside[:] = [name for name in inside if not name.startswith(".")]
        return found

    def open(self, ids: Sequence[str]) -> list[Run]:
        """The runs of these ids; an id that is no run below the folder is an InputError, whatever it spells."""
        known = self.ids()
        for name in ids:
            if name not in known:
                raise InputError(f"no run {name!r} in {self.root.name}; reload the list of runs")
        return [Run.open(known[name]) for name in ids]

    def listing(self) -> list[dict[str, Any]]:
        """What the list of runs shows, the last changed first; reads heads only, so a thousand runs take no time."""
        entries = [_entry(name, path) for name, path in self.ids().items()]
        return sorted(entries, key=lambda entry: (-entry["changed"], entry["id"]))


def _is_text(name: str) -> bool:
    """Whether a name is text: a disk may hold bytes that are none."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _entry(name: str, path: Path) -> dict[str, Any]:
    try:
        run = Run.open(path)  # as every reader: no link, no pipe, bounded in size and depth
        model = run.info.get("model")
        title = model.get("source") or model.get("architecture") if isinstance(model, dict) else model
        shown = {"name": run.name, "created": run.created, "model": None if title is None else str(title)}
    except AnisoscopeError:
        # One broken run must not hide the others.
        shown = {"name": path.name, "created": "", "model": "run.json cannot be read"}
    try:
        facts = (path / _RECORDS).lstat()
        return {"id": name, **shown, "size": facts.st_size, "changed": facts.st_mtime}
    except OSError:
        return {"id": name, **shown, "size": 0, "changed": 0.0}


def size_of(run: Run) -> int:
    """How long the file of a run's records is: what changes when it grows."""
    try:
        return (run.path / _RECORDS).stat().st_size
    except OSError:
        return 0
