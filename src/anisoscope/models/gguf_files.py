"""Read facts about a GGUF file from its header."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import BinaryIO

from anisoscope.errors import InputError
from anisoscope.store.files import impostor

# Bytes of a value by its type number; 8 is a string, 9 an array.
_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_STRING, _ARRAY, _UINT32 = 8, 9, 4
_MAX_KEY = 1 << 16  # bytes: what the format allows for a key


def gguf_quantization(file: Path) -> str | None:
    """Return how most weights of a GGUF file are stored, such as "Q4_1"; None if the file does not record it.

    `gguf.GGUFReader` is not used because it builds arrays for every word of the vocabulary first: 7 seconds and 500 MB
    for a file of 340 MB with 128,000 tokens, where this function takes less than a millisecond.
    """
    from gguf import LlamaFileType

    with file.open("rb") as stream:
        if stream.read(4) != b"GGUF":
            reason = impostor(file)
            raise InputError(f"{file}: {reason}" if reason else f"{file} is not a GGUF file. Check the path.")
        try:
            number = _file_type(stream)
            return None if number is None else LlamaFileType(number).name.removeprefix("MOSTLY_").removeprefix("ALL_")
        except (struct.error, ValueError, OverflowError, OSError):
            raise InputError(f"The header of {file} cannot be read. Copy or download the file again.") from None


def _file_type(stream: BinaryIO) -> int | None:
    _version, _tensors, entries = struct.unpack("<IQQ", stream.read(20))
    for _ in range(entries):
        length = _number(stream, "<Q")
        if length > _MAX_KEY:
            raise ValueError(f"a key of {length} bytes")
        key = stream.read(length)
        kind = _number(stream, "<I")
        if key == b"general.file_type" and kind == _UINT32:
            return _number(stream, "<I")
        _skip(stream, kind)
    return None


def _skip(stream: BinaryIO, kind: int) -> None:
    if kind == _STRING:
        stream.seek(_number(stream, "<Q"), 1)
    elif kind == _ARRAY:
        inner, length = _number(stream, "<I"), _number(stream, "<Q")
        if inner in _SIZES:
            stream.seek(_SIZES[inner] * length, 1)
        else:
            if inner != _STRING:
                raise ValueError("arrays of arrays are not supported")
            for _ in range(length):
                _skip(stream, inner)
    elif kind in _SIZES:
        stream.seek(_SIZES[kind], 1)
    else:
        raise ValueError(f"unknown type {kind}")


def _number(stream: BinaryIO, form: str) -> int:
    return int(struct.unpack(form, stream.read(struct.calcsize(form)))[0])
