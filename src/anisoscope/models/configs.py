"""What a config.json may ask for before anything is built from it: no code from elsewhere, no endless model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from anisoscope.errors import InputError
from anisoscope.models.weight_files import stored_tensors
from anisoscope.store.files import read_json, understood

# More layers than this, and than there are tensors: a crafted number that would be built for hours.
_MANY_LAYERS = 1024
_MANY_POSITIONS = 1 << 24
_CONFIG_LIMIT = 16 << 20


def require_plain_config(folder: Path, files: Sequence[Path], *, trusted: bool) -> None:
    """Refuse a configuration that would fetch and run code unasked, loads other weights, or is far too large to build.

    Attention kernels are compiled code that transformers downloads when `attn_implementation` names a repository,
    whatever `trust_remote_code` says.
    """
    path = folder / "config.json"
    with understood(path, "copy or save it again"):
        values = read_json(path, _CONFIG_LIMIT)
        found = list(_entries(values))
    tensors = sum(len(stored_tensors(file)) for file in files if file.suffix == ".safetensors")
    for name, value in found:
        if "implementation" in name and isinstance(value, str) and "/" in value and not trusted:
            raise InputError(
                f"{path} asks for code of {value}: trust_remote_code=True (--trust-remote-code) if you trust its author"
            )
        if name == "transformers_weights" and value not in [None, *(file.name for file in files)]:
            raise InputError(f"{path} names {value!r} as its weights, which is no weights file of this folder")
        if "position" in name and type(value) is int and value > _MANY_POSITIONS:
            raise InputError(f"{path} says {name} {value:,}, which no model has; copy it again")
        if "layer" in name and type(value) is int and value > max(_MANY_LAYERS, tensors):
            raise InputError(f"{path} says {name} {value:,}, and the weights have {tensors:,} tensors; copy it again")


def _entries(values: Any) -> Iterator[tuple[str, Any]]:
    """All named values of nested objects and lists, those inside a list under the list's name."""
    waiting: list[tuple[str, Any]] = [("", values)]
    while waiting:
        name, value = waiting.pop()
        if isinstance(value, dict):
            waiting += [(str(key), inner) for key, inner in value.items()]
        elif isinstance(value, list):
            waiting += [(name, inner) for inner in value]
        else:
            yield name, value
