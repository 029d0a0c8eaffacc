"""What the list of runs shows of each: whether it is being written, its last step, loss and alert.

Only the end of records.jsonl is read, so that a hundred runs with a million records are listed quickly.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from anisoscope.errors import InputError
from anisoscope.store.files import open_plain
from anisoscope.store.record_lines import parse_objects

_TAIL = 1 << 17  # bytes at the end of records.jsonl that are read
_LOCKS = Path("/proc/locks")
_LOSSES = ("train_loss", "validation_loss")
_TEXT = 300  # letters of an alert that are shown
_CONFIG = 24  # settings that are offered as columns


def tail_facts(path: Path) -> dict[str, Any]:
    """The last step, losses and alert at the end of a file of records; None for what is not there."""
    facts: dict[str, Any] = {"step": None, "loss": None, "alert": None, "alert_step": None}
    losses: dict[str, Any] = {}
    for record in _last_records(path):
        step, metric = record.get("step"), record.get("metric")
        if type(step) is int and (facts["step"] is None or step > facts["step"]):
            facts["step"] = step
        if metric in _LOSSES and isinstance(record.get("value"), int | float):
            losses[str(metric)] = record["value"]
        if metric == "alert":
            facts["alert"] = str(record.get("note") or record.get("site"))[:_TEXT]
            facts["alert_step"] = step if type(step) is int else None
    facts["loss"] = next((losses[name] for name in reversed(_LOSSES) if name in losses), None)
    return facts


def _last_records(path: Path) -> list[dict[str, Any]]:
    try:
        descriptor = open_plain(path, os.O_RDONLY)
    except OSError:
        return []
    with os.fdopen(descriptor, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        file.seek(max(0, size - _TAIL))
        lines = file.read(_TAIL).split(b"\n")
    whole = lines[1:-1] if size > _TAIL else lines[:-1]  # a line that is being written is not complete
    try:
        return parse_objects(whole)
    except (ValueError, InputError):
        return []


def is_written(lock: Path) -> bool:
    """Whether a process holds the lock of a run. The lock itself is not touched: a writer must never fail by this."""
    try:
        status = lock.lstat()
        locks = _LOCKS.read_text()
    except OSError:
        return False
    device = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    return any(len(fields) > 5 and fields[5] == device for fields in map(str.split, locks.splitlines()))


def status_of(written: bool, info: Mapping[str, Any], step: int | None) -> str:
    """The state of a run in one word: running, finished, or stopped (its process ended before the run was complete).

    >>> status_of(False, {"complete": True}, 5), status_of(False, {"settings": {"steps": 60}}, 12)
    ('finished', 'stopped')
    """
    if written:
        return "running"
    settings = info.get("settings")
    planned = settings.get("steps") if isinstance(settings, Mapping) else None
    if type(planned) is int and step is not None:
        return "finished" if step >= planned - 1 else "stopped"
    complete = info.get("complete")
    return "stopped" if complete is False else "finished" if complete is True else "ended"


def config_of(info: Mapping[str, Any]) -> dict[str, Any]:
    """The plain settings of a run, which the list can show as columns."""
    settings = info.get("settings")
    config = info.get("config")
    both = {
        **(settings if isinstance(settings, Mapping) else {}),
        **(config if isinstance(config, Mapping) else {}),
    }
    plain = {str(k): v for k, v in both.items() if isinstance(v, str | int | float | bool) and len(str(v)) < 60}
    return dict(list(plain.items())[:_CONFIG])
