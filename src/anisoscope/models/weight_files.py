"""Weights on disk, without loading them: which files hold them, whether they are whole, and their digest."""

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
from anisoscope.store.files import impostor, parse_json, read_json, understood

PICKLES = (".bin", ".pt", ".pth", ".ckpt")

# A digest reads this many evenly spaced blocks of a large tensor: training moves nearly every entry, so weights that
# differ at all differ there, and a checkpoint of 100 GB is told apart in seconds.
_BLOCKS, _BLOCK_BYTES = 16, 4096

_SAFE = re.compile(r"(adapter_model|model(-\d+-of-\d+)?)\.safetensors")
_PICKLED = re.compile(r"(adapter_model|pytorch_model(-\d+-of-\d+)?)\.bin")
_HEADER_LIMIT = 100_000_000  # bytes: what the library itself allows
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
    """A tensor in a safetensors file: its dtype as the format spells it, its shape, and where its bytes are."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


def weight_names(names: Iterable[str], where: str, *, allow_pickle: bool) -> list[str]:
    """Which of a folder's files hold its weights: safetensors first, pickles only when allowed.

    >>> weight_names(["config.json", "pytorch_model.bin", "model.safetensors"], "here", allow_pickle=True)
    ['model.safetensors']
    """
    ordered = sorted(names)
    if safe := [name for name in ordered if _SAFE.fullmatch(name)]:
        return safe
    pickled = [name for name in ordered if _PICKLED.fullmatch(name)]
    if pickled and not allow_pickle:
        raise pickle_refused(f"{where} ({', '.join(pickled)})")
    if not pickled:
        raise InputError(f"no weights in {where}: it has no model.safetensors; seen: {_some(ordered)}")
    return pickled


def pickle_refused(where: str) -> InputError:
    return InputError(
        f"the weights of {where} are a pickle, which can run any code when it is opened; "
        "convert them to safetensors, or allow_pickle=True (--allow-pickle) if you trust their author"
    )


def weight_files(place: Path, *, allow_pickle: bool = False) -> list[Path]:
    """The files that hold a folder's weights, or the file itself."""
    if place.is_file():
        if place.suffix.lower() in PICKLES and not allow_pickle:
            raise pickle_refused(str(place))
        return [place]
    names = [path.name for path in place.iterdir() if path.is_file()]
    _require_shards(place)
    return [place / name for name in weight_names(names, str(place), allow_pickle=allow_pickle)]


def stored_tensors(file: Path) -> dict[str, StoredTensor]:
    """The tensors of a safetensors file by name, from its header; a file that is cut short is an InputError."""
    size = file.stat().st_size
    with file.open("rb") as stream:
        start = stream.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else -1
        if not 0 <= length <= min(size - 8, _HEADER_LIMIT):
            if seen := impostor(file):
                raise InputError(f"{file}: {seen}")
            raise InputError(f"{file} is not whole: its header is cut short; copy or save it again")
        with understood(file, "copy or save it again"):
            header = parse_json(stream.read(length))
            header.pop("__metadata__", None)  # which only an object has
            tensors = {str(name): _stored(row, 8 + length) for name, row in header.items()}
    end = max((tensor.end for tensor in tensors.values()), default=0)
    if end > size:
        raise InputError(f"{file} is not whole: it promises {end:,} bytes and has {size:,}; copy or save it again")
    return tensors


def _stored(row: Mapping[str, Any], offset: int) -> StoredTensor:
    """A tensor as the header describes it; what no tensor can be is a ValueError."""
    dtype, shape, (begin, end) = row["dtype"], tuple(row["shape"]), row["data_offsets"]
    if not isinstance(dtype, str) or not all(type(x) is int and x >= 0 for x in (*shape, begin, end)) or begin > end:
        raise ValueError(f"no tensor is {dtype!r} {shape!r} between {begin!r} and {end!r}")
    return StoredTensor(dtype, shape, offset + begin, offset + end)


def weights_problem(place: Path) -> str | None:
    """What is missing or cut short in a checkpoint's weights (a shard that the index names, a file's end), or None."""
    try:
        for file in weight_files(place, allow_pickle=True):
            if file.suffix == ".safetensors":
                stored_tensors(file)
    except (InputError, OSError) as error:
        return str(error)
    return None


def _require_shards(folder: Path) -> None:
    """The index of a model in several files may name files of its own folder only, and all of them must be there."""
    index = folder / _INDEX
    if not index.is_file() or (folder / "model.safetensors").is_file():
        return
    with understood(index, "copy or save it again"):
        named = sorted({str(name) for name in read_json(index)["weight_map"].values()})
    if foreign := [name for name in named if not _SAFE.fullmatch(name)]:
        raise InputError(f"{index} names {_some(foreign)}, which is no safetensors file of this folder; save it again")
    if missing := [name for name in named if not (folder / name).is_file()]:
        raise InputError(f"{_INDEX} names {_some(missing)}, which is not there; copy or save {folder} again")


def stored_dtype(files: Iterable[Path]) -> torch.dtype | None:
    """The dtype that most numbers of safetensors files are stored in; None for other files and quantised weights."""
    numbers: Counter[str] = Counter()
    for file in files:
        if file.suffix != ".safetensors":
            return None
        for tensor in stored_tensors(file).values():
            numbers[tensor.dtype] += math.prod(tensor.shape)
    return _DTYPES.get(numbers.most_common(1)[0][0]) if numbers else None


def weights_digest(source: Path | str | torch.nn.Module) -> str:
    """A digest of tensor names, shapes, dtypes and sampled bytes: equal for equal weights, different after a step.

    Cheap: 64 kB of each tensor are read, all of it when it is smaller. Files that are not safetensors count as one
    tensor. Example: two checkpoints with one digest hold the same weights under two names.
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
    """Tensors in the order of their names, whichever shard holds them: resharding leaves the digest as it is."""
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
    """Which bytes of a tensor of `length` bytes are read: all, or 16 blocks of 4 kB, the first and last among them."""
    if length <= _BLOCKS * _BLOCK_BYTES:
        return [(0, length)]
    # Multiples of 16 bytes, so that a block never begins inside a number.
    starts = [(length - _BLOCK_BYTES) * i // (_BLOCKS - 1) // 16 * 16 for i in range(_BLOCKS)]
    return [(start, start + _BLOCK_BYTES) for start in starts]


def _some(names: list[str], most: int = 6) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return (", ".join(names[:most]) or "nothing") + more
