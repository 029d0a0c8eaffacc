"""What a sweep has done in a run, one line a task, append-only: read again when the sweep is started again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from anisoscope.disk import append_lines, explained, read_lines

_FILE, _SKETCH = "tasks.jsonl", "sketch"


class Ledger:
    """Finished tasks by key, each with its step and its weights' digest; what is larger is read when asked for."""

    def __init__(self, run: Path) -> None:
        self._path = run / _FILE
        self.done: dict[str, dict[str, Any]] = {}
        with explained("read", self._path):
            for _, lines in read_lines(self._path):
                for line in lines:
                    self._count(json.loads(line))

    def add(self, key: str, **facts: Any) -> None:
        """Writes a finished task down; it is on the disk when this returns."""
        line = {"key": key, **facts}
        with explained("write", self._path):
            append_lines(self._path, json.dumps(line).encode() + b"\n")
        self._count(line)

    def sketches(self) -> dict[int, list[float]]:
        """By step, the few weights that tell how far the model has moved."""
        found: dict[int, list[float]] = {}
        with explained("read", self._path):
            for _, lines in read_lines(self._path):
                for line in map(json.loads, lines):
                    if _SKETCH in line:
                        found[line["step"]] = line[_SKETCH]
        return found

    def _count(self, line: dict[str, Any]) -> None:
        self.done[line["key"]] = {name: value for name, value in line.items() if name not in ("key", _SKETCH)}
