"""Run: one folder of results (run.json, records.jsonl, replicates.jsonl, stats/). Append-only, without torch.

Three promises hold at any moment, also after a kill -9 or on a full disk: what an append reported as done is there,
a half-written line is never read, and at most one process writes. Readers need no lock and never write.
"""

from __future__ import annotations

import copy
import json
import math
import os
import re
import shutil
import string
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import unquote

from anisoscope import __version__
from anisoscope.errors import InputError, StoreError
from anisoscope.records import COLUMNS, Record, Site
from anisoscope.store.columns import (
    DECODER,
    KEY,
    NULLABLE,
    NUMBERS,
    TEXTS,
    WHOLE_LIMIT,
    WHOLES,
    Columns,
    Key,
    RecordTable,
    Row,
    canonical,
    parse_site,
)
from anisoscope.store.files import (
    LINE_LIMIT,
    TEMPORARY,
    acquire,
    append_lines,
    explained,
    near_paths,
    open_plain,
    read_lines,
    replacing,
    require_folder,
    sweep_temporaries,
)

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

    Arrays = Mapping[str, np.ndarray[Any, Any]]

Address = tuple[int, str, str, int | None]  # (step, site, tokens, block) of a statistic
_T = TypeVar("_T")

FORMAT = 1
_HEAD, _RECORDS, _REPLICATES, _STATS, _LOCK = "run.json", "records.jsonl", "replicates.jsonl", "stats", "lock"
_HEAD_LIMIT = 16 << 20

_VALUE = COLUMNS.index("value")
_TYPES: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(TEXTS, (str,)),
    **dict.fromkeys(WHOLES, (int,)),
    **dict.fromkeys(NUMBERS, (float, int)),
    "variant": (dict,),
}


