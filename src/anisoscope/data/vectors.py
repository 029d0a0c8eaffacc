"""Vectors on disk, memory-mapped or streamed: .npy, .npz, .safetensors, .parquet, .pt. Nothing is ever unpickled.

Every format gives the arrays of a file as `_Array`s: a shape, a dtype and a way to look at the rows as often as
needed. What is common (which array, which documents, which conversion) is decided once, in `open_vectors`.
"""

from __future__ import annotations

import hashlib
import io
import math
import os
import pickle
import stat
import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor

from anisoscope.errors import InputError, unknown
from anisoscope.store.files import explained, parse_json, replacing, understood

Stream = Callable[[int], Iterator[Tensor]]  # at most so many rows at a time -> (m, d) tensors, from the first row on
NumpyArray = np.ndarray[Any, Any]

_DOCUMENTS = ("documents", "document")  # an array of this name beside the vectors names each row's document
_WIDEST = 1 << 20  # columns: beyond it no d × d statistic fits anywhere, and the header is damaged or crafted
_BATCH_BYTES = 1 << 28
_NPY_HEADER = 1 << 16
# A column of lists may claim so many times its file's size, or so many bytes if it is small; more is a bomb.
_AMPLIFIED, _SMALL_CLAIM = 1000, 1 << 28
_MOST_DOCUMENTS = 1 << 28  # rows: their ids are held in memory
# How safetensors stores what torch reads; numpy has neither bfloat16 nor eight-bit floats and maps their bytes.
_SAFETENSORS = {
    "F64": ("float64", "<f8"),
    "F32": ("float32", "<f4"),
    "F16": ("float16", "<f2"),
    "BF16": ("bfloat16", "<u2"),
    "F8_E4M3": ("float8_e4m3fn", "u1"),
    "F8_E5M2": ("float8_e5m2", "u1"),
    "I64": ("int64", "<i8"),
    "I32": ("int32", "<i4"),
    "I16": ("int16", "<i2"),
    "I8": ("int8", "i1"),
    "U64": ("uint64", "<u8"),
    "U32": ("uint32", "<u4"),
    "U16": ("uint16", "<u2"),
    "U8": ("uint8", "u1"),
    "BOOL": ("bool", "?"),
}


