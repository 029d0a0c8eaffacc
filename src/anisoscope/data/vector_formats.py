"""Readers of vector files: .npy, .npz, .safetensors and torch files. Nothing is ever unpickled.

Each `open_…` function returns the arrays of a file by name. If a reader of numpy, safetensors or
torch is not used, a comment names the guarantee it lacks.
"""

from __future__ import annotations

import io
import math
import os
import pickle
import warnings
import zipfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor

from anisoscope.errors import InputError
from anisoscope.models.weight_files import StoredTensor, stored_tensors
from anisoscope.store.files import parse_errors

Stream = Callable[[int], Iterator[Tensor]]  # maximum rows per batch -> tensors (m, d), from the first row
NumpyArray = np.ndarray[Any, Any]

_NPY_HEADER = 1 << 16  # bytes
_DAMAGED = "The file is truncated or damaged; save it again."
_SAFETENSORS_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U64": torch.uint64,
    "U32": torch.uint32,
    "U16": torch.uint16,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}


@dataclass(frozen=True)
class StoredArray:
    """An array of a file; rows are its last dimension (a 1-D array has rows of one number).

    `problem` completes the sentence "<name> …" and explains why the array cannot be used.
    """

    shape: tuple[int, ...]
    dtype: str
    stream: Stream = field(repr=False)
    problem: str | None = None


@dataclass(frozen=True)
class VectorFile:
    """A file as it was when it was opened."""

    path: Path
    size: int
    stamp: tuple[int, int, int]  # inode, size, time of the last change

    @contextmanager
    def open(self) -> Iterator[IO[bytes]]:
        """Open the file again; raise if it has changed, because a map of a truncated file would kill the process."""
        with self.path.open("rb") as file:
            if file_stamp(os.fstat(file.fileno())) != self.stamp:
                raise InputError(f"{self.path} has changed since it was opened. Open it again.")
            yield file


def file_stamp(status: os.stat_result) -> tuple[int, int, int]:
    return status.st_ino, status.st_size, status.st_mtime_ns


def reading(path: Path) -> AbstractContextManager[None]:
    """Turn any error of a parser into an InputError that names the file."""
    return parse_errors(path, "save the vectors again")


def no_rows(rows: int) -> Iterator[Tensor]:
    """The stream of an array that cannot be used."""
    return iter(())


# .npy


def open_npy(file: VectorFile) -> dict[str, StoredArray]:
    with file.open() as opened:
        return {"": _npy_array(file, 0, file.size, opened.read(_NPY_HEADER))}


def _npy_array(file: VectorFile, offset: int, end: int, start: bytes) -> StoredArray:
    """The .npy array between two offsets of `file`; `start` holds its first bytes."""
    shape, fortran, stored, length = _npy_header(start)
    dtype = stored.newbyteorder("=").name
    needed, available = math.prod(shape) * stored.itemsize, min(end, file.size) - offset - length
    problem = _dtype_problem(stored)
    if problem is None and needed > available:
        problem = f"should have {needed:,} bytes for shape {shape} but has {max(0, available):,}. {_DAMAGED}"
    elif problem is None and fortran and len(shape) > 2:
        problem = "is in Fortran order with more than two dimensions. Save it in C order."
    if problem is not None:
        return StoredArray(shape, dtype, no_rows, problem)
    native = np.dtype(np.float64) if stored.type is np.longdouble else stored.newbyteorder("=")

    def stream(rows: int) -> Iterator[Tensor]:
        for part in _mapped_rows(file, offset + length, shape, stored, rows, order="F" if fortran else "C"):
            yield torch.from_numpy(part.astype(native, copy=False))

    return StoredArray(shape, dtype, stream)


def _npy_header(start: bytes) -> tuple[tuple[int, ...], bool, np.dtype[Any], int]:
    """Parse the header of a .npy file: shape, Fortran order, dtype, length in bytes.

    Only the first bytes are parsed. `np.load` reads as many bytes as the header claims to have, up to 4 GB.
    """
    head = io.BytesIO(start)
    version = np.lib.format.read_magic(head)
    readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    if version not in readers:
        raise ValueError(f"version {version} of the .npy format does not hold plain numbers")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # on headers written by Python 2, and on damaged ones
        shape, fortran, dtype = readers[version](head)
    if any(type(size) is not int or size < 0 for size in shape):
        raise ValueError(f"its shape is {shape}")
    return shape, fortran, dtype, head.tell()


