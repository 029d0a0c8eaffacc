"""Lines of records.jsonl and replicates.jsonl: writing them, parsing them and checking every value.

Values are checked by column, many lines at once, because a run may have millions of records.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, TypeVar

from anisoscope.errors import InputError, StoreError
from anisoscope.records import COLUMNS, Record, Replicates
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
    Row,
    canonical,
    parse_site,
)
from anisoscope.store.files import LINE_LIMIT, file_errors, read_lines

_T = TypeVar("_T")

# One encoder for all lines: `json.dumps` with options would build one per line.
_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
_VALUE = COLUMNS.index("value")
_TYPES: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(TEXTS, (str,)),
    **dict.fromkeys(WHOLES, (int,)),
    **dict.fromkeys(NUMBERS, (float, int)),
    "variant": (dict,),
}
_in_order = itemgetter(*COLUMNS)


# --- writing ------------------------------------------------------------------------------------------------------


def to_line(values: Mapping[str, Any]) -> bytes:
    """One JSON object as a line."""
    try:
        line = _ENCODER.encode(values).encode() + b"\n"
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"cannot be stored as JSON: {error}; use plain finite values") from error
    if len(line) > LINE_LIMIT:
        raise InputError(f"a line of {len(line)} bytes is too long for a run; the limit is {LINE_LIMIT}")
    return line


def replicate_line(values: Mapping[str, Any], replicates: Sequence[float]) -> bytes:
    """The line of replicates.jsonl that belongs to a record; with the block sizes if they are known."""
    if values["value"] is None:
        raise InputError(f"replicates of {values['metric']} at {values['site']}, which has no value itself")
    key = {name: values[name] for name in COLUMNS[KEY]}
    line = {**key, "value": values["value"], "replicates": [float(x) for x in replicates]}
    if isinstance(replicates, Replicates) and replicates.sizes is not None:
        line["sizes"] = list(replicates.sizes)
    return to_line(line)


def record_values(record: Record, run: str) -> dict[str, Any]:
    """A record as a dict, with this run's name if it has none."""
    values = record.to_json()
    values["run"] = values["run"] or run
    return values


def require_storable(values: Sequence[Mapping[str, Any]]) -> None:
    """Raise an InputError that names the first record which could not be read again."""
    try:
        to_rows(values)
    except InputError:
        for value in values:
            try:
                to_rows([value])
            except InputError as error:
                raise InputError(f"cannot store {value['metric']!r} at {value['site']!r}: {error}") from error
        raise


# --- reading ------------------------------------------------------------------------------------------------------


def read_records(path: Path, columns: Columns, start: int = 0) -> int:
    """Add the records of a file to `columns`; returns the offset after the last complete line.

    `start` is the offset of the first line to read.
    """
    end = start

    def add(lines: Sequence[bytes]) -> list[int]:
        if not columns.add_lines(lines):
            for part in _parse_records(lines):
                if isinstance(part, int):
                    columns.rewind(part)
                else:
                    columns.add_rows(part)
        return [sum(map(len, lines)) + len(lines)]

    for [size] in _parsed(path, add, start=start):
        end += size
    return end


def read_replicates(path: Path) -> Iterator[list[tuple[Key, float, Replicates]]]:
    """(key, value, leave-one-block-out values) of every line, many at a time."""
    return _parsed(path, _parse_replicates)


def _parsed(path: Path, parse: Callable[[Sequence[bytes]], list[_T]], start: int = 0) -> Iterator[list[_T]]:
    """The results of `parse` for a file's lines; a damaged line is a StoreError with its number and the remedy."""
    with file_errors("read", path):
        for number, lines in read_lines(path, start):
            try:
                yield parse(lines)
            except (ValueError, InputError):
                _raise_for_damaged_line(path, number, lines, parse)
                raise


def _raise_for_damaged_line(
    path: Path, first: int, lines: Sequence[bytes], parse: Callable[[Sequence[bytes]], object]
) -> None:
    for number, line in enumerate(lines, start=first):
        try:
            parse([line])
        except (ValueError, InputError) as error:
            raise StoreError(f"{path}, line {number}: {error}; delete that line to read the rest") from error


