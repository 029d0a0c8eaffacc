"""Open files of vectors in any supported format, and write .npy files batch by batch.

What depends on the format is in `vector_formats` and `parquet_columns`; what all formats share (which array, which
documents, which dtype) is decided here.
"""

from __future__ import annotations

import hashlib
import math
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from anisoscope.data.parquet_columns import open_parquet
from anisoscope.data.vector_formats import (
    NumpyArray,
    StoredArray,
    Stream,
    VectorFile,
    file_stamp,
    open_npy,
    open_npz,
    open_safetensors,
    open_torch,
    reading,
)
from anisoscope.errors import InputError, unknown
from anisoscope.store.files import file_errors, replacing

# The formats by suffix: each function returns the arrays of a file by name.
_FORMATS: dict[str, Callable[[VectorFile], dict[str, StoredArray]]] = {
    ".npy": open_npy,
    ".npz": open_npz,
    ".safetensors": open_safetensors,
    ".parquet": open_parquet,
    ".pt": open_torch,
    ".pth": open_torch,
    ".bin": open_torch,
}
_DOCUMENT_NAMES = ("documents", "document")  # an array of this name holds each row's document id
_MAX_COLUMNS = 1 << 15  # a d × d statistic of that size takes 8 GB; wider rows mean a damaged or transposed array
_MAX_DOCUMENTS = 1 << 28  # rows: their ids are kept in memory
_BATCH_BYTES = 1 << 28