def _dtype_problem(dtype: np.dtype[Any]) -> str | None:
    if dtype.hasobject:
        return "holds Python objects, and reading them could run code. Save plain numbers."
    if dtype.kind not in "fiub" or dtype.subdtype is not None:
        hint = " For bfloat16 use .safetensors." if dtype == np.dtype("V2") else ""
        return f"holds {dtype}, not plain numbers.{hint}"
    return None


def _mapped_rows(
    file: VectorFile, offset: int, shape: tuple[int, ...], stored: np.dtype[Any], rows: int, order: Any = "C"
) -> Iterator[NumpyArray]:
    """Yield copies (m, d) of the rows of an array that lies at `offset` of a file.

    The map is read-only, so the system does not count it as memory and a file may be larger than memory. torch needs
    writable arrays, hence the copies. `np.load(mmap_mode="r")` does the same for .npy but not inside .npz.
    """
    n, d = (math.prod(shape[:-1]), shape[-1]) if len(shape) > 1 else (shape[0], 1)
    with reading(file.path), file.open() as opened:
        whole = np.memmap(opened, stored, mode="r", offset=offset, shape=(n, d), order=order)  # (n, d)
        for first in range(0, n, rows):
            yield np.array(whole[first : first + rows], order="C")


# .npz: a zip of .npy files, stored (mapped in place) or deflated (streamed). `np.load` would read a member whole.


def open_npz(file: VectorFile) -> dict[str, StoredArray]:
    with file.open() as opened, zipfile.ZipFile(opened) as archive:
        members = [member for member in archive.infolist() if member.filename.endswith(".npy")]
        return {member.filename.removesuffix(".npy"): _npz_member(file, archive, member) for member in members}