class Run:
    """A run: what was measured, on what, with which versions; a folder that can be read while it is being written.

    >>> with Run.create("runs/exp1", info={"model": "gpt2"}) as run:    # doctest: +SKIP
    ...     run.append([Record("resid.0", "isoscore", 0.31, n=8192)])
    >>> [record.value for record in Run.open("runs/exp1").records()]    # doctest: +SKIP
    [0.31]
    """

    def __init__(self, path: Path, head: dict[str, Any], lock: int | None = None) -> None:
        """Use `Run.create` or `Run.open`; `lock` is the descriptor of the held lock, None for a reader."""
        self.path = path
        self._head = head
        self._writer = None if lock is None else os.getpid()
        # A finalizer runs once, by `close` or because a notebook forgot the run, so the lock cannot leak.
        self._release = None if lock is None else weakref.finalize(self, os.close, lock)

    @classmethod
    def create(
        cls,
        path: str | os.PathLike[str],
        info: Mapping[str, Any] | None = None,
        *,
        name: str | None = None,
        command: str | None = None,
        resume: bool = False,
    ) -> Run:
        """A new run that this process may write; with `resume=True` an existing one is continued.

        `info` says what was measured (model, data, token policy, versions, `metrics`: the metric cards by name). On
        resuming the stored info stays and keys that it lacks are added: compare `run.info` before appending.
        """
        folder = _run_path(path)
        head = _new_head(_checked_name(folder.name if name is None else name), command, dict(info or {}))
        with explained("create", folder):
            folder.mkdir(parents=True, exist_ok=True)
            _require_place(folder, resume)
            lock = acquire(folder / _LOCK)
        try:
            # Looked at again under the lock: another process may have created the run in between.
            _require_place(folder, resume)
            sweep_temporaries(folder)
            run = cls(folder, _resumed_head(folder, head), lock)
        except BaseException:
            os.close(lock)
            raise
        run._write_head(run._head)
        return run

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Run:
        """An existing run, read-only; works on read-only disks and while another process writes."""
        folder = _run_path(path)
        return cls(folder, _read_head(folder))

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give up the right to write; reading still works."""
        self._writer = None
        if self._release is not None:
            self._release()

    @property
    def name(self) -> str:
        """The run's name: the folder's unless another was given."""
        return str(self._head["name"])

    @property
    def created(self) -> str:
        """When the run was made: ISO text in UTC."""
        return str(self._head["created"])

    @property
    def command(self) -> str | None:
        """The command line that made the run, where there was one."""
        command: str | None = self._head["command"]
        return command

    @property
    def info(self) -> dict[str, Any]:
        """What was measured: a copy, to be changed with `update_info`."""
        return copy.deepcopy(dict(self._head["info"]))

    def update_info(self, **changes: Any) -> None:
        """Set keys of the info; where the old and the new value are both dicts, the new one is merged into the old.

        >>> run.update_info(metrics={"isoscore": {"low": 0, "high": 1}})    # doctest: +SKIP
        """
        info = self.info
        for key, new in changes.items():
            old = info.get(key)
            info[key] = {**old, **new} if isinstance(old, dict) and isinstance(new, Mapping) else new
        self._write_head({**self._head, "info": info})

    def append(self, records: Iterable[Record], replicates: Sequence[Sequence[float] | None] | None = None) -> None:
        """Add records; `replicates` gives beside each the metric's leave-one-block-out values, or None.

        The records are on the disk when this returns. A record without a run name gets this run's. A record of the
        same step, site, metric, version, tokens, index and variant supersedes the earlier one.
        """
        self._require_writer()
        values = [_named(record, self.name) for record in records]
        _require_records(values)
        lines = [_dump(value) for value in values]
        if replicates is not None:
            if len(replicates) != len(values):
                raise InputError(f"{len(replicates)} replicates for {len(values)} records; give one, or None, for each")
            pairs = zip(values, replicates, strict=True)
            # Replicates first: a record that is there after a kill then has its replicates too.
            self._append(_REPLICATES, [_replicate_line(value, others) for value, others in pairs if others is not None])
        self._append(_RECORDS, lines)

    def rewind(self, step: int) -> None:
        """Forget everything from `step` on: a training that restarts from a checkpoint measures it again."""
        self._require_writer()
        if type(step) is not int:
            raise InputError(f"a run is rewound to a step, a whole number, got {step!r}")
        # Statistics first: after a kill in between, records without statistics are harmless, the reverse is not.
        for number, folder in _step_folders(self.path / _STATS):
            if number >= step:
                with explained("remove", folder):
                    shutil.rmtree(folder)
        self._append(_RECORDS, [_dump({"rewind": step})])

    def records(self) -> Iterator[Record]:
        """The records in first-seen order, the last one of each key; half-written and rewound ones are left out."""
        yield from self._table().records()

    def replicates(self) -> dict[Key, tuple[float, ...]]:
        """Leave-one-block-out values by `record_key`, for comparing two runs in pairs.

        A line counts only beside the record whose value it repeats, so superseded and rewound ones fall out.
        """
        if not os.path.lexists(self.path / _REPLICATES):
            return {}
        table = self._table()
        known = dict(zip(table.keys(), table.column("value"), strict=True))
        found: dict[Key, tuple[float, ...]] = {}
        for lot in _parsed(self.path / _REPLICATES, _parse_replicates):
            found |= {key: values for key, value, values in lot if known.get(key) == value}
        return found

    @property
    def is_empty(self) -> bool:
        """Whether nothing was ever appended."""
        path = self.path / _RECORDS
        with explained("read", path):
            return not path.exists() or not path.stat().st_size

    def metrics(self) -> dict[str, dict[str, Any]]:
        """The metrics that have records, in first-seen order, each with its card ({} where the run carries none)."""
        cards = self.info.get("metrics")
        known = cards if isinstance(cards, dict) else {}
        return {name: known.get(name, {}) for name in self._table().distinct("metric")}

    def sites(self) -> list[str]:
        """The sites that have records, in the order of a forward pass."""
        return [str(site) for site in sorted(map(Site.parse, self._table().distinct("site")))]

    def frame(self) -> pd.DataFrame:
        """The records as a table with the columns of `records.COLUMNS`; the variant as JSON text."""
        return self._table().frame()

    def since(self, position: int = 0) -> tuple[pd.DataFrame | None, int]:
        """The records that were added behind a position, as a table like `frame`, and the position behind them.

        For whoever follows a run while it grows: begin with 0. None instead of a table says that the run was rewound
        or begun anew since: read it whole.
        """
        path, columns, end = self.path / _RECORDS, Columns(), position
        for lines in _taken(path, columns, position):
            end += sum(map(len, lines)) + len(lines)
        if position and (not path.exists() or path.stat().st_size < position):
            return None, 0
        return None if columns.rewound else columns.table().frame(), end

    def plot(self, metric: str, *, kind: str | None = None, colour: str | None = None, **pick: Any) -> Any:
        """A chart of one metric, chosen by the shape of its records; shows itself in a notebook.

        `kind` and `colour` choose another that fits; `pick` fixes what is not drawn, such as `step=1000`.

        >>> run.plot("two_nn")                                           # doctest: +SKIP
        >>> run.plot("two_nn", kind="steps", tokens="no-sink").save("fig.pdf")    # doctest: +SKIP
        """
        # The one import that points up: drawing belongs to the report, asking for it to the run.
        from anisoscope.report.charts import plot

        return plot([self], metric, kind=kind, colour=colour, pick=pick)

    def export(self, path: str | os.PathLike[str]) -> Path:
        """The records as one file: .parquet (with run.json in its schema metadata), .csv or .jsonl by the suffix."""
        target = Path(path)
        writers: dict[str, Callable[[Path], None]] = {
            ".parquet": self._write_parquet,
            ".csv": self._write_csv,
            ".jsonl": self._write_jsonl,
        }
        write = writers.get(target.suffix.lower())
        if write is None:
            raise InputError(f"cannot export to {target.name!r}; the name must end in {', '.join(writers)}")
        if target.resolve() in (self.path / _RECORDS, self.path / _REPLICATES):
            raise InputError(f"{target} is the run's own file; export to another name")
        with explained("write", target), replacing(target) as temporary:
            write(temporary)
        return target

    def save_statistics(self, step: int, site: str, tokens: str, arrays: Arrays, block: int | None = None) -> None:
        """Keep the arrays of a statistic (numpy arrays only), replacing what was there under the same address."""
        from safetensors.numpy import save_file

        self._require_writer()
        path = self._statistics_path(step, site, tokens, block)
        plain = {name: _plain_array(name, array) for name, array in arrays.items()}
        with explained("write", path):
            for folder in (path.parent.parent, path.parent):
                folder.mkdir(exist_ok=True)
                require_folder(folder)
            sweep_temporaries(path.parent)
            with replacing(path) as temporary:
                save_file(plain, temporary)

    def load_statistics(self, step: int, site: str, tokens: str, block: int | None = None) -> dict[str, Any]:
        """The numpy arrays that `save_statistics` kept under this address."""
        from safetensors import SafetensorError
        from safetensors.numpy import load_file

        path = self._statistics_path(step, site, tokens, block)
        with explained("read", path):
            try:
                for folder in (path.parent.parent, path.parent):
                    require_folder(folder)
                os.close(open_plain(path, os.O_RDONLY))
                return dict(load_file(path))
            except FileNotFoundError as error:
                address = f"step {step}, site {site}, tokens {tokens}" + ("" if block is None else f", block {block}")
                raise StoreError(f"run {self.name} keeps no statistics of {address}; measure with --out") from error
            except (SafetensorError, KeyError, ValueError, TypeError) as error:
                raise StoreError(f"{path} is not a file of statistics ({error}); measure this step again") from error

    def statistics(self) -> list[Address]:
        """The addresses (step, site, tokens, block) under which statistics are kept: by step, then by site."""
        found: list[tuple[int, Site, str, int]] = []
        for step, folder in _step_folders(self.path / _STATS):
            with explained("list", folder):
                names = os.listdir(folder)
            found += [(step, *parts) for parts in map(_parse_statistics_name, names) if parts is not None]
        return [(step, str(site), tokens, None if block < 0 else block) for step, site, tokens, block in sorted(found)]

    def _table(self) -> RecordTable:
        columns = Columns()
        for _ in _taken(self.path / _RECORDS, columns):
            pass
        return columns.table()

    def _statistics_path(self, step: int, site: str, tokens: str, block: int | None) -> Path:
        if type(step) is not int:
            raise InputError(f"statistics are kept under a step, a whole number, got {step!r}")
        return self.path / _STATS / str(step) / _statistics_name(site, tokens, block)

    def _require_writer(self) -> None:
        if self._writer is None:
            raise StoreError(f"run {self.name} is open for reading; write with Run.create(path, resume=True)")
        if self._writer != os.getpid():
            # A forked worker inherits the open lock; its lines would mix with its parent's.
            raise StoreError(f"run {self.name} is written by process {self._writer}; write from there, not from a fork")

    def _write_head(self, head: dict[str, Any]) -> None:
        self._require_writer()
        try:
            data = json.dumps(head, ensure_ascii=False, allow_nan=False, indent=2).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise InputError(f"the info of run {head['name']} cannot be JSON: {error}; use plain values") from error
        if len(data) > _HEAD_LIMIT:
            raise InputError(f"the info of run {head['name']} takes {len(data)} bytes; keep it under {_HEAD_LIMIT}")
        path = self.path / _HEAD
        with explained("write", path), replacing(path) as temporary:
            temporary.write_bytes(data)
        self._head = json.loads(data)  # as a reader will see it: tuples are lists now

    def _append(self, name: str, lines: Sequence[bytes]) -> None:
        if lines:
            with explained("append to", self.path / name):
                append_lines(self.path / name, b"".join(lines))

    def _write_parquet(self, path: Path) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        table = pa.Table.from_pandas(self.frame(), preserve_index=False)
        head = json.dumps(self._head, ensure_ascii=False).encode()
        pq.write_table(table.replace_schema_metadata({**table.schema.metadata, b"anisoscope": head}), path)

    def _write_csv(self, path: Path) -> None:
        self.frame().to_csv(path, index=False)

    def _write_jsonl(self, path: Path) -> None:
        with path.open("wb") as file:
            file.writelines(_dump(record.to_json()) for record in self.records())


def write_text(path: Path, text: str) -> None:
    """A text file, whole or not at all; a link in its place is replaced, not followed: the folder may be another's."""
    with explained("write", path), replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def record_key(record: Record) -> Key:
    """What makes two records the same measurement: (step, site, metric, version, tokens, index, variant as text).

    >>> record_key(Record("embed", "gride", 9.1, index=2, variant={"neighbours": "other"}))
    (0, 'embed', 'gride', 1, 'all', 2, '{"neighbours":"other"}')
    """
    [row] = _to_rows([record.to_json()])
    return row[KEY]


