"""Check a config.json before a model is built from it: no code from elsewhere, no absurd sizes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from anisoscope.errors import InputError
from anisoscope.models.weight_files import stored_tensors
from anisoscope.store.files import parse_errors, read_json

# Numbers that transformers turns into lists or modules, such as num_hidden_layers, depths, attention_types, num_labels.
_COUNT = re.compile(r"layer|depth|blocks|block_count|group|expert|stage|head|attention_types")
# More than this, and more than there are tensors: a crafted number that would take hours to build.
_MAX_COUNT = 1024
_MAX_LABELS = 1 << 17  # or the longest side of a stored tensor: a classifier has one row per label
_MAX_NUMBER = 1 << 24  # any other whole number; the longest context of a published model is ten million tokens
_ANY_NUMBER = re.compile(r"theta|base|seed|size_bytes|total")  # names whose numbers size nothing
_CONFIG_LIMIT = 16 << 20  # bytes


def require_safe_config(folder: Path, files: Sequence[Path], *, trusted: bool) -> int | None:
    """Refuse a configuration that would run remote code, load other weights, or is far too large to build.

    transformers downloads compiled attention kernels if `attn_implementation` names a repository, whatever the value of
    `trust_remote_code`.

    Args:
        folder: the model's folder.
        files: its weights.
        trusted: whether the user allowed remote code.

    Returns:
        The number of stored tensors; None if the weights are pickles, whose tensors are not listed.
    """
    path = folder / "config.json"
    with parse_errors(path, "copy or save it again"):
        values = read_json(path, _CONFIG_LIMIT)
        entries = list(_entries(values))
    stored = [x for file in files if file.suffix == ".safetensors" for x in stored_tensors(file).values()]
    tensors = len(stored)
    labels = max([_MAX_LABELS, *(max(x.shape) for x in stored if x.shape and x.begin < x.end)])
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
        if type(value) is int:
            _require_plausible(path, name, value, tensors, labels)
    return tensors if all(file.suffix == ".safetensors" for file in files) else None


def _require_plausible(path: Path, name: str, value: int, tensors: int, labels: int) -> None:
    """Refuse a whole number that would take hours or all memory before transformers finds that it is wrong."""
    if "label" in name:
        limit = labels
    elif _COUNT.search(name):
        limit = max(_MAX_COUNT, tensors)
    else:
        limit = _MAX_NUMBER
    if value > limit and not _ANY_NUMBER.search(name):
        held = f", but the weights have {tensors:,} tensors" if _COUNT.search(name) else ", which no model has"
        raise InputError(f"{path} has {name} = {value:,}{held}. Copy it again.")
    if value < 0 and "head" in name:
        raise InputError(f"{path} has {name} = {value:,}, which no model has. Copy it again.")


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