@dataclass(frozen=True)
class Vectors:
    """n vectors of d numbers in a file, read in constant memory and as often as needed.

    Attributes:
        name: the file name, followed by the array's name if the file holds several.
        n: number of rows.
        d: number of columns.
        dtype: dtype of the batches.
        info: facts about the file for run.json.
        documents: document id of each row, or None if the file has none.
        stream: reads the rows as stored, in batches of at most that many rows.
    """

    name: str
    n: int
    d: int
    dtype: str
    info: dict[str, Any]
    documents: NumpyArray | None  # (n,) int64
    stream: Stream = field(repr=False)

    def batches(self, rows: int = 4096) -> Iterator[Tensor]:
        """Yield all vectors in order, as tensors of shape (at most `rows`, d)."""
        if rows < 1:
            raise InputError(f"A batch needs at least one row, got {rows}.")
        dtype: torch.dtype = getattr(torch, self.dtype)
        limit = max(1, _BATCH_BYTES // (8 * self.d))
        for x in self.stream(min(rows, limit)):  # (m, d) as stored
            yield x.to(dtype)


def open_vectors(
    path: str | os.PathLike[str],
    tensor: str | None = None,
    column: str | None = None,
    documents: str | None = None,
) -> Vectors:
    """Open a file of vectors: .npy, .npz, .safetensors, .parquet, .pt, .pth or .bin.

    Nothing is unpickled and the rows are not read yet. Arrays of more than two dimensions (…, d) are read as rows of d.

    Args:
        path: the file.
        tensor: which array to use if the file holds several.
        column: the same for a parquet file.
        documents: name of the array or column, or path of another .npy file, that holds one document id per row.
            An array named `documents` or `document` is used without asking.

    Returns:
        The file's vectors: `len`, `width`, and `batches(size)`, which reads them.

    Raises:
        InputError: if the file is missing, damaged or unsafe, or if it is unclear which array to use.

    >>> open_vectors("vectors.npy").batches(4096)    # doctest: +SKIP
    """
    file = _regular_file(Path(path))
    suffix = file.path.suffix.lower()
    if suffix not in _FORMATS:
        raise InputError(
            f"{file.path} is not a file of vectors; the formats are {', '.join(_FORMATS)}. "
            f"To measure a text, name the model that reads it: anisoscope measure MODEL --text {file.path}"
        )
    option = "--column" if suffix == ".parquet" else "--tensor"
    requested, other = (column, tensor) if suffix == ".parquet" else (tensor, column)
    if other is not None:
        raise InputError(f"{file.path} is a {suffix} file. Choose its vectors with {option} NAME.")
    with reading(file.path):
        arrays = _FORMATS[suffix](file)
    name = _choose(file.path, arrays, requested, option)
    array = arrays[name]
    n, d = _rows_and_columns(f"{file.path}: {name or 'the array'}", array.shape)
    dtype, notes = _conversion(array)
    return Vectors(
        name=f"{file.path.name}:{name}" if len(arrays) > 1 else file.path.name,
        n=n,
        d=d,
        dtype=dtype,
        info={**_describe(file), "tensor": name or None, "n": n, "d": d, "dtype": array.dtype, "notes": notes},
        documents=_documents(file.path, arrays, documents, n),
        stream=array.stream,
    )


@contextmanager
def write_npy(path: str | os.PathLike[str], n: int, d: int) -> Iterator[Callable[[Tensor], None]]:
    """Write a float32 .npy file of shape (n, d) batch by batch.

    The file appears only when the block ends without an error and all n rows were written.

    >>> with write_npy("better.npy", 2, 3) as write:    # doctest: +SKIP
    ...     write(torch.zeros(2, 3))
    """
    target = Path(path)
    written = 0
    with file_errors("write", target), replacing(target) as temporary, temporary.open("wb") as file:
        header = {"descr": "<f4", "fortran_order": False, "shape": (n, d)}
        np.lib.format.write_array_header_1_0(file, header)

        def write(x: Tensor) -> None:
            nonlocal written
            if x.ndim != 2 or x.shape[1] != d or written + len(x) > n:
                raise InputError(f"{target}: expected {n} rows of {d}, got {tuple(x.shape)} after {written} rows.")
            rows = x.detach().to("cpu", torch.float32).contiguous().numpy()  # (m, d)
            file.write(rows.astype("<f4", copy=False).data)
            written += len(x)

        yield write
        if written != n:
            raise InputError(f"{target}: expected {n} rows, got {written}. The file was not written.")


def _regular_file(path: Path) -> VectorFile:
    try:
        status = path.stat()
    except (OSError, ValueError) as error:
        raise InputError(f"No such file: {path} ({error}). Check the path.") from error
    if stat.S_ISDIR(status.st_mode):
        raise InputError(f"{path} is a folder. Vectors are a single file: {', '.join(_FORMATS)}.")
    if not stat.S_ISREG(status.st_mode):
        raise InputError(f"{path} is not a regular file. Save the vectors to one.")
    if status.st_size == 0:
        raise InputError(f"{path} is empty. Save the vectors again.")
    return VectorFile(path, status.st_size, file_stamp(status))


def _choose(path: Path, arrays: Mapping[str, StoredArray], requested: str | None, option: str) -> str:
    """Return the name of the array that holds the vectors; raise an error that lists the candidates if unclear."""
    if requested is not None:
        if set(arrays) == {""}:
            raise InputError(f"{path} holds a single array without a name. Leave out {option}.")
        if requested not in arrays:
            raise unknown("column" if option == "--column" else "tensor", requested, arrays)
        if problem := arrays[requested].problem:
            raise InputError(f"{path}: {requested} {problem}")
        return requested
    usable = [name for name, array in arrays.items() if array.problem is None and len(array.shape) > 1]
    if len(usable) == 1 or len(arrays) == 1:
        [name, *_] = usable or arrays
        if problem := arrays[name].problem:
            raise InputError(f"{path}: {name or 'the array'} {problem}")
        return name
    shown = [f"{name} {arrays[name].shape}" for name in (usable or arrays)]
    listed = ", ".join(shown[:20]) + (f" and {len(shown) - 20} more" if len(shown) > 20 else "")
    if usable:
        raise InputError(f"{path} holds several arrays: {listed}. Choose one with {option} NAME.")
    raise InputError(f"{path} holds no two-dimensional array; it holds {listed or 'no array'}. Save rows and columns.")


def _rows_and_columns(what: str, shape: tuple[int, ...]) -> tuple[int, int]:
    if len(shape) < 2:
        raise InputError(f"{what} has shape {shape}. Vectors need rows and columns (n, d).")
    n, d = math.prod(shape[:-1]), shape[-1]
    if n < 1 or d < 1:
        raise InputError(f"{what} is empty: its shape is {shape}.")
    if d > _MAX_COLUMNS:
        raise InputError(f"{what} has {d:,} columns; at most {_MAX_COLUMNS:,} can be measured. Is it transposed?")
    return n, d


def _conversion(array: StoredArray) -> tuple[str, list[str]]:
    """Return the dtype of the batches, and notes on what differs from the stored array."""
    dtype = array.dtype
    if dtype == str(np.dtype(np.longdouble)):
        dtype = "float64"
    elif dtype not in ("float16", "bfloat16", "float32", "float64"):
        dtype = "float32"
    notes = [] if dtype == array.dtype else [f"{array.dtype} converted to {dtype}"]
    if len(array.shape) > 2:
        notes.append(f"array {array.shape} read as {math.prod(array.shape[:-1])} rows of {array.shape[-1]}")
    return dtype, notes


def _documents(path: Path, arrays: Mapping[str, StoredArray], requested: str | None, n: int) -> NumpyArray | None:
    """Read the document id of each row (n,) from an array of the file or from another .npy file."""
    if requested is None:
        candidates = [arrays[name] for name in _DOCUMENT_NAMES if name in arrays and n <= _MAX_DOCUMENTS]
        return next((_ids(array) for array in candidates if array.shape == (n,) and _is_integer(array)), None)
    if requested not in arrays and requested.endswith(".npy"):
        path = Path(requested)
        arrays = {requested: next(iter(open_npy(_regular_file(path)).values()))}
    if requested not in arrays:
        raise unknown("array of documents", requested, arrays)
    array = arrays[requested]
    if n > _MAX_DOCUMENTS:
        raise InputError(f"{path}: document ids of {n:,} rows do not fit into memory. Use at most {_MAX_DOCUMENTS:,}.")
    if array.shape != (n,) or not _is_integer(array):
        raise InputError(
            f"{path}: {requested} is {array.dtype} {array.shape}. Document ids are one integer per row, shape ({n},)."
        )
    return _ids(array)


def _is_integer(array: StoredArray) -> bool:
    return array.problem is None and array.dtype.startswith(("int", "uint"))


def _ids(array: StoredArray) -> NumpyArray:
    return np.concatenate([part[:, 0].to(torch.int64).numpy() for part in array.stream(1 << 16)])  # (n,)


def _describe(file: VectorFile) -> dict[str, Any]:
    """Return facts that identify the file later, without reading all of it."""
    pieces, length = 16, 1 << 16
    digest = hashlib.sha256(str(file.size).encode())
    with file.open() as opened:
        for i in range(pieces):
            opened.seek(max(0, file.size - length) * i // (pieces - 1))
            digest.update(opened.read(length))
    modified = datetime.fromtimestamp(file.stamp[2] // 10**9, UTC).isoformat()
    return {
        "file": file.path.name,
        "format": file.path.suffix.lower()[1:],
        "bytes": file.size,
        "modified": modified,
        "sample_sha256": digest.hexdigest(),
    }