# Rows: checked values between lines of JSON and Records. Checked by column, many at once: a run may hold millions.

_in_order = itemgetter(*COLUMNS)


def _to_rows(values: Sequence[Mapping[str, Any]]) -> list[Row]:
    """The values of records in the order of COLUMNS; an InputError says what is wrong with one of them."""
    for odd in {*map(frozenset, values)} - {frozenset(COLUMNS)}:
        names = ", ".join(map(repr, sorted(odd ^ set(COLUMNS))))
        raise InputError(f"not a record: missing or unknown keys {names}")
    columns = zip(*map(_in_order, values), strict=True)
    checked = [_checked_column(name, column) for name, column in zip(COLUMNS, columns, strict=True)] if values else []
    return list(zip(*checked, strict=True))


def _checked_column(name: str, column: Sequence[Any]) -> Sequence[Any]:
    types = set(map(type, column)) - ({type(None)} if name in NULLABLE else set())
    for given in types:
        if not issubclass(given, _TYPES[name]) or issubclass(given, bool):
            expected = " or ".join(t.__name__ for t in _TYPES[name]) + (" or null" if name in NULLABLE else "")
            raise InputError(f"not a record: {name} is {given.__name__}, expected {expected}")
    if name == "variant":
        return [canonical(variant) if variant else "{}" for variant in column]
    if name in TEXTS:
        shared: dict[Any, Any] = {}  # one copy of equal texts: sites and metrics repeat endlessly
        column = list(map(shared.setdefault, column, column))
        for site in shared if name == "site" else ():
            parse_site(site)
        return column
    return _checked_numbers(name, column, types)


