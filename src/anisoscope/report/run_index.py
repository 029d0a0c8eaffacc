"""The runs in a folder, for the live page. Nothing outside the folder is ever opened."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from anisoscope.errors import AnisoscopeError, InputError
from anisoscope.report.run_status import config_of, is_written, status_of, tail_facts
from anisoscope.store.run import Run
from anisoscope.store.run_header import LOCK

_HEADER, _RECORDS = "run.json", "records.jsonl"
MOST_RUNS = 24  # that are read at once
_DEEPEST = 6  # levels of folders that are searched


class RunIndex:
    """A folder with runs in it. A run's id is its path in the folder; ids are looked up, never joined to a path.

    >>> sorted(RunIndex("runs").ids())                                      # doctest: +SKIP
    ['exp1', 'sweep/a', 'sweep/b']
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = Path(root).resolve()
        self._entries: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {}
        if not self.root.is_dir():
            raise InputError(f"{root} is not a folder; choose the folder that contains your runs")

    def ids(self) -> dict[str, Path]:
        """The paths of all runs by id: folders with a run.json, at any depth; links are not followed."""
        runs: dict[str, Path] = {}
        for folder, inside, names in os.walk(self.root, followlinks=False):
            path = Path(folder)
            depth = len(path.relative_to(self.root).parts)
            if not _is_text(folder):
                inside.clear()  # cannot be shown in a page or an address
            elif _HEADER in names:
                runs[path.relative_to(self.root).as_posix()] = path
                inside.clear()  # a run contains no runs
            elif depth >= _DEEPEST:
                inside.clear()
            else:
                inside[:] = [name for name in inside if not name.startswith(".")]
        return runs

    def open(self, ids: Sequence[str]) -> list[Run]:
        """Open the runs of these ids; an id that is not a run in the folder is an InputError, and so are too many."""
        if len(ids) > MOST_RUNS:
            raise InputError(f"{len(ids)} runs at once are too many; choose at most {MOST_RUNS}")
        known = self.ids()
        for name in ids:
            if name not in known:
                raise InputError(f"no run {name!r} in {self.root.name}; reload the list of runs")
        return [Run.open(known[name]) for name in ids]

    def _known_entry(self, name: str, path: Path) -> dict[str, Any]:
        """The entry of a run; read again only if one of its files has changed or a process writes it."""
        key = tuple(_changed(path / file) for file in (_HEADER, _RECORDS, LOCK))
        before = self._entries.get(name)
        if before is None or before[0] != key or before[1]["status"] == "running":
            self._entries[name] = key, _entry(name, path)
        return self._entries[name][1]

    def listing(self) -> list[dict[str, Any]]:
        """The list of runs for the page, the last changed first; reads headers and the ends of records."""
        known = self.ids()
        entries = [self._known_entry(name, path) for name, path in known.items()]
        self._entries = {name: entry for name, entry in self._entries.items() if name in known}
        return sorted(entries, key=lambda entry: (-entry["changed"], entry["id"]))


def _changed(path: Path) -> int:
    """When a file was changed, in nanoseconds; 0 if it does not exist."""
    try:
        return path.lstat().st_mtime_ns
    except OSError:
        return 0


def _is_text(name: str) -> bool:
    """Whether a name is valid Unicode: on a disk it may be any bytes."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _entry(name: str, path: Path) -> dict[str, Any]:
    info: dict[str, Any] = {}
    try:
        run = Run.open(path)  # as every reader: no link, no pipe, bounded in size and depth
        info = run.info
        model = info.get("model")
        title = model.get("source") or model.get("architecture") if isinstance(model, dict) else model
        header = {"name": run.name, "created": run.created, "model": None if title is None else str(title)}
    except AnisoscopeError:
        # One damaged run must not hide the others.
        header = {"name": path.name, "created": "", "model": "run.json cannot be read"}
    try:
        status = (path / _RECORDS).lstat()
        files = {"size": status.st_size, "changed": status.st_mtime}
    except OSError:
        files = {"size": 0, "changed": 0.0}
    facts = tail_facts(path / _RECORDS) if files["size"] else {"step": None, "loss": None, "alert": None}
    state = status_of(is_written(path / LOCK), info, facts["step"])
    return {"id": name, **header, **files, **facts, "status": state, "config": config_of(info)}


def size_of(run: Run) -> int:
    """The size in bytes of a run's records.jsonl, which changes when the run grows."""
    try:
        return (run.path / _RECORDS).stat().st_size
    except OSError:
        return 0
