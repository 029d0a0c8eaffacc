"""losses.jsonl of a training: rows with step, training loss since the previous row, and validation loss."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from anisoscope.errors import StoreError
from anisoscope.store.files import append_lines, file_errors, parse_errors, parse_json, read_lines, replacing

LOSSES = "losses.jsonl"


def read_losses(run: Path) -> list[dict[str, Any]]:
    """Read the losses of a run folder: rows with step, train and validation.

    Raises:
        StoreError: The file is damaged.
    """
    with parse_errors(run / LOSSES, "delete the lines that are not losses", StoreError):
        rows = [parse_json(line) for _, lines in read_lines(run / LOSSES) for line in lines if line.strip()]
        if not all(isinstance(row, dict) and type(row["step"]) is int and "validation" in row for row in rows):
            raise ValueError("a row needs step, train and validation")
    return rows


def add_losses(run: Path, row: Mapping[str, Any]) -> None:
    """Append one row."""
    with file_errors("write", run / LOSSES):
        append_lines(run / LOSSES, json.dumps(row).encode() + b"\n")


def drop_losses(run: Path, start: int) -> None:
    """Delete the rows from a step on, which a resumed training writes again."""
    kept = [json.dumps(row) + "\n" for row in read_losses(run) if row["step"] < start]
    with file_errors("write", run / LOSSES), replacing(run / LOSSES) as temporary:
        temporary.write_text("".join(kept))
