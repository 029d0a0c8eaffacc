"""The finished tasks of a sweep, one line per task, append-only; read when the sweep is resumed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from anisoscope.errors import StoreError
from anisoscope.store.files import append_lines, file_errors, parse_errors, parse_json, read_lines

LEDGER = "tasks.jsonl"
_SKETCH = "sketch"


class Ledger:
    """Finished tasks by key, each with its step and the digest of its weights; larger facts are read on request."""

    def __init__(self, run: Path) -> None:
        self._path = run / LEDGER
        self.done: dict[str, dict[str, Any]] = {}
        for line in self._lines():
            self._count(line)

    def add(self, key: str, **facts: Any) -> None:
        """Record a finished task; it is on disk when this returns."""
        line = {"key": key, **facts}
        with file_errors("write", self._path):
            append_lines(self._path, json.dumps(line).encode() + b"\n")
        self._count(line)

    def sketches(self) -> dict[int, list[float]]:
        """Return, by step, the few weights that show how far the model has moved."""
        sketches: dict[int, list[float]] = {}
        for line in self._lines():
            if _SKETCH in line:
                sketches[line["step"]] = line[_SKETCH]
        return sketches

    def _lines(self) -> Iterator[dict[str, Any]]:
        """The lines that were written; one that is none of ours is a StoreError that says which."""
        with file_errors("read", self._path):
            for first, lines in read_lines(self._path):
                for number, text in enumerate(lines, start=first):
                    with parse_errors(
                        f"{self._path}, line {number}", "delete the line to do its task again", StoreError
                    ):
                        yield _checked(parse_json(text))

    def _count(self, line: dict[str, Any]) -> None:
        self.done[line["key"]] = {name: value for name, value in line.items() if name not in ("key", _SKETCH)}


def _checked(line: Any) -> dict[str, Any]:
    sketch = line.get(_SKETCH, [])
    if not isinstance(line["key"], str) or not isinstance(line.get("step", 0), int) or not isinstance(sketch, list):
        raise ValueError("not a finished task")
    return {**line, **({_SKETCH: [float(x) for x in sketch]} if _SKETCH in line else {})}