@dataclass(frozen=True)
class Vectors:
    """n vectors of d numbers in a file; `batches` looks at them as often as needed, in constant memory.

    `dtype` is that of the batches; `info` says for run.json which file this was; `documents` names each row's
    document where the file does.
    """

    name: str
    n: int
    d: int
    dtype: str
    info: dict[str, Any]
    documents: NumpyArray | None  # (n,) int64
    stream: Stream = field(repr=False)

    def batches(self, rows: int = 4096) -> Iterator[Tensor]:
        """All vectors from the first on, as tensors of (at most `rows`, d); zero-copy where the file allows it."""
        if rows < 1:
            raise InputError(f"a batch has at least one row, got {rows}")
        dtype: torch.dtype = getattr(torch, self.dtype)
        at_most = max(1, _BATCH_BYTES // (8 * self.d))
        for x in self.stream(min(rows, at_most)):  # (m, d) as stored
            yield x.to(dtype)


@dataclass(frozen=True)
class _Array:
    """An array of a file: rows are its last dimension (1-D: rows of one number); `problem` says why it is no use."""

    shape: tuple[int, ...]
    dtype: str
    stream: Stream = field(repr=False)
    problem: str | None = None


@dataclass(frozen=True)
class _File:
    """A file as it was when it was opened."""

    path: Path
    size: int
    stamp: tuple[int, int, int]  # inode, size, time of the last change

    @contextmanager
    def open(self) -> Iterator[IO[bytes]]:
        """The file again, for one pass; refused when it has changed (a map of a cut file would kill the process)."""
        with self.path.open("rb") as file:
            if _stamp(os.fstat(file.fileno())) != self.stamp:
                raise InputError(f"{self.path} has changed since it was opened; open it again")
            yield file


def open_vectors(
    path: str | os.PathLike[str],
    tensor: str | None = None,
    column: str | None = None,
    documents: str | None = None,
) -> Vectors:
    """The vectors in a file, whatever its format; `tensor` or (parquet) `column` says which where it holds several.

    `documents` names the array or column, or another .npy file, with one document id a row; an array called
    `documents` or `document` is found by itself. Arrays (…, d) of more dimensions are taken as rows of d.

    >>> open_vectors("vectors.npy").batches(4096)    # doctest: +SKIP
    """
    file = _regular_file(Path(path))
    suffix = file.path.suffix.lower()
    if suffix not in _FORMATS:
        raise InputError(
            f"{file.path}: not a file of vectors; the formats are {', '.join(_FORMATS)}. "
            f"A text needs a model that reads it: anisoscope measure MODEL --text {file.path}"
        )
    option = "--column" if suffix == ".parquet" else "--tensor"
    wanted, other = (column, tensor) if suffix == ".parquet" else (tensor, column)
    if other is not None:
        raise InputError(f"{file.path}: say which part of a {suffix} file with {option} NAME")
    with _reading(file.path):
        arrays = _FORMATS[suffix](file)
    name = _choose(file.path, arrays, wanted, option)
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
    """A float32 .npy file of (n, d) written batch by batch; it appears, whole, when the block ends well.

    >>> with write_npy("better.npy", 2, 3) as write:    # doctest: +SKIP
    ...     write(torch.zeros(2, 3))
    """
    target = Path(path)
    written = 0
    with explained("write", target), replacing(target) as temporary, temporary.open("wb") as file:
        header = {"descr": "<f4", "fortran_order": False, "shape": (n, d)}
        np.lib.format.write_array_header_1_0(file, header)

        def write(x: Tensor) -> None:
            nonlocal written
            if x.ndim != 2 or x.shape[1] != d or written + len(x) > n:
                raise InputError(f"{target}: {n} rows of {d} were announced; got {tuple(x.shape)} after {written} rows")
            rows = x.detach().to("cpu", torch.float32).contiguous().numpy()  # (m, d)
            file.write(rows.astype("<f4", copy=False).data)
            written += len(x)

        yield write
        if written != n:
            raise InputError(f"{target}: {n} rows were announced, {written} written; nothing was kept")


# What is common to all formats.


def _reading(path: Path) -> AbstractContextManager[None]:
    return understood(path, "save the vectors again")


def _stamp(status: os.stat_result) -> tuple[int, int, int]:
    return status.st_ino, status.st_size, status.st_mtime_ns


def _regular_file(path: Path) -> _File:
    try:
        status = path.stat()
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: no such file ({error}); check the path") from error
    if stat.S_ISDIR(status.st_mode):
        raise InputError(f"{path} is a folder, that is a model; vectors are a file: {', '.join(_FORMATS)}")
    if not stat.S_ISREG(status.st_mode):
        raise InputError(f"{path} is not a plain file; save the vectors to one")
    if status.st_size == 0:
        raise InputError(f"{path} is empty; save the vectors again")
    return _File(path, status.st_size, _stamp(status))


def _choose(path: Path, arrays: Mapping[str, _Array], wanted: str | None, option: str) -> str:
    """The name of the array that holds the vectors; where that is not clear an InputError lists the candidates."""
    if wanted is not None:
        if set(arrays) == {""}:
            raise InputError(f"{path} holds one array, which has no name; leave out {option}")
        if wanted not in arrays:
            raise unknown("column" if option == "--column" else "tensor", wanted, arrays)
        if problem := arrays[wanted].problem:
            raise InputError(f"{path}: {wanted} {problem}")
        return wanted
    usable = [name for name, array in arrays.items() if array.problem is None and len(array.shape) > 1]
    if len(usable) == 1 or len(arrays) == 1:
        [name, *_] = usable or arrays
        if problem := arrays[name].problem:
            raise InputError(f"{path}: {name or 'it'} {problem}")
        return name
    shown = [f"{name} {arrays[name].shape}" for name in (usable or arrays)]
    listed = ", ".join(shown[:20]) + (f" and {len(shown) - 20} more" if len(shown) > 20 else "")
    if usable:
        raise InputError(f"{path} holds several arrays: {listed}; choose one with {option} NAME")
    raise InputError(f"{path} holds no array of rows and columns; it holds {listed or 'nothing'}")


def _rows_and_columns(what: str, shape: tuple[int, ...]) -> tuple[int, int]:
    if len(shape) < 2:
        raise InputError(f"{what} has shape {shape}; vectors are rows and columns (n, d)")
    n, d = math.prod(shape[:-1]), shape[-1]
    if n < 1 or d < 1:
        raise InputError(f"{what} is empty: its shape is {shape}")
    if d > _WIDEST:
        raise InputError(f"{what} has rows of {d} numbers, the widest that can be measured is {_WIDEST}; transposed?")
    return n, d


def _conversion(array: _Array) -> tuple[str, list[str]]:
    """The dtype of the batches, and notes on what is not as stored."""
    dtype = array.dtype
    if dtype == str(np.dtype(np.longdouble)):
        dtype = "float64"
    elif dtype not in ("float16", "bfloat16", "float32", "float64"):
        dtype = "float32"
    notes = [] if dtype == array.dtype else [f"{array.dtype} converted to {dtype}"]
    if len(array.shape) > 2:
        notes.append(f"an array {array.shape} taken as {math.prod(array.shape[:-1])} rows of {array.shape[-1]}")
    return dtype, notes


def _documents(path: Path, arrays: Mapping[str, _Array], wanted: str | None, n: int) -> NumpyArray | None:
    """Each row's document (n,), from the array of that name, another .npy file, or an array called `documents`."""
    if wanted is None:
        found = [arrays[name] for name in _DOCUMENTS if name in arrays and n <= _MOST_DOCUMENTS]
        return next((_ids(array) for array in found if array.shape == (n,) and _is_whole(array)), None)
    if wanted not in arrays and wanted.endswith(".npy"):
        path = Path(wanted)
        arrays = {wanted: next(iter(_open_npy(_regular_file(path)).values()))}
    if wanted not in arrays:
        raise unknown("array of documents", wanted, arrays)
    array = arrays[wanted]
    if n > _MOST_DOCUMENTS:
        raise InputError(f"{path}: documents of {n:,} rows do not fit into memory; measure at most {_MOST_DOCUMENTS:,}")
    if array.shape != (n,) or not _is_whole(array):
        seen = f"{array.dtype} {array.shape}"
        raise InputError(f"{path}: {wanted} is {seen}; documents are one whole number a row, shape ({n},)")
    return _ids(array)


def _is_whole(array: _Array) -> bool:
    return array.problem is None and array.dtype.startswith(("int", "uint"))


def _ids(array: _Array) -> NumpyArray:
    return np.concatenate([part[:, 0].to(torch.int64).numpy() for part in array.stream(1 << 16)])  # (n,)


def _describe(file: _File) -> dict[str, Any]:
    """Which file this was: enough to tell later whether it is still the same, without reading all of it."""
    pieces, length = 16, 1 << 16
    digest = hashlib.sha256(str(file.size).encode())
    with file.open() as opened:
        for i in range(pieces):
            opened.seek(max(0, file.size - length) * i // (pieces - 1))
            digest.update(opened.read(length))
    changed = datetime.fromtimestamp(file.stamp[2] // 10**9, UTC).isoformat()
    return {
        "file": file.path.name,
        "format": file.path.suffix.lower()[1:],
        "bytes": file.size,
        "modified": changed,
        "sample_sha256": digest.hexdigest(),
    }


# Arrays that lie in the file as they are in memory: .npy, stored members of .npz, .safetensors.


def _mapped(
    file: _File, offset: int, end: int, shape: tuple[int, ...], stored: np.dtype[Any], dtype: str, fortran: bool = False
) -> _Array:
    """An array between two offsets of a file, mapped a window at a time."""
    needed, there = math.prod(shape) * stored.itemsize, min(end, file.size) - offset
    if needed > there:
        claim = f"claims {shape}, {needed} bytes, but {max(0, there)} are there; the file is cut or damaged"
        return _Array(shape, dtype, _no_rows, claim)
    if fortran and len(shape) > 2:
        return _Array(shape, dtype, _no_rows, "is in Fortran order with more than two dimensions; save it in C order")
    windows = _column_windows if fortran and len(shape) == 2 else _row_windows

    def stream(rows: int) -> Iterator[Tensor]:
        for window in windows(file, offset, shape, stored, rows):
            yield _tensor(window, dtype)

    return _Array(shape, dtype, stream)


def _row_windows(
    file: _File, offset: int, shape: tuple[int, ...], stored: np.dtype[Any], rows: int
) -> Iterator[NumpyArray]:
    """Windows (m, d) of rows in C order, each mapped by itself.

    Copy-on-write maps are writable, as torch wants, and never touch the file; but the system counts a whole one as
    memory, so one map of a file larger than memory would be refused: hence a small map for each window.
    """
    n, d = (math.prod(shape[:-1]), shape[-1]) if len(shape) > 1 else (shape[0], 1)
    with _reading(file.path), file.open() as opened:
        for first in range(0, n, rows):
            window = (min(rows, n - first), d)
            start = offset + first * d * stored.itemsize
            yield np.asarray(np.memmap(opened, stored, mode="c", offset=start, shape=window))  # (m, d)


def _column_windows(
    file: _File, offset: int, shape: tuple[int, ...], stored: np.dtype[Any], rows: int
) -> Iterator[NumpyArray]:
    """Copies (m, d) of rows that lie in Fortran order, scattered over the whole file."""
    with _reading(file.path), file.open() as opened:
        whole = np.memmap(opened, stored, mode="r", offset=offset, shape=shape, order="F")  # (n, d)
        for first in range(0, shape[0], rows):
            yield np.array(whole[first : first + rows], order="C")


def _tensor(x: NumpyArray, dtype: str) -> Tensor:
    """A tensor of the named dtype on the array's memory; copied only from crooked places or another byte order."""
    native = np.dtype(np.float64) if x.dtype.type is np.longdouble else x.dtype.newbyteorder("=")
    plain = np.require(x, dtype=native, requirements=["ALIGNED", "C_CONTIGUOUS"])
    tensor = torch.from_numpy(plain)
    named: torch.dtype | None = getattr(torch, dtype, None)
    # Only where numpy lacks the dtype do the names differ at equal size: the bytes are read as what they are.
    return tensor.view(named) if named is not None and dtype.startswith(("bfloat", "float8")) else tensor


def _no_rows(rows: int) -> Iterator[Tensor]:
    return iter(())


def _npy_header(start: bytes) -> tuple[tuple[int, ...], bool, np.dtype[Any], int]:
    """Shape, Fortran order, dtype and length of the header with which a .npy file starts.

    Parsed from its first bytes only, since the header's own length may claim gigabytes.
    """
    head = io.BytesIO(start)
    version = np.lib.format.read_magic(head)
    readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    if version not in readers:
        raise ValueError(f"version {version} of the .npy format holds no plain numbers")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # on headers of Python 2, and on what damage makes of one
        shape, fortran, dtype = readers[version](head)
    if any(type(size) is not int or size < 0 for size in shape):
        raise ValueError(f"its shape is {shape}")
    return shape, fortran, dtype, head.tell()


def _dtype_problem(dtype: np.dtype[Any]) -> str | None:
    if dtype.hasobject:
        return "holds Python objects, which only unpickling could read; save plain numbers"
    if dtype.kind not in "fiub" or dtype.subdtype is not None:
        hint = "; bfloat16 is kept by .safetensors" if dtype == np.dtype("V2") else ""
        return f"holds {dtype}, not plain numbers{hint}"
    return None


def _npy_array(file: _File, offset: int, end: int, start: bytes) -> _Array:
    """The array of a .npy file that lies between two offsets of `file` and begins with the bytes `start`."""
    shape, fortran, dtype, length = _npy_header(start)
    if problem := _dtype_problem(dtype):
        return _Array(shape, str(dtype), _no_rows, problem)
    return _mapped(file, offset + length, end, shape, dtype, dtype.newbyteorder("=").name, fortran)


def _open_npy(file: _File) -> dict[str, _Array]:
    with file.open() as opened:
        return {"": _npy_array(file, 0, file.size, opened.read(_NPY_HEADER))}


def _open_safetensors(file: _File) -> dict[str, _Array]:
    from safetensors import safe_open

    with safe_open(file.path, framework="np"):
        pass  # opening checks the header: sizes, offsets, overlaps
    with file.open() as opened:
        length = int.from_bytes(opened.read(8), "little")
        header = parse_json(opened.read(length))
    header.pop("__metadata__", None)
    return {name: _safetensor(file, 8 + length, entry) for name, entry in header.items()}


def _safetensor(file: _File, offset: int, entry: Mapping[str, Any]) -> _Array:
    shape = tuple(entry["shape"])
    if entry["dtype"] not in _SAFETENSORS:
        return _Array(shape, entry["dtype"], _no_rows, f"holds {entry['dtype']}, not numbers that can be measured")
    dtype, stored = _SAFETENSORS[entry["dtype"]]
    first, last = entry["data_offsets"]
    return _mapped(file, offset + first, offset + last, shape, np.dtype(stored), dtype)


# .npz: a zip of .npy files, stored (mapped in place) or deflated (streamed).


def _open_npz(file: _File) -> dict[str, _Array]:
    with file.open() as opened, zipfile.ZipFile(opened) as archive:
        members = [member for member in archive.infolist() if member.filename.endswith(".npy")]
        return {member.filename.removesuffix(".npy"): _npz_member(file, archive, member) for member in members}


def _npz_member(file: _File, archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> _Array:
    if member.flag_bits & 1 or member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        return _Array((), "unknown", _no_rows, "is encrypted or packed in an unusual way; save it with numpy.savez")
    with archive.open(member) as opened:
        start = opened.read(_NPY_HEADER)
    if member.compress_type == zipfile.ZIP_STORED:
        offset = _member_offset(file, member)
        return _npy_array(file, offset, offset + member.file_size, start)
    return _inflated(file, member, start)


def _member_offset(file: _File, member: zipfile.ZipInfo) -> int:
    """Where a stored member's bytes begin: behind its local header of 30 bytes, its name and its extra field."""
    with file.open() as opened:
        opened.seek(member.header_offset)
        local = opened.read(30)
    return member.header_offset + 30 + int.from_bytes(local[26:28], "little") + int.from_bytes(local[28:30], "little")


def _inflated(file: _File, member: zipfile.ZipInfo, start: bytes) -> _Array:
    """A deflated member, unpacked anew on each pass."""
    shape, fortran, stored, length = _npy_header(start)
    dtype = stored.newbyteorder("=").name
    problem = _dtype_problem(stored)
    if fortran and len(shape) > 1:
        problem = "is compressed and in Fortran order; save it with numpy.ascontiguousarray or numpy.savez"
    if math.prod(shape) * stored.itemsize > member.file_size - length:
        problem = f"claims {shape}, more than its {member.file_size} bytes hold; the file is cut or damaged"
    n, d = (math.prod(shape[:-1]), shape[-1]) if len(shape) > 1 else (*shape, 1, 1)[:2]

    def stream(rows: int) -> Iterator[Tensor]:
        with _reading(file.path), file.open() as raw, zipfile.ZipFile(raw) as archive, archive.open(member) as opened:
            opened.read(length)
            for first in range(0, n, rows):
                window = (min(rows, n - first), d)
                size = math.prod(window) * stored.itemsize
                data = bytearray(opened.read(size))
                if len(data) < size:
                    raise InputError(f"{file.path}: {member.filename} ends early; the file is cut or damaged")
                yield _tensor(np.frombuffer(data, stored).reshape(window), dtype)  # (m, d)

    return _Array(shape, dtype, stream, problem)


# .pt, .pth, .bin: torch's own files, without any code in them.


def _open_torch(file: _File) -> dict[str, _Array]:
    _require_stored(file)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            loaded = torch.load(file.path, map_location="cpu", mmap=True, weights_only=True)
    except pickle.UnpicklingError as error:
        raise InputError(
            f"{file.path}: opening it would run code that it carries, or it is damaged; save the tensors alone "
            "(torch.save(tensor, path)) or as .safetensors"
        ) from error
    except RuntimeError as error:
        if "mmap can only be used" in str(error):
            raise InputError(f"{file.path} is in torch's format before 1.6 or damaged; torch.save it again") from error
        raise
    return {name: _torch_array(tensor) for name, tensor in _tensors_in(loaded).items()}


def _require_stored(file: _File) -> None:
    """torch.save never compresses: a member that is, or that claims more than the file, would only fill the memory."""
    with file.open() as opened:
        if not zipfile.is_zipfile(opened):
            return
        with zipfile.ZipFile(opened) as archive:
            members = archive.infolist()
    if any(m.compress_type != zipfile.ZIP_STORED for m in members) or sum(m.file_size for m in members) > file.size:
        raise InputError(f"{file.path} is packed as torch.save never does, or damaged; save the tensors again")


def _tensors_in(loaded: object) -> dict[str, Tensor]:
    """All tensors of nested dicts and lists by their path: {"a": {"b": [t]}} gives a.b.0."""
    found: dict[str, Tensor] = {}
    seen: set[int] = set()  # a crafted pickle may hold itself, or the same list a billion times over
    waiting: list[tuple[str, object]] = [("", loaded)]
    while waiting:
        name, value = waiting.pop()
        if isinstance(value, Tensor):
            found[name] = value.detach()
        elif isinstance(value, dict | list | tuple) and id(value) not in seen:
            seen.add(id(value))
            items = value.items() if isinstance(value, dict) else enumerate(value)
            waiting += [(f"{name}.{key}" if name else str(key), part) for key, part in reversed(list(items))]
    return found


def _torch_array(tensor: Tensor) -> _Array:
    shape, dtype = tuple(tensor.shape), str(tensor.dtype).removeprefix("torch.")
    problem = None
    if tensor.layout != torch.strided or tensor.device.type != "cpu" or tensor.is_quantized or tensor.is_complex():
        problem = f"is {dtype}, {tensor.layout}, on {tensor.device}; save it as a dense tensor of plain numbers"
    elif tensor.untyped_storage().nbytes() < tensor.numel() * tensor.element_size():
        problem = f"claims {shape}, more than the file holds; save it with .contiguous()"
    elif tensor.ndim > 2 and not tensor.is_contiguous():
        problem = "has more than two dimensions and is not contiguous; save it with .contiguous()"
    if problem or tensor.ndim == 0:
        return _Array(shape, dtype, _no_rows, problem)
    rows_of = tensor.flatten(0, -2) if tensor.ndim > 1 else tensor[:, None]  # (n, d), a view
    return _Array(shape, dtype, lambda rows: (rows_of[i : i + rows] for i in range(0, len(rows_of), rows)))


# .parquet: a column of lists, streamed.

Convert = Callable[[Any, int], NumpyArray]  # an arrow array and the number of its first row -> rows (m, d)


@contextmanager
def _parquet(file: _File, texts: Sequence[str] = ()) -> Iterator[Any]:
    """The file as pyarrow sees it, read through a small buffer: by default a row group is read whole.

    Columns of `texts` come as dictionaries, each text unpacked once however often it is repeated.
    """
    import pyarrow.parquet as pq

    options: dict[str, Any] = {"buffer_size": 1 << 20, "pre_buffer": False, "read_dictionary": list(texts)}
    with _reading(file.path), file.open() as opened, pq.ParquetFile(opened, **options) as table:
        yield table


def _open_parquet(file: _File) -> dict[str, _Array]:
    with _parquet(file) as table:
        return {column.name: _column(file, table, column.name, column.type) for column in table.schema_arrow}


def _column(file: _File, table: Any, name: str, kind: Any) -> _Array:
    """A column: lists of numbers (n, d), whole numbers or texts (n,), the texts numbered in order of appearance."""
    from pyarrow import types

    n = table.metadata.num_rows
    kind = getattr(kind, "storage_type", kind)  # of an extension type, such as arrow's tensors
    if types.is_integer(kind):
        return _Array((n,), str(kind), _column_stream(file, name, n, _whole_numbers))
    if types.is_string(kind) or types.is_large_string(kind):
        return _Array((n,), "int64", _column_stream(file, name, n, _numbered, texts=(name,)))
    lists = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    if not lists or not (types.is_floating(kind.value_type) or types.is_integer(kind.value_type)):
        return _Array((n,), str(kind), _no_rows, f"holds {kind}; vectors are lists of numbers")
    dtype = np.dtype(kind.value_type.to_pandas_dtype()).name
    claimed = _claimed_bytes(table, name)
    if claimed > max(_SMALL_CLAIM, _AMPLIFIED * file.size):
        # One row of a few hundred bytes on disk can be gigabytes in memory, and rows are unpacked whole.
        return _Array((n,), str(kind), _no_rows, f"claims {claimed:,} bytes of numbers in a file of {file.size:,}")
    d = kind.list_size if types.is_fixed_size_list(kind) else _first_length(table, name)
    return _Array((n, d), dtype, _column_stream(file, name, n, partial(_lists, d=d)))


def _claimed_bytes(table: Any, name: str) -> int:
    """How many bytes the largest row group of a column of lists takes when read: numbers, and where each belongs."""
    facts = table.metadata
    groups = [facts.row_group(g) for g in range(facts.num_row_groups)]
    chunks = [group.column(c) for group in groups for c in range(group.num_columns)]
    return max((c.num_values for c in chunks if c.path_in_schema.split(".")[0] == name), default=0) * 8


def _first_length(table: Any, name: str) -> int:
    first = next(table.iter_batches(batch_size=1, columns=[name], use_threads=False), None)
    row = None if first is None or len(first) == 0 else first.column(0)[0]
    return len(row) if row is not None and row.is_valid else 0


def _column_stream(
    file: _File, name: str, n: int, converter: Callable[[str], Convert], texts: Sequence[str] = ()
) -> Stream:
    """How to look at a column; each pass gets a converter of its own, told where it is for its errors."""

    def stream(rows: int) -> Iterator[Tensor]:
        where, first = f"{file.path}: column {name}", 0
        convert = converter(where)
        with _parquet(file, texts) as table:
            for batch in table.iter_batches(batch_size=rows, columns=[name], use_threads=False):
                column = batch.column(0)
                if first + len(column) > n:
                    raise InputError(f"{where} has more than the {n} rows announced; the file is damaged")
                yield torch.from_numpy(convert(getattr(column, "storage", column), first))  # (m, d)
                first += len(column)
        if first < n:
            raise InputError(f"{where} has {first} of the {n} rows announced; the file is damaged")

    return stream


def _lists(where: str, d: int) -> Convert:
    """Lists of d numbers as rows (m, d)."""
    import pyarrow.compute as pc

    def convert(column: Any, first: int) -> NumpyArray:
        lengths = pc.fill_null(pc.list_value_length(column), -1).to_numpy(zero_copy_only=False)  # (m,)
        if odd := np.flatnonzero(lengths != d).tolist():
            seen = "no vector" if lengths[odd[0]] < 0 else f"{lengths[odd[0]]} numbers"
            raise InputError(f"{where}: row {first + odd[0]} has {seen} where {d} are expected; drop or mend such rows")
        values = column.flatten()
        _require_whole(where, values, column, first)
        return np.array(values.to_numpy(zero_copy_only=False)).reshape(-1, d)  # a copy: arrow's memory is read-only

    return convert


def _whole_numbers(where: str) -> Convert:
    """Whole numbers as rows (m, 1)."""

    def convert(column: Any, first: int) -> NumpyArray:
        _require_whole(where, column, column, first)
        return np.array(column.to_numpy(zero_copy_only=False))[:, None]

    return convert


def _numbered(where: str) -> Convert:
    """Texts as rows (m, 1): the number of texts that appeared before it for the first time."""
    numbers: dict[str, int] = {}

    def convert(column: Any, first: int) -> NumpyArray:
        _require_whole(where, column, column, first)
        places = np.array(column.indices.to_numpy(zero_copy_only=False), dtype=np.int64)  # (m,) into the dictionary
        used, seen = np.unique(places, return_index=True)
        known = np.zeros(len(column.dictionary), dtype=np.int64)
        for place in used[np.argsort(seen)].tolist():
            known[place] = numbers.setdefault(column.dictionary[place].as_py(), len(numbers))
        return known[places][:, None]

    return convert


def _require_whole(where: str, values: Any, column: Any, first: int) -> None:
    if values.null_count:
        raise InputError(f"{where} lacks values among rows {first} to {first + len(column) - 1}; drop such rows")


_FORMATS: dict[str, Callable[[_File], dict[str, _Array]]] = {
    ".npy": _open_npy,
    ".npz": _open_npz,
    ".safetensors": _open_safetensors,
    ".parquet": _open_parquet,
    ".pt": _open_torch,
    ".pth": _open_torch,
    ".bin": _open_torch,
}
