"""Weights on disk, without loading them: which files hold them, whether they are complete, and their digest."""

from __future__ import annotations

import hashlib
import json
import math
import mmap
import re
import struct
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from anisoscope.errors import InputError
from anisoscope.store.files import parse_errors, parse_json, read_json, wrong_content

PICKLES = (".bin", ".pt", ".pth", ".ckpt")

# A digest reads this many evenly spaced blocks of a large tensor. Training changes nearly every entry, so weights that
# differ at all differ there, and the digest of a 100 GB checkpoint takes seconds.
_BLOCKS, _BLOCK_BYTES = 16, 4096

_SAFETENSORS_NAME = re.compile(r"(adapter_model|model(-\d+-of-\d+)?)\.safetensors")
_PICKLE_NAME = re.compile(r"(adapter_model|pytorch_model(-\d+-of-\d+)?)\.bin")
_HEADER_LIMIT = 100_000_000  # bytes: the limit of the safetensors library
_INDEX = "model.safetensors.index.json"
_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
}
_CODES = {dtype: code for code, dtype in _DTYPES.items()}


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in a safetensors file: its dtype as written in the header, its shape, and the offsets of its bytes."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


def weight_names(names: Iterable[str], folder: str, *, allow_pickle: bool) -> list[str]:
    """Select the weights among a folder's file names: safetensors first, pickles only if allowed.

    Raises:
        InputError: if there are no weights, or only pickles and they are not allowed. `folder` is named in the message.

    >>> weight_names(["config.json", "pytorch_model.bin", "model.safetensors"], "gpt2", allow_pickle=True)
    ['model.safetensors']
    """
    ordered = sorted(names)
    if safe := [name for name in ordered if _SAFETENSORS_NAME.fullmatch(name)]:
        return safe
    pickled = [name for name in ordered if _PICKLE_NAME.fullmatch(name)]
    if pickled and not allow_pickle:
        raise pickle_refused(f"{folder} ({', '.join(pickled)})")
    if not pickled:
        raise InputError(f"{folder} has no model.safetensors, only {_some(ordered)}. Save the weights there.")
    return pickled


def pickle_refused(source: str) -> InputError:
    """The error for weights that are stored as a pickle."""
    return InputError(
        f"The weights of {source} are a pickle, which can run any code when opened. "
        "Convert them to safetensors, or pass allow_pickle=True (--allow-pickle) if you trust the author."
    )


def weight_files(path: Path, *, allow_pickle: bool = False) -> list[Path]:
    """List the files that hold the weights of a folder; a file stands for itself."""
    if path.is_file():
        if path.suffix.lower() in PICKLES and not allow_pickle:
            raise pickle_refused(str(path))
        return [path]
    if path.exists() and not path.is_dir():
        raise InputError(f"{path} is neither a regular file nor a folder. Use one that holds a model.")
    names = [entry.name for entry in path.iterdir() if entry.is_file()]
    _require_shards(path)
    return [path / name for name in weight_names(names, str(path), allow_pickle=allow_pickle)]


def stored_tensors(file: Path) -> dict[str, StoredTensor]:
    """Read the header of a safetensors file: its tensors by name.

    `safetensors.safe_open` gives neither the offsets, which the digest needs, nor how much of a truncated file is
    missing.

    Raises:
        InputError: if the file is truncated or damaged.
    """
    size = file.stat().st_size
    with file.open("rb") as stream:
        start = stream.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else -1
        if not 0 <= length <= min(size - 8, _HEADER_LIMIT):
            if reason := wrong_content(file):
                raise InputError(f"{file}: {reason}")
            raise InputError(f"{file} is incomplete: its header is truncated. Copy or save it again.")
        with parse_errors(file, "copy or save it again"):
            header = parse_json(stream.read(length))
            header.pop("__metadata__", None)
            tensors = {str(name): _stored(row, 8 + length) for name, row in header.items()}
    end = max((tensor.end for tensor in tensors.values()), default=0)
    if end > size:
        raise InputError(f"{file} is incomplete: it should have {end:,} bytes and has {size:,}. Copy or save it again.")
    return tensors


def _stored(row: Mapping[str, Any], offset: int) -> StoredTensor:
    """Convert an entry of the header; raise ValueError if no tensor can be like that."""
    dtype, shape, (begin, end) = row["dtype"], tuple(row["shape"]), row["data_offsets"]
    if not isinstance(dtype, str) or not all(type(x) is int and x >= 0 for x in (*shape, begin, end)) or begin > end:
        raise ValueError(f"invalid tensor {dtype!r} {shape!r} between {begin!r} and {end!r}")
    return StoredTensor(dtype, shape, offset + begin, offset + end)


