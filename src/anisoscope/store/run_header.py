"""The header of a run (run.json) and its folder: what a run is, and whether a folder can become one."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from anisoscope import __version__
from anisoscope.errors import InputError, StoreError
from anisoscope.store.files import TEMPORARY, file_errors, open_plain, replacing, similar_paths, user_path
from anisoscope.store.record_lines import parse_objects

FORMAT = 1
HEADER, LOCK = "run.json", "lock"
_SIZE_LIMIT = 16 << 20  # bytes


def run_path(path: str | os.PathLike[str]) -> Path:
    """The absolute path of a run; an InputError if the system cannot have such a path."""
    try:
        # Resolved, so that "." has a name and a later change of directory does not move the run.
        return user_path(path).resolve()
    except (ValueError, OSError, RuntimeError) as error:
        raise InputError(f"{os.fspath(path)!r} cannot be the path of a run: {error}") from error


def require_usable_folder(folder: Path, resume: bool) -> None:
    """Check that a folder is empty, or a run that is to be resumed."""
    with file_errors("list", folder):
        names = {name for name in os.listdir(folder) if name != LOCK and not name.endswith(TEMPORARY)}
    if HEADER in names:
        if not resume:
            raise StoreError(
                f"{folder} is already a run. Resume it (resume=True), show it with "
                "`anisoscope show`, or choose another folder"
            )
    elif names:
        raise StoreError(f"{folder} is not empty and not a run; choose another folder")


def new_header(name: str, command: str | None, info: dict[str, Any]) -> dict[str, Any]:
    """The header of a new run, created now."""
    created = datetime.now(UTC).isoformat(timespec="seconds")
    header = {"format": FORMAT, "name": name, "created": created, "anisoscope": __version__}
    return {**header, "command": command, "info": info}


def resumed_header(folder: Path, new: dict[str, Any]) -> dict[str, Any]:
    """The stored header with the info keys that it lacks; `new` if the folder has none yet."""
    if not os.path.lexists(folder / HEADER):
        return new
    old = read_header(folder)
    return {**old, "info": {**new["info"], **old["info"]}}


def write_header(folder: Path, header: dict[str, Any]) -> dict[str, Any]:
    """Replace run.json; returns the header as a reader will see it (tuples have become lists)."""
    try:
        data = json.dumps(header, ensure_ascii=False, allow_nan=False, indent=2).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"the info of run {header['name']} cannot be JSON: {error}; use plain values") from error
    if len(data) > _SIZE_LIMIT:
        raise InputError(f"the info of run {header['name']} has {len(data)} bytes; keep it under {_SIZE_LIMIT}")
    path = folder / HEADER
    with file_errors("write", path), replacing(path) as temporary:
        temporary.write_bytes(data)
    stored: dict[str, Any] = json.loads(data)
    return stored


def read_header(folder: Path) -> dict[str, Any]:
    """The checked contents of run.json; a StoreError if the folder is not a run or the file is damaged."""
    path = folder / HEADER
    with file_errors("read", path):
        try:
            descriptor = open_plain(path, os.O_RDONLY)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise StoreError(_not_a_run(folder)) from error
        with os.fdopen(descriptor, "rb") as file:
            data = file.read(_SIZE_LIMIT + 1)
    try:
        if len(data) > _SIZE_LIMIT:
            raise ValueError(f"longer than {_SIZE_LIMIT} bytes")
        return _checked_header(parse_objects([data])[0])
    except (ValueError, InputError) as error:
        raise StoreError(f"{path} cannot be read: {error}; restore it from a copy or measure again") from error


def checked_name(name: str) -> str:
    """The name, if it can be shown in tables, file names and pages: one line of text that is not a path."""
    if name in ("", ".", "..") or not name.isprintable() or "/" in name or "\\" in name:
        raise InputError(f"{name!r} cannot be the name of a run; use plain text without / or \\")
    return name


def _not_a_run(folder: Path) -> str:
    """Why a path is not a run, and where a run may be."""
    if not folder.exists():
        return f"{folder} is not a run: it does not exist{similar_paths(folder)}. Choose a folder made with --out"
    with suppress(OSError):
        inside = sorted(entry.name for entry in folder.iterdir() if (entry / HEADER).is_file())
        if inside:
            return f"{folder} is not a run, but contains runs. Choose one or more of them: {', '.join(inside[:6])}"
    return f"{folder} is not a run: it has no {HEADER}. Choose a folder made with --out"


def _checked_header(header: dict[str, Any]) -> dict[str, Any]:
    if header.get("format") != FORMAT:
        raise ValueError(f"its format is {header.get('format')!r}, this version of anisoscope reads {FORMAT}")
    texts = all(isinstance(header.get(name), str) for name in ("name", "created", "anisoscope"))
    if not texts or not isinstance(header.get("command"), str | None) or not isinstance(header.get("info"), dict):
        raise ValueError("name, created and anisoscope must be texts, command a text or null, info an object")
    checked_name(header["name"])
    return {"command": None, **header}
