"""The records of a file as columns: codes into lists of distinct values, and float64 numbers. A million fit in 70 MB.

A table has no object per record, which would make long runs slow: texts and whole numbers repeat, so each is stored
once. Lines exactly as a run writes them are read by one regular expression; any other line goes through the checks of
`record_lines` and is added as rows, with the same result.

Why not `pyarrow.json`: it cannot report what the store promises to report. It reads a missing key as null, accepts NaN,
turns whole numbers beyond float64 into infinity, skips empty lines and accepts two objects on one line, and `variant`
would have to be stored as text. For 200,000 records (53 MB, one thread) its parsing alone takes 0.62 s; this module
takes 0.96 s in all, with every check and with superseded records removed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from anisoscope.errors import InputError
from anisoscope.records import COLUMNS, Record, Site

if TYPE_CHECKING:
    import pandas as pd

Array = np.ndarray[Any, Any]
Row = tuple[Any, ...]  # the values of one record in the order of COLUMNS, the variant as canonical JSON text
Key = tuple[Any, ...]  # (step, site, metric, version, tokens, index, variant): what a later record supersedes

TEXTS = ("run", "site", "metric", "tokens", "variant", "error_kind", "note")
WHOLES = ("step", "version", "index", "n")
NUMBERS = ("value", "error", "null")
NULLABLE = ("index", "n", "error_kind", "note", *NUMBERS)
KEY = slice(COLUMNS.index("step"), COLUMNS.index("variant") + 1)  # the key's columns stand side by side
WHOLE_LIMIT = 1 << 63  # whole numbers fit 64 bits

_MISSING, _NAN = b"null", float("nan")
# One line as `Run.append` writes it. Texts with escapes and variants with objects are rare: `record_lines` reads them.
_TEXT, _WHOLE = rb'"[^"\\\x00-\x1f]*"', rb"(?:0|-?[1-9][0-9]*)"
_NUMBER = rb"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?"
_VARIANT = rb"\{[^{}\\\x00-\x1f]*\}"


def _pattern(name: str) -> bytes:
    kind = _VARIANT if name == "variant" else _TEXT if name in TEXTS else _WHOLE if name in WHOLES else _NUMBER
    return b'"%s":(%s)' % (name.encode(), kind + (b"|null" if name in NULLABLE else b""))


_LINE = re.compile(rb"^\{" + b",".join(map(_pattern, COLUMNS)) + rb"\}$", re.MULTILINE)

# "string" is pandas' nullable text: under pandas 2 plain "str" would turn None into "None".
_DTYPES: dict[str, Any] = {**dict.fromkeys(TEXTS, "string"), **dict.fromkeys(("index", "n"), "Int64")}


@dataclass(frozen=True)
class RecordTable:
    """Records as columns: `codes[name]` are indices into `values[name]`; `numbers` are float64, NaN if missing."""

    codes: Mapping[str, Array]  # (n,) each
    values: Mapping[str, Sequence[Any]]
    numbers: Mapping[str, Array]  # (n,) each

    def __len__(self) -> int:
        return len(self.codes["step"])

    @property
    def rows(self) -> int:
        """The number of records."""
        return len(self.numbers["value"])

    def distinct(self, name: str) -> list[Any]:
        """The different values of a column, in first-seen order."""
        _, first = np.unique(self.codes[name], return_index=True)
        return [self.values[name][self.codes[name][row]] for row in np.sort(first)]

    def column(self, name: str) -> list[Any]:
        """A column as Python values, None if missing."""
        if name in self.numbers:
            return [None if x != x else x for x in self.numbers[name].tolist()]
        return list(map(self.values[name].__getitem__, self.codes[name].tolist()))

    def keys(self) -> list[Key]:
        """The key of every record."""
        return list(zip(*map(self.column, COLUMNS[KEY]), strict=True))

    def records(self) -> Iterator[Record]:
        """The records, one after another."""
        columns = {**{name: self.column(name) for name in _FIELDS}, "variant": map(_fresh, self.column("variant"))}
        return (Record(*row) for row in zip(*columns.values(), strict=True))

    def frame(self) -> pd.DataFrame:
        """The records as a pandas table."""
        import pandas as pd

        columns: dict[str, Any] = {}
        for name in COLUMNS:
            if name in self.numbers:
                columns[name] = self.numbers[name]
            elif name in _DTYPES:
                columns[name] = pd.array(list(self.values[name]), dtype=_DTYPES[name]).take(self.codes[name])
            else:
                columns[name] = np.array(self.values[name], dtype=np.int64)[self.codes[name]]
        return pd.DataFrame(columns)


_FIELDS = tuple(field.name for field in fields(Record))


def _fresh(text: str) -> dict[str, Any]:
    """A new dict for every record, so that changing one record does not change another."""
    return {} if text == "{}" else json.loads(text)


class Columns:
    """Collects the lines of a file, many at a time; `table` returns the records that are still valid."""

    def __init__(self) -> None:
        self._codes = {name: _Codes(name) for name in COLUMNS if name not in NUMBERS}
        self._chunks: list[dict[str, Array]] = []
        self._rows = 0
        self._rewinds: list[tuple[int, int]] = []  # (number of rows before it, its step)

    @property
    def rewound(self) -> bool:
        """Whether the run was ever rewound."""
        return bool(self._rewinds)

    def add_lines(self, lines: Sequence[bytes]) -> bool:
        """Add lines that are exactly as a run writes them; if any is not, add none and return False.

        >>> Columns().add_lines([b'{"rewind":5}'])
        False
        """
        matches = _LINE.findall(b"\n".join(lines))
        if len(matches) != len(lines):
            return False
        try:
            self._add(zip(COLUMNS, zip(*matches, strict=True), strict=True), len(matches), raw=True)
        except (ValueError, InputError, RecursionError):  # `record_lines` finds it again and reports its line
            return False
        return True

    def add_rows(self, rows: Sequence[Row]) -> None:
        """Add checked rows."""
        if rows:
            self._add(zip(COLUMNS, zip(*rows, strict=True), strict=True), len(rows), raw=False)

    def rewind(self, step: int) -> None:
        """Discard the records so far that are of this step or a later one."""
        if step < WHOLE_LIMIT:
            self._rewinds.append((self._rows, max(step, -WHOLE_LIMIT)))

    def _add(self, columns: Any, count: int, *, raw: bool) -> None:
        chunk: dict[str, Array] = {}
        for name, column in columns:
            if name in NUMBERS:
                chunk[name] = _floats(column, _MISSING if raw else None)
            else:
                codes = self._codes[name]
                chunk[name] = np.fromiter(map(codes.__getitem__ if raw else codes.of, column), np.int32, count)
        self._chunks.append(chunk)
        self._rows += count

    def table(self) -> RecordTable:
        """The valid records in first-seen order: the last of each key, without those rewound since."""
        empty = {name: np.zeros(0, np.float64 if name in NUMBERS else np.int32) for name in COLUMNS}
        whole = {name: np.concatenate([empty[name], *(chunk[name] for chunk in self._chunks)]) for name in COLUMNS}
        values = {name: codes.distinct for name, codes in self._codes.items()}
        valid = self._valid_rows(whole, values)
        if len(valid) != self._rows:
            whole = {name: column[valid] for name, column in whole.items()}
        codes = {name: column for name, column in whole.items() if name not in NUMBERS}
        return RecordTable(codes, values, {name: whole[name] for name in NUMBERS})

    def _valid_rows(self, whole: Mapping[str, Array], values: Mapping[str, Sequence[Any]]) -> Array:
        """Indices of the rows that are neither superseded nor rewound.

        Every key becomes one whole number (its codes as digits of a mixed radix), so that `np.unique` finds equal keys.
        """
        ids, size = np.zeros(self._rows, np.int64), 1
        for name in COLUMNS[KEY]:
            radix = max(1, len(values[name]))
            if size * radix >= WHOLE_LIMIT:  # renumber: there are at most as many different keys as rows
                ids = np.unique(ids, return_inverse=True)[1]
                size = self._rows
            ids, size = ids * radix + whole[name], size * radix
        _, first, same = np.unique(ids, return_index=True, return_inverse=True)
        last = np.zeros(len(first), np.int64)
        last[same] = np.arange(self._rows)  # of several rows with one key the last one stays
        valid = last[np.argsort(first)]
        if not self._rewinds:
            return valid
        positions, steps = np.array(self._rewinds, np.int64).T
        floor = np.minimum.accumulate(steps[::-1])[::-1]  # (rewinds,) lowest step of this and all later rewinds
        before = np.searchsorted(positions, valid, side="right")  # (rows,) number of rewinds before each row
        step = np.array(values["step"], np.int64)[whole["step"][valid]]
        return valid[(before == len(floor)) | (step < floor[np.minimum(before, len(floor) - 1)])]


class _Codes(dict[bytes, int]):
    """A number for every distinct value of a column, looked up by its text in a line."""

    def __init__(self, name: str) -> None:
        self.distinct: list[Any] = []
        self._numbered: dict[Any, int] = {}
        self._read = _READERS[name]

    def __missing__(self, raw: bytes) -> int:
        number = self[raw] = self.of(None if raw == _MISSING else self._read(raw))
        return number

    def of(self, value: Any) -> int:
        """The number of a value; a new value gets the next number."""
        number = self._numbered.setdefault(value, len(self.distinct))
        if number == len(self.distinct):
            self.distinct.append(value)
        return number


def _floats(column: Sequence[Any], missing: bytes | None) -> Array:
    """Numbers or their texts as float64, NaN if missing; infinity is a ValueError."""
    numbers = np.array([_NAN if x == missing else float(x) for x in column], np.float64)
    if np.isinf(numbers).any():
        raise ValueError("not finite")
    return numbers


def _read_text(raw: bytes) -> str:
    return raw[1:-1].decode()


def _read_site(raw: bytes) -> str:
    text = _read_text(raw)
    parse_site(text)
    return text


def _read_whole(raw: bytes) -> int:
    number = int(raw)
    if not -WHOLE_LIMIT <= number < WHOLE_LIMIT:
        raise ValueError("beyond 64 bits")
    return number


def _read_variant(raw: bytes) -> str:
    return canonical(DECODER.decode(raw.decode()))


_READERS: dict[str, Callable[[bytes], Any]] = {
    **dict.fromkeys(TEXTS, _read_text),
    **dict.fromkeys(WHOLES, _read_whole),
    "site": _read_site,
    "variant": _read_variant,
}

# A million records repeat few sites.
parse_site = lru_cache(maxsize=4096)(Site.parse)


def canonical(variant: Mapping[str, Any]) -> str:
    """A variant as JSON text, the same for equal variants; an InputError if it cannot be JSON."""
    try:
        return _SORTED.encode(variant)
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"not a record: its variant cannot be JSON ({error}); use plain values") from error


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


_SORTED = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"), sort_keys=True)
DECODER = json.JSONDecoder(parse_constant=_refuse_constant)