def weights_problem(path: Path) -> str | None:
    """Describe what is missing from a checkpoint's weights (a shard, the end of a file); None if they are complete."""
    try:
        for file in weight_files(path, allow_pickle=True):
            if file.suffix == ".safetensors":
                stored_tensors(file)
    except (InputError, OSError) as error:
        return str(error)
    return None


def _require_shards(folder: Path) -> None:
    """Check that the index of a sharded model names only files of its folder, and that all of them exist."""
    index = folder / _INDEX
    if not index.is_file() or (folder / "model.safetensors").is_file():
        return
    with parse_errors(index, "copy or save it again"):
        named = sorted({str(name) for name in read_json(index)["weight_map"].values()})
    if foreign := [name for name in named if not _SAFETENSORS_NAME.fullmatch(name)]:
        raise InputError(f"{index} names {_some(foreign)}, which is not a weights file of this folder. Save it again.")
    if missing := [name for name in named if not (folder / name).is_file()]:
        raise InputError(f"{_INDEX} names {_some(missing)}, which does not exist. Copy or save {folder} again.")


def stored_dtype(files: Iterable[Path]) -> torch.dtype | None:
    """Return the dtype of most numbers in safetensors files; None for other files and for quantised weights."""
    numbers: Counter[str] = Counter()
    for file in files:
        if file.suffix != ".safetensors":
            return None
        for tensor in stored_tensors(file).values():
            numbers[tensor.dtype] += math.prod(tensor.shape)
    return _DTYPES.get(numbers.most_common(1)[0][0]) if numbers else None


def weights_digest(source: Path | str | torch.nn.Module) -> str:
    """Compute a digest of weights: equal for equal weights, different after a training step.

    It covers names, shapes, dtypes and at most 64 kB of each tensor. Other files than safetensors count as one tensor.

    Args:
        source: a folder, a file or a module.
    """
    digest = hashlib.blake2b(digest_size=16)
    if isinstance(source, torch.nn.Module):
        parts = _module_parts(source)
    else:
        parts = _file_parts(weight_files(Path(source), allow_pickle=True))
    for title, blocks in parts:
        digest.update(title.encode())
        for block in blocks:
            digest.update(block)
    return digest.hexdigest()


def _module_parts(module: torch.nn.Module) -> Iterator[tuple[str, list[bytes]]]:
    for name, tensor in sorted(module.state_dict().items()):
        flat = tensor.detach().reshape(-1)  # (numel,)
        size = flat.element_size()
        spans = _spans(len(flat) * size)
        blocks = [
            flat[begin // size : -(-end // size)].cpu().view(torch.uint8).numpy().tobytes() for begin, end in spans
        ]
        yield _title(name, _CODES.get(tensor.dtype, str(tensor.dtype)), tuple(tensor.shape)), blocks


def _file_parts(files: list[Path]) -> Iterator[tuple[str, list[bytes]]]:
    """Tensors in the order of their names, whichever shard holds them: resharding does not change the digest."""
    tensors: list[tuple[str, Path, StoredTensor]] = []
    for file in files:
        if file.suffix == ".safetensors":
            tensors += [(name, file, tensor) for name, tensor in stored_tensors(file).items()]
        else:
            size = file.stat().st_size
            tensors.append((file.suffix, file, StoredTensor("bytes", (size,), 0, size)))
    for name, file, tensor in sorted(tensors, key=lambda entry: entry[0]):
        length = tensor.end - tensor.begin
        blocks: list[bytes] = []
        if length:
            with file.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as view:
                blocks = [view[tensor.begin + begin : tensor.begin + end] for begin, end in _spans(length)]
        yield _title(name, tensor.dtype, tensor.shape), blocks


def _title(name: str, dtype: str, shape: tuple[int, ...]) -> str:
    return json.dumps([name, dtype, shape])


def _spans(length: int) -> list[tuple[int, int]]:
    """Which bytes of a tensor of `length` bytes are read: all, or 16 blocks of 4 kB including the first and last."""
    if length <= _BLOCKS * _BLOCK_BYTES:
        return [(0, length)]
    # Multiples of 16 bytes, so that no block begins inside a number.
    starts = [(length - _BLOCK_BYTES) * i // (_BLOCKS - 1) // 16 * 16 for i in range(_BLOCKS)]
    return [(start, start + _BLOCK_BYTES) for start in starts]


def _some(names: list[str], limit: int = 6) -> str:
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return (", ".join(names[:limit]) or "nothing") + more