def _checked_numbers(name: str, column: Sequence[Any], types: set[type]) -> Sequence[Any]:
    """Whole numbers that fit 64 bits, or floats that are finite."""
    present = [x for x in column if x is not None]
    if name in WHOLES:
        if present and not -WHOLE_LIMIT <= min(present) <= max(present) < WHOLE_LIMIT:
            raise InputError(f"not a record: {name} is beyond 64 bits")
        return column
    try:
        if all(map(math.isfinite, present)):
            return column if types <= {float} else [None if x is None else float(x) for x in column]
    except OverflowError:  # a whole number beyond any float
        pass
    raise InputError(f"not a record: {name} is not finite")


def _named(record: Record, run: str) -> dict[str, Any]:
    values = record.to_json()
    values["run"] = values["run"] or run
    return values


def _require_records(values: Sequence[Mapping[str, Any]]) -> None:
    """Refuse to store what could not be read again, naming the first such record."""
    try:
        _to_rows(values)
    except InputError:
        for value in values:
            try:
                _to_rows([value])
            except InputError as error:
                raise InputError(f"cannot store {value['metric']!r} at {value['site']!r}: {error}") from error
        raise


# Lines of JSON. One encoder and one decoder for all: `json.dumps` with options would build one per line.

_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _dump(values: Mapping[str, Any]) -> bytes:
    try:
        line = _ENCODER.encode(values).encode() + b"\n"
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"cannot be stored as JSON: {error}; use plain finite values") from error
    if len(line) > LINE_LIMIT:
        raise InputError(f"a line of {len(line)} bytes is too long for a run; the longest is {LINE_LIMIT}")
    return line


