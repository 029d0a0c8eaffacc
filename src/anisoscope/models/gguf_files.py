"""GGUF files: facts from the header, and reading a file once where transformers would read it three times."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO

from anisoscope.errors import InputError
from anisoscope.extras import needs
from anisoscope.store.files import wrong_content

# Bytes of a value by its type number; 8 is a string, 9 an array.
_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_STRING, _ARRAY, _UINT32, _BOOL = 8, 9, 4, 7
_MAX_KEY = 1 << 16  # bytes: what the format allows for a key


@contextmanager
def read_once(file: Path | None) -> Iterator[None]:
    """Read a GGUF file once while transformers opens it; None, or a file of another format, changes nothing.

    Transformers reads the file for the configuration, the weights and the tokenizer, each time with one memory-mapped
    array per word of the vocabulary, and it makes the map of tensor names once per module. For SmolLM2-135M this was
    20 of 26 CPU seconds. Weights are unpacked as before, so they are equal to the bit.
    """
    if file is None or file.suffix != ".gguf":
        yield
        return
    with needs("hf", "a GGUF file"):
        import gguf

    library: Any = gguf
    originals = {name: getattr(library, name) for name in ("GGUFReader", "get_tensor_name_map")}
    library.GGUFReader = cache(_plain_reader(originals["GGUFReader"]))
    library.get_tensor_name_map = cache(originals["get_tensor_name_map"])
    try:
        yield
    finally:
        for name, original in originals.items():
            setattr(library, name, original)


def _plain_reader(reader: Any) -> Any:
    """Return a reader that sees the mapped file as a plain array: slicing a `numpy.memmap` takes ten times as long."""
    import numpy as np

    class PlainReader(reader):  # type: ignore[misc]
        def __setattr__(self, name: str, value: Any) -> None:
            super().__setattr__(name, value.view(np.ndarray) if isinstance(value, np.memmap) else value)

    return PlainReader


def tensors_in_gguf(file: Path) -> int:
    """The number of tensors of a GGUF file, after a check that its header claims no more layers than that.

    Call it inside `read_once`: the file is then read here and not again by transformers.

    Raises:
        InputError: If the header claims more layers than there are tensors, which would take hours to build.
    """
    import gguf

    reader: Any = gguf.GGUFReader(str(file))
    tensors = len(reader.tensors)
    for name, entry in reader.fields.items():
        if name.endswith("block_count") and entry.data and int(entry.parts[entry.data[0]][0]) > tensors:
            layers = int(entry.parts[entry.data[0]][0])
            raise InputError(f"{file} has {name} = {layers:,}, but {tensors:,} tensors. Copy or download it again.")
    return tensors


def gguf_quantization(file: Path) -> str | None:
    """Return how most weights of a GGUF file are stored, such as "Q4_1"; None if the file does not record it.

    `gguf.GGUFReader` is not used because it builds arrays for every word of the vocabulary first: 7 seconds and 500 MB
    for a file of 340 MB with 128,000 tokens, where this function takes less than a millisecond.
    """
    with needs("hf", "a GGUF file"):
        from gguf import LlamaFileType

    with _header(file) as stream:
        number = _entry(stream, b"general.file_type", _UINT32, "<I")
        return None if number is None else LlamaFileType(number).name.removeprefix("MOSTLY_").removeprefix("ALL_")


def gguf_begins_texts(file: Path) -> bool:
    """Whether the header of a GGUF file asks for the token that begins every text.

    The tokenizer that transformers makes from the file leaves it out, and Gemma 3 then has 4.7 nats per token, not 2.1.
    """
    with _header(file) as stream:
        return bool(_entry(stream, b"tokenizer.ggml.add_bos_token", _BOOL, "<?"))


@contextmanager
def _header(file: Path) -> Iterator[BinaryIO]:
    """Open a GGUF file behind its first four bytes; a header that cannot be read becomes an InputError."""
    with file.open("rb") as stream:
        if stream.read(4) != b"GGUF":
            reason = wrong_content(file)
            raise InputError(f"{file}: {reason}" if reason else f"{file} is not a GGUF file. Check the path.")
        try:
            yield stream
        except (struct.error, ValueError, OverflowError, OSError):
            raise InputError(f"The header of {file} cannot be read. Copy or download the file again.") from None


def _entry(stream: BinaryIO, name: bytes, wanted: int, form: str) -> int | None:
    """Return a number of the header by its name and type; None if it is not there."""
    _version, _tensors, entries = struct.unpack("<IQQ", stream.read(20))
    for _ in range(entries):
        length = _number(stream, "<Q")
        if length > _MAX_KEY:
            raise ValueError(f"a key of {length} bytes")
        key = stream.read(length)
        kind = _number(stream, "<I")
        if key == name and kind == wanted:
            return _number(stream, form)
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
