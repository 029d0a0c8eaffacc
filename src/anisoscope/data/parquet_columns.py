"""Vectors in parquet files: a column of lists of numbers, streamed by pyarrow."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from anisoscope.data.vector_formats import NumpyArray, StoredArray, Stream, VectorFile, no_rows, reading
from anisoscope.errors import InputError

Convert = Callable[[Any, int], NumpyArray]  # an arrow array and the number of its first row -> rows (m, d)

# A column of lists may expand to this many times the size of its file, or to this many bytes; more is a bomb.
_MAX_EXPANSION, _ALWAYS_ALLOWED = 1000, 1 << 28


def open_parquet(file: VectorFile) -> dict[str, StoredArray]:
    """The columns of a parquet file by name."""
    with _parquet(file) as table:
        return {column.name: _column(file, table, column.name, column.type) for column in table.schema_arrow}


@contextmanager
def _parquet(file: VectorFile, texts: Sequence[str] = ()) -> Iterator[Any]:
    """Open the file with pyarrow through a small buffer; by default pyarrow reads a whole row group.

    The columns `texts` are read as dictionaries, so a text that is repeated is decoded once.
    """
    import pyarrow.parquet as pq

    options: dict[str, Any] = {"buffer_size": 1 << 20, "pre_buffer": False, "read_dictionary": list(texts)}
    with reading(file.path), file.open() as opened, pq.ParquetFile(opened, **options) as table:
        yield table


def _column(file: VectorFile, table: Any, name: str, kind: Any) -> StoredArray:
    """A column: lists of numbers (n, d), integers (n,), or texts (n,), numbered in order of appearance."""
    from pyarrow import types

    n = table.metadata.num_rows
    kind = getattr(kind, "storage_type", kind)  # of an extension type, such as arrow's tensors
    if types.is_integer(kind):
        return StoredArray((n,), str(kind), _column_stream(file, name, n, _integers))
    if types.is_string(kind) or types.is_large_string(kind):
        return StoredArray((n,), "int64", _column_stream(file, name, n, _numbered_texts, texts=(name,)))
    lists = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    if not lists or not (types.is_floating(kind.value_type) or types.is_integer(kind.value_type)):
        return StoredArray((n,), str(kind), no_rows, f"holds {kind}. Vectors are lists of numbers.")
    dtype = np.dtype(kind.value_type.to_pandas_dtype()).name
    expanded = _expanded_bytes(table, name)
    if expanded > max(_ALWAYS_ALLOWED, _MAX_EXPANSION * file.size):
        # One row of a few hundred bytes on disk can take gigabytes in memory, and a row cannot be read in parts.
        problem = f"would expand to {expanded:,} bytes from a file of {file.size:,}. Save it without compression."
        return StoredArray((n,), str(kind), no_rows, problem)
    d = kind.list_size if types.is_fixed_size_list(kind) else _first_length(table, name)
    return StoredArray((n, d), dtype, _column_stream(file, name, n, partial(_lists, d=d)))


def _expanded_bytes(table: Any, name: str) -> int:
    """Bytes in memory of the largest row group of a column of lists: its numbers and their levels."""
    metadata = table.metadata
    groups = [metadata.row_group(g) for g in range(metadata.num_row_groups)]
    chunks = [group.column(c) for group in groups for c in range(group.num_columns)]
    return max((c.num_values for c in chunks if c.path_in_schema.split(".")[0] == name), default=0) * 8


def _first_length(table: Any, name: str) -> int:
    first = next(table.iter_batches(batch_size=1, columns=[name], use_threads=False), None)
    row = None if first is None or len(first) == 0 else first.column(0)[0]
    return len(row) if row is not None and row.is_valid else 0


def _column_stream(
    file: VectorFile, name: str, n: int, converter: Callable[[str], Convert], texts: Sequence[str] = ()
) -> Stream:
    """Stream a column; each pass gets a new converter, which is passed the column's name for its errors."""

    def stream(rows: int) -> Iterator[Tensor]:
        label, first = f"{file.path}: column {name}", 0
        convert = converter(label)
        with _parquet(file, texts) as table:
            for batch in table.iter_batches(batch_size=rows, columns=[name], use_threads=False):
                column = batch.column(0)
                if first + len(column) > n:
                    raise InputError(f"{label} has more than the {n} rows in the footer. The file is damaged.")
                yield torch.from_numpy(convert(getattr(column, "storage", column), first))  # (m, d)
                first += len(column)
        if first < n:
            raise InputError(f"{label} has only {first} of the {n} rows in the footer. The file is damaged.")

    return stream


def _lists(label: str, d: int) -> Convert:
    """Convert lists of d numbers to rows (m, d)."""
    import pyarrow.compute as pc

    def convert(column: Any, first: int) -> NumpyArray:
        lengths = pc.fill_null(pc.list_value_length(column), -1).to_numpy(zero_copy_only=False)  # (m,)
        if wrong := np.flatnonzero(lengths != d).tolist():
            length = lengths[wrong[0]]
            actual = "no vector" if length < 0 else f"{length} numbers"
            raise InputError(f"{label}: row {first + wrong[0]} has {actual}, expected {d}. Fix or drop such rows.")
        values = column.flatten()
        _require_no_nulls(label, values, column, first)
        return np.array(values.to_numpy(zero_copy_only=False)).reshape(-1, d)  # a copy: arrow's memory is read-only

    return convert


def _integers(label: str) -> Convert:
    """Convert integers to rows (m, 1)."""

    def convert(column: Any, first: int) -> NumpyArray:
        _require_no_nulls(label, column, column, first)
        return np.array(column.to_numpy(zero_copy_only=False))[:, None]

    return convert


def _numbered_texts(label: str) -> Convert:
    """Convert texts to rows (m, 1): 0 for the first text, 1 for the next different one, and so on."""
    numbers: dict[str, int] = {}

    def convert(column: Any, first: int) -> NumpyArray:
        _require_no_nulls(label, column, column, first)
        codes = np.array(column.indices.to_numpy(zero_copy_only=False), dtype=np.int64)  # (m,) into the dictionary
        used, first_use = np.unique(codes, return_index=True)
        number_of_code = np.zeros(len(column.dictionary), dtype=np.int64)
        for code in used[np.argsort(first_use)].tolist():
            number_of_code[code] = numbers.setdefault(column.dictionary[code].as_py(), len(numbers))
        return number_of_code[codes][:, None]

    return convert


def _require_no_nulls(label: str, values: Any, column: Any, first: int) -> None:
    if values.null_count:
        raise InputError(f"{label} has missing values in rows {first} to {first + len(column) - 1}. Drop such rows.")