def _replicate_line(values: Mapping[str, Any], replicates: Sequence[float]) -> bytes:
    if values["value"] is None:
        raise InputError(f"replicates of {values['metric']} at {values['site']}, which has no value itself")
    key = {name: values[name] for name in COLUMNS[KEY]}
    return _dump({**key, "value": values["value"], "replicates": [float(x) for x in replicates]})


def _parsed(path: Path, parse: Callable[[Sequence[bytes]], list[_T]], start: int = 0) -> Iterator[list[_T]]:
    """A file's lines through `parse`, a lot at a time; a broken one is a StoreError with its place and the remedy."""
    with explained("read", path):
        for number, lines in read_lines(path, start):
            try:
                yield parse(lines)
            except (ValueError, InputError):
                _blame(path, number, lines, parse)
                raise


def _taken(path: Path, columns: Columns, start: int = 0) -> Iterator[Sequence[bytes]]:
    """Puts the records of a file into columns, a lot at a time; gives back the lines of each lot."""

    def take(lines: Sequence[bytes]) -> list[Sequence[bytes]]:
        if not columns.add_lines(lines):
            for part in _parse_records(lines):
                if isinstance(part, int):
                    columns.rewind(part)
                else:
                    columns.add_rows(part)
        return [lines]

    for [lines] in _parsed(path, take, start=start):
        yield lines


def _blame(path: Path, number: int, lines: Sequence[bytes], parse: Callable[[Sequence[bytes]], object]) -> None:
    for place, line in enumerate(lines, start=number):
        try:
            parse([line])
        except (ValueError, InputError) as error:
            raise StoreError(f"{path}, line {place}: {error}; delete that line to read the rest") from error


def _parse_objects(lines: Sequence[bytes]) -> list[dict[str, Any]]:
    """One JSON object a line; anything else, NaN and halves of characters included, is a ValueError."""
    data = b"[" + b",".join(lines) + b"]"  # as one list: a third faster than line by line
    try:
        values = DECODER.decode(data.decode())
        if b"\\u" in data:
            # An escaped half of a surrogate pair is legal JSON, but no table can hold it.
            _ENCODER.encode(values).encode()
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if len(values) != len(lines) or not all(type(value) is dict for value in values):
        raise ValueError("not one JSON object")
    return list(values)


