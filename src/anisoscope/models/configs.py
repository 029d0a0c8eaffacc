"""Check a config.json before a model is built from it: no code from elsewhere, no absurd sizes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from anisoscope.errors import InputError
from anisoscope.models.weight_files import stored_tensors
from anisoscope.store.files import parse_errors, read_json

# More layers than this, and more than there are tensors: a crafted number that would take hours to build.
_MAX_LAYERS = 1024
_MAX_POSITIONS = 1 << 24
_CONFIG_LIMIT = 16 << 20  # bytes


def require_safe_config(folder: Path, files: Sequence[Path], *, trusted: bool) -> None:
    """Refuse a configuration that would run remote code, load other weights, or is far too large to build.

    transformers downloads compiled attention kernels if `attn_implementation` names a repository, whatever the value of
    `trust_remote_code`.

    Args:
        folder: the model's folder.
        files: its weights.
        trusted: whether the user allowed remote code.
    """
    path = folder / "config.json"
    with parse_errors(path, "copy or save it again"):
        values = read_json(path, _CONFIG_LIMIT)
        entries = list(_entries(values))
    tensors = sum(len(stored_tensors(file)) for file in files if file.suffix == ".safetensors")
    for name, value in entries:
        if "implementation" in name and isinstance(value, str) and "/" in value and not trusted:
            raise InputError(
                f"{path} would run code of {value}. "
                "Pass trust_remote_code=True (--trust-remote-code) if you trust its author."
            )
        if name == "transformers_weights" and value not in [None, *(file.name for file in files)]:
            raise InputError(
                f"{path} names {value!r} as its weights, which is not a weights file of this folder. Save it again."
            )
        if "position" in name and type(value) is int and value > _MAX_POSITIONS:
            raise InputError(f"{path} has {name} = {value:,}, which no model has. Copy it again.")
        if "layer" in name and type(value) is int and value > max(_MAX_LAYERS, tensors):
            raise InputError(f"{path} has {name} = {value:,}, but the weights have {tensors:,} tensors. Copy it again.")


def _entries(values: Any) -> Iterator[tuple[str, Any]]:
    """Yield all named values of nested objects and lists; values in a list have the list's name."""
    remaining: list[tuple[str, Any]] = [("", values)]
    while remaining:
        name, value = remaining.pop()
        if isinstance(value, dict):
            remaining += [(str(key), inner) for key, inner in value.items()]
        elif isinstance(value, list):
            remaining += [(name, inner) for inner in value]
        else:
            yield name, value