def _npz_member(file: VectorFile, archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> StoredArray:
    if member.flag_bits & 1 or member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        problem = "is encrypted or compressed in an unsupported way. Save it with numpy.savez."
        return StoredArray((), "unknown", no_rows, problem)
    with archive.open(member) as opened:
        start = opened.read(_NPY_HEADER)
    if member.compress_type == zipfile.ZIP_STORED:
        offset = _member_offset(file, member)
        return _npy_array(file, offset, offset + member.file_size, start)
    return _deflated(file, member, start)


def _member_offset(file: VectorFile, member: zipfile.ZipInfo) -> int:
    """Offset of a stored member's bytes: after its local header of 30 bytes, its name and its extra field."""
    with file.open() as opened:
        opened.seek(member.header_offset)
        local = opened.read(30)
    return member.header_offset + 30 + int.from_bytes(local[26:28], "little") + int.from_bytes(local[28:30], "little")


def _deflated(file: VectorFile, member: zipfile.ZipInfo, start: bytes) -> StoredArray:
    """A compressed member, decompressed again on each pass."""
    shape, fortran, stored, length = _npy_header(start)
    problem = _dtype_problem(stored)
    if fortran and len(shape) > 1:
        problem = "is compressed and in Fortran order. Save it with numpy.ascontiguousarray or numpy.savez."
    if math.prod(shape) * stored.itemsize > member.file_size - length:
        problem = f"has shape {shape}, which does not fit into its {member.file_size:,} bytes. {_DAMAGED}"
    n, d = (math.prod(shape[:-1]), shape[-1]) if len(shape) > 1 else (*shape, 1, 1)[:2]
    native = np.dtype(np.float64) if stored.type is np.longdouble else stored.newbyteorder("=")

    def stream(rows: int) -> Iterator[Tensor]:
        with reading(file.path), file.open() as raw, zipfile.ZipFile(raw) as archive, archive.open(member) as opened:
            opened.read(length)
            for first in range(0, n, rows):
                window = (min(rows, n - first), d)
                size = math.prod(window) * stored.itemsize
                data = bytearray(opened.read(size))
                if len(data) < size:
                    raise InputError(f"{file.path}: {member.filename} ends too early. {_DAMAGED}")
                part = np.frombuffer(data, stored).reshape(window)  # (m, d)
                yield torch.from_numpy(part.astype(native, copy=False))

    return StoredArray(shape, stored.newbyteorder("=").name, stream, problem)


# .safetensors


def open_safetensors(file: VectorFile) -> dict[str, StoredArray]:
    """The tensors of a safetensors file, mapped in place.

    `safe_open` checks the header (sizes, offsets, overlaps) but does not read the rows: its slices for torch map the
    file privately, which the system refuses for files larger than memory, and those for numpy have no bfloat16.
    """
    from safetensors import safe_open

    with safe_open(file.path, framework="np"):
        pass
    return {name: _safetensor(file, tensor) for name, tensor in stored_tensors(file.path).items()}


def _safetensor(file: VectorFile, tensor: StoredTensor) -> StoredArray:
    dtype = _SAFETENSORS_DTYPES.get(tensor.dtype)
    if dtype is None:
        return StoredArray(tensor.shape, tensor.dtype, no_rows, f"holds {tensor.dtype}, which cannot be measured.")
    width = tensor.shape[-1] if len(tensor.shape) > 1 else 1
    as_bytes = (math.prod(tensor.shape) // max(1, width), width * dtype.itemsize)

    def stream(rows: int) -> Iterator[Tensor]:
        for part in _mapped_rows(file, tensor.begin, as_bytes, np.dtype(np.uint8), rows):
            yield torch.from_numpy(part).view(dtype)  # (m, d)

    return StoredArray(tensor.shape, dtype_name(dtype), stream)


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


# .pt, .pth, .bin: files of torch.save, opened without running the code they may contain.


def open_torch(file: VectorFile) -> dict[str, StoredArray]:
    _require_uncompressed(file)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            loaded = torch.load(file.path, map_location="cpu", mmap=True, weights_only=True)
    except pickle.UnpicklingError as error:
        raise InputError(
            f"{file.path} is damaged, or contains code that would run when opened. Save the tensors alone "
            "(torch.save(tensor, path)) or as .safetensors."
        ) from error
    except RuntimeError as error:
        if "mmap can only be used" in str(error):
            raise InputError(
                f"{file.path} is damaged or in the format used before torch 1.6. Save it again with torch.save."
            ) from error
        raise
    return {name: _torch_array(tensor) for name, tensor in _tensors_in(loaded).items()}


def _require_uncompressed(file: VectorFile) -> None:
    """Refuse compressed members: torch.save never writes them, and torch.load would decompress them into memory."""
    with file.open() as opened:
        if not zipfile.is_zipfile(opened):
            return
        with zipfile.ZipFile(opened) as archive:
            members = archive.infolist()
    if any(m.compress_type != zipfile.ZIP_STORED for m in members) or sum(m.file_size for m in members) > file.size:
        raise InputError(f"{file.path} is damaged or was not written by torch.save. Save the tensors again.")


def _tensors_in(loaded: object) -> dict[str, Tensor]:
    """All tensors of nested dicts and lists by their path: {"a": {"b": [t]}} gives a.b.0."""
    tensors: dict[str, Tensor] = {}
    visited: set[int] = set()  # a crafted pickle may contain itself, or the same list a billion times
    remaining: list[tuple[str, object]] = [("", loaded)]
    while remaining:
        name, value = remaining.pop()
        if isinstance(value, Tensor):
            tensors[name] = value.detach()
        elif isinstance(value, dict | list | tuple) and id(value) not in visited:
            visited.add(id(value))
            items = value.items() if isinstance(value, dict) else enumerate(value)
            remaining += [(f"{name}.{key}" if name else str(key), part) for key, part in reversed(list(items))]
    return tensors


def _torch_array(tensor: Tensor) -> StoredArray:
    shape, dtype = tuple(tensor.shape), dtype_name(tensor.dtype)
    problem = None
    if tensor.layout != torch.strided or tensor.device.type != "cpu" or tensor.is_quantized or tensor.is_complex():
        problem = f"is {dtype}, {tensor.layout}, on {tensor.device}. Save it as a dense tensor of plain numbers."
    elif tensor.untyped_storage().nbytes() < tensor.numel() * tensor.element_size():
        problem = f"has shape {shape}, which is more than the file holds. Save it with .contiguous()."
    elif tensor.ndim > 2 and not tensor.is_contiguous():
        problem = "has more than two dimensions and is not contiguous. Save it with .contiguous()."
    if problem or tensor.ndim == 0:
        return StoredArray(shape, dtype, no_rows, problem)
    table = tensor.flatten(0, -2) if tensor.ndim > 1 else tensor[:, None]  # (n, d), a view
    return StoredArray(shape, dtype, lambda rows: (table[i : i + rows] for i in range(0, len(table), rows)))