def _parse_records(lines: Sequence[bytes]) -> list[list[Row] | int]:
    """Runs of records, and between them the steps of the rewinds."""
    parts: list[list[Row] | int] = []
    for rewound, group in groupby(_parse_objects(lines), key=lambda value: "rewind" in value):
        values = list(group)
        parts += map(_rewound_step, values) if rewound else [_to_rows(values)]
    return parts


def _rewound_step(values: Mapping[str, Any]) -> int:
    step = values["rewind"]
    if len(values) != 1 or type(step) is not int:
        raise InputError('a rewind looks like {"rewind": 100}')
    return step


def _parse_replicates(lines: Sequence[bytes]) -> list[tuple[Key, float, tuple[float, ...]]]:
    """The key, the value and the leave-one-block-out values of each line."""
    values = _parse_objects(lines)
    numbers = [each.pop("replicates", None) for each in values]
    for given in numbers:
        if not isinstance(given, list) or not all(type(x) in (int, float) for x in given):
            raise InputError("replicates is not a list of numbers")
    blank = {name: None for name in COLUMNS if name in NULLABLE and name != "index"}
    rows = _to_rows([{**blank, "run": "", **each} for each in values])
    if any(row[_VALUE] is None for row in rows):
        raise InputError("replicates of a missing value")
    checked = [tuple(_checked_numbers("value", given, {int})) for given in numbers]
    return [(row[KEY], row[_VALUE], others) for row, others in zip(rows, checked, strict=True)]


# run.json and the run's folder.


def _run_path(path: str | os.PathLike[str]) -> Path:
    try:
        # Resolved, so that "." has a name and a later change of directory does not move the run.
        return Path(path).resolve()
    except (ValueError, OSError, RuntimeError) as error:
        raise InputError(f"{os.fspath(path)!r} cannot be the path of a run: {error}") from error


def _require_place(folder: Path, resume: bool) -> None:
    """A new run needs an empty folder; a run that is there is continued only when that is asked for."""
    with explained("list", folder):
        there = {name for name in os.listdir(folder) if name != _LOCK and not name.endswith(TEMPORARY)}
    if _HEAD in there:
        if not resume:
            raise StoreError(
                f"{folder} is a run already; continue it with resume (--resume where a command has that, resume=True "
                "in Python), look at it with `anisoscope show`, or choose another folder"
            )
    elif there:
        raise StoreError(f"{folder} is not empty and not a run; choose another folder")


def _new_head(name: str, command: str | None, info: dict[str, Any]) -> dict[str, Any]:
    created = datetime.now(UTC).isoformat(timespec="seconds")
    head = {"format": FORMAT, "name": name, "created": created, "anisoscope": __version__}
    return {**head, "command": command, "info": info}


def _resumed_head(folder: Path, new: dict[str, Any]) -> dict[str, Any]:
    if not os.path.lexists(folder / _HEAD):
        return new
    old = _read_head(folder)
    return {**old, "info": {**new["info"], **old["info"]}}


def _read_head(folder: Path) -> dict[str, Any]:
    path = folder / _HEAD
    with explained("read", path):
        try:
            descriptor = open_plain(path, os.O_RDONLY)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise StoreError(_no_run(folder)) from error
        with os.fdopen(descriptor, "rb") as file:
            data = file.read(_HEAD_LIMIT + 1)
    try:
        if len(data) > _HEAD_LIMIT:
            raise ValueError(f"longer than {_HEAD_LIMIT} bytes")
        return _checked_head(_parse_objects([data])[0])
    except (ValueError, InputError) as error:
        raise StoreError(f"{path} cannot be read: {error}; restore it from a copy or measure again") from error


def _no_run(folder: Path) -> str:
    """What a path that is no run is instead, and where a run may be."""
    if not folder.exists():
        return f"{folder} is not a run: it does not exist{near_paths(folder)}; give a folder made with --out"
    with suppress(OSError):
        inside = sorted(entry.name for entry in folder.iterdir() if (entry / _HEAD).is_file())
        if inside:
            return f"{folder} is not a run, but holds runs; give one or more: {', '.join(inside[:6])}"
    return f"{folder} is not a run: it has no {_HEAD}; give a folder made with --out"