def parse_objects(lines: Sequence[bytes]) -> list[dict[str, Any]]:
    """One JSON object per line; anything else, including NaN and lone surrogates, is a ValueError."""
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
    """Groups of consecutive records, and between them the steps of the rewinds."""
    parts: list[list[Row] | int] = []
    for is_rewind, group in groupby(parse_objects(lines), key=lambda value: "rewind" in value):
        values = list(group)
        parts += map(_rewind_step, values) if is_rewind else [to_rows(values)]
    return parts


def _rewind_step(values: Mapping[str, Any]) -> int:
    step = values["rewind"]
    if len(values) != 1 or type(step) is not int:
        raise InputError('a rewind must be written as {"rewind": 100}')
    return step


def _parse_replicates(lines: Sequence[bytes]) -> list[tuple[Key, float, Replicates]]:
    values = parse_objects(lines)
    replicates = [each.pop("replicates", None) for each in values]
    sizes = [each.pop("sizes", None) for each in values]  # optional: older versions did not store them
    for numbers in replicates:
        if not isinstance(numbers, list) or not all(type(x) in (int, float) for x in numbers):
            raise InputError("replicates is not a list of numbers")
    for numbers, rows_in_blocks in zip(replicates, sizes, strict=True):
        if rows_in_blocks is not None and not _are_sizes(rows_in_blocks, len(numbers)):
            raise InputError("sizes is not a list of whole numbers from 1 on, one per replicate")
    blank = {name: None for name in COLUMNS if name in NULLABLE and name != "index"}
    rows = to_rows([{**blank, "run": "", **each} for each in values])
    if any(row[_VALUE] is None for row in rows):
        raise InputError("replicates of a missing value")
    checked = [
        Replicates(_checked_numbers("value", numbers, {int}), rows_in_blocks)
        for numbers, rows_in_blocks in zip(replicates, sizes, strict=True)
    ]
    return [(row[KEY], row[_VALUE], numbers) for row, numbers in zip(rows, checked, strict=True)]


def _are_sizes(sizes: Any, count: int) -> bool:
    return (
        isinstance(sizes, list)
        and len(sizes) == count
        and all(type(size) is int and 0 < size < WHOLE_LIMIT for size in sizes)
    )


# --- checking -----------------------------------------------------------------------------------------------------


def to_rows(values: Sequence[Mapping[str, Any]]) -> list[Row]:
    """Checked values of records in the order of COLUMNS; an InputError says what is wrong."""
    for keys in {*map(frozenset, values)} - {frozenset(COLUMNS)}:
        names = ", ".join(map(repr, sorted(keys ^ set(COLUMNS))))
        raise InputError(f"not a record: missing or unknown keys {names}")
    columns = zip(*map(_in_order, values), strict=True)
    checked = [_checked_column(name, column) for name, column in zip(COLUMNS, columns, strict=True)] if values else []
    return list(zip(*checked, strict=True))


def _checked_column(name: str, column: Sequence[Any]) -> Sequence[Any]:
    types = set(map(type, column)) - ({type(None)} if name in NULLABLE else set())
    for kind in types:
        if not issubclass(kind, _TYPES[name]) or issubclass(kind, bool):
            expected = " or ".join(t.__name__ for t in _TYPES[name]) + (" or null" if name in NULLABLE else "")
            raise InputError(f"not a record: {name} is {kind.__name__}, expected {expected}")
    if name == "variant":
        return [canonical(variant) if variant else "{}" for variant in column]
    if name in TEXTS:
        shared: dict[Any, Any] = {}  # one copy of equal texts: few sites and metrics repeat in many records
        column = list(map(shared.setdefault, column, column))
        for site in shared if name == "site" else ():
            parse_site(site)
        return column
    return _checked_numbers(name, column, types)


def _checked_numbers(name: str, column: Sequence[Any], types: set[type]) -> Sequence[Any]:
    """Whole numbers that fit 64 bits, or finite floats."""
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
