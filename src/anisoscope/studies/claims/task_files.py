"""Downstream tasks of the user: a file of texts with labels, or of texts with what belongs to each of them."""

from __future__ import annotations

import csv
import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

from anisoscope.errors import InputError
from anisoscope.store.files import file_errors

FOLDS = 4  # each is predicted by a probe that is fitted on the others
_ROWS_PER_FOLD = 8
_DELIMITERS = {".csv": ",", ".tsv": "\t"}
_COLUMNS = "Give it the columns text and label, or text and match."


@dataclass(frozen=True)
class TextTask:
    """Texts, and what is to be predicted of them: a label each, or which of all `matches` belongs to each.

    Attributes:
        name: Name in figures and reports.
        texts: The texts.
        labels: A label per text, for classification by a linear probe; empty for retrieval.
        matches: What belongs to each text, for retrieval; empty for classification.
    """

    name: str
    texts: tuple[str, ...]
    labels: tuple[str, ...] = ()
    matches: tuple[str, ...] = ()

    @property
    def description(self) -> str:
        """The name with the number of texts and what is predicted of them."""
        predicted = f"{len(set(self.labels))} labels" if self.labels else "retrieval"
        return f"{self.name} ({len(self.texts)} texts, {predicted})"


def read_task(path: str | Path) -> TextTask:
    """Read a task: .jsonl, .csv or .tsv with the columns `text` and `label`, or `text` and `match`.

    Raises:
        InputError: The file cannot be read, or is no task: columns are missing, there is one label, or too few rows.
    """
    path = Path(path)
    rows = list(_rows(path))
    columns = set(rows[0]) if rows else set()
    kinds = [kind for kind in ("label", "match") if kind in columns]
    if "text" not in columns or not kinds:
        found = ", ".join(sorted(map(str, columns))) or "nothing"
        raise InputError(f"{path} has no task: it holds {found}. {_COLUMNS}")
    if len(kinds) > 1:
        raise InputError(f"{path} has the columns label and match. Keep one of them.")
    texts, answers = (tuple(_column(path, rows, name)) for name in ("text", kinds[0]))
    _require_enough(path, answers)
    if kinds == ["match"]:
        _require_different(path, answers)
        return TextTask(path.name, texts, matches=answers)
    _require_classes(path, answers)
    return TextTask(path.name, texts, labels=answers)


def read_tasks(paths: Sequence[str | Path]) -> tuple[TextTask, ...]:
    """Read several tasks, whose file names must differ."""
    tasks = tuple(map(read_task, paths))
    for name, number in Counter(task.name for task in tasks).items():
        if number > 1:
            raise InputError(f"{number} task files are named {name}. Give each its own name.")
    return tasks


def task_settings(paths: Sequence[str | Path]) -> list[str]:
    """Return names and hashes of task files as a run stores them, so that other contents are refused on resuming."""
    settings = []
    for path in map(Path, paths):
        with file_errors("read", path):
            settings.append(f"{path.name}, sha256 {hashlib.sha256(path.read_bytes()).hexdigest()[:16]}")
    return settings


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    suffix = path.suffix.lower()
    if suffix not in (".jsonl", *_DELIMITERS):
        raise InputError(f"{path} is no task file. Give a .jsonl, .csv or .tsv file.")
    with file_errors("read", path):
        try:
            text = path.read_bytes().decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise InputError(f"{path} is not UTF-8 text. Save it as UTF-8.") from error
    if suffix in _DELIMITERS:
        try:
            yield from csv.DictReader(StringIO(text, newline=""), delimiter=_DELIMITERS[suffix], strict=True)
        except csv.Error as error:
            raise InputError(f"{path} is no table: {error}. Check its quotes and delimiters.") from error
        return
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            try:
                row = json.loads(line)
            except ValueError as error:
                raise InputError(f"{path}, line {number} is not JSON. Write one object per line.") from error
            if not isinstance(row, dict):
                raise InputError(f"{path}, line {number} is no JSON object. {_COLUMNS}")
            yield row


def _column(path: Path, rows: Sequence[dict[str, Any]], name: str) -> Iterator[str]:
    for number, row in enumerate(rows, 1):
        value = row.get(name)
        text = "" if value is None else str(value)
        if not text.strip() or isinstance(value, dict | list):
            raise InputError(f"{path}, row {number} has no {name}. Fill it in, or delete the row.")
        yield text


def _require_enough(path: Path, answers: Sequence[str]) -> None:
    least = FOLDS * _ROWS_PER_FOLD
    if len(answers) < least:
        raise InputError(f"{path} has {len(answers)} rows. A task needs {least}, {_ROWS_PER_FOLD} in each fold.")


def _require_classes(path: Path, labels: Sequence[str]) -> None:
    counts = Counter(labels)
    if len(counts) == 1:
        raise InputError(f"{path} has only the label {labels[0]!r}. A task needs at least two.")
    rarest, number = min(counts.items(), key=lambda item: item[1])
    if number < FOLDS:
        raise InputError(f"{path} has the label {rarest!r} {number} times. It needs {FOLDS} rows, one in each fold.")


def _require_different(path: Path, matches: Sequence[str]) -> None:
    match, number = Counter(matches).most_common(1)[0]
    if number > 1:
        raise InputError(f"{path} has the same match in {number} rows: {match[:40]!r}. Every text needs its own.")