def _checked_head(head: dict[str, Any]) -> dict[str, Any]:
    if head.get("format") != FORMAT:
        raise ValueError(f"its format is {head.get('format')!r}, this anisoscope reads {FORMAT}")
    texts = all(isinstance(head.get(name), str) for name in ("name", "created", "anisoscope"))
    if not texts or not isinstance(head.get("command"), str | None) or not isinstance(head.get("info"), dict):
        raise ValueError("name, created and anisoscope must be texts, command a text or null, info an object")
    _checked_name(head["name"])
    return {"command": None, **head}


def _checked_name(name: str) -> str:
    """A run's name stands in tables, file names and pages: one line of text that is no path."""
    if name in ("", ".", "..") or not name.isprintable() or "/" in name or "\\" in name:
        raise InputError(f"{name!r} cannot be the name of a run; use plain text without / or \\")
    return name


# Statistics: stats/<step>/<site>~<tokens>[~<block>].safetensors

_PLAIN = frozenset(string.ascii_lowercase + string.digits + "-_.")
_SUFFIX = ".safetensors"
_NAME_LIMIT = 240


def _encoded(text: str) -> str:
    """Percent-encoding that is safe as a file name anywhere; capitals too, since some disks ignore case.

    >>> _encoded("weight.A/b")
    'weight.%41%2fb'
    """
    return "".join(c if c in _PLAIN else "".join(f"%{byte:02x}" for byte in c.encode()) for c in text)


def _statistics_name(site: str, tokens: str, block: int | None) -> str:
    if not tokens or not (block is None or (type(block) is int and block >= 0)):
        raise InputError(f"statistics are kept under tokens and a block from 0 on, got {tokens!r} and {block!r}")
    parts = [str(Site.parse(site)), tokens] + ([] if block is None else [str(block)])
    try:
        name = "~".join(map(_encoded, parts)) + _SUFFIX
    except UnicodeEncodeError as error:
        raise InputError(f"{site!r} and {tokens!r} cannot be in a file name: {error}") from error
    if len(name) > _NAME_LIMIT:
        raise InputError(f"site {site!r} with tokens {tokens!r} is too long for a file name; shorten it")
    return name


def _parse_statistics_name(name: str) -> tuple[Site, str, int] | None:
    """(site, tokens, block or -1) of a file that `save_statistics` made; None for any other."""
    parts = name.removesuffix(_SUFFIX).split("~")
    if len(parts) not in (2, 3):
        return None
    with suppress(ValueError, InputError):
        site, tokens = (unquote(part, errors="strict") for part in parts[:2])
        block = int(parts[2]) if len(parts) == 3 else None
        # Only the one name that we would write ourselves: everything else is a stranger's file.
        if _statistics_name(site, tokens, block) == name:
            return Site.parse(site), tokens, -1 if block is None else block
    return None


def _step_folders(stats: Path) -> list[tuple[int, Path]]:
    """The folders of the steps that keep statistics; none where `stats` is not there."""
    if not os.path.lexists(stats):
        return []
    with explained("list", stats):
        require_folder(stats)
        names = [name for name in os.listdir(stats) if re.fullmatch(r"0|-?[1-9][0-9]{0,18}", name)]
        for name in names:
            require_folder(stats / name)
    return [(int(name), stats / name) for name in names]


def _plain_array(name: str, array: Any) -> np.ndarray[Any, Any]:
    """A contiguous array in the machine's own byte order, as safetensors needs it."""
    import numpy as np

    if name in ("", "__metadata__"):
        raise InputError(f"an array of a statistic cannot be called {name!r}")
    if not isinstance(array, np.ndarray | np.generic) or array.dtype.kind not in "fiub" or array.dtype.itemsize > 8:
        kind = getattr(array, "dtype", type(array).__name__)
        raise InputError(f"statistics are kept as numpy arrays of numbers, {name!r} is {kind}; convert it first")
    # asarray, not ascontiguousarray: the latter turns a number into an array of one.
    return np.asarray(array, dtype=array.dtype.newbyteorder("="), order="C")
