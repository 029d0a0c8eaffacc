"""Statistics as named arrays, for the store and for travelling between processes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeVar

import torch
from torch import Tensor

S = TypeVar("S")


def pack(statistic: Any) -> dict[str, Tensor]:
    """The fields of a statistic as CPU tensors; integers become 0-d int64 tensors."""
    values = {field.name: getattr(statistic, field.name) for field in fields(statistic)}
    return {
        name: value.detach().cpu().contiguous() if isinstance(value, Tensor) else torch.tensor(value)
        for name, value in values.items()
    }


def unpack(kind: type[S], arrays: Mapping[str, Tensor]) -> S:
    """The inverse of `pack`. A missing or unknown array raises a KeyError that names it."""
    wanted = {field.name: field.type for field in fields(kind)}  # type: ignore[arg-type]
    odd = sorted(set(wanted) ^ set(arrays))
    if odd:
        raise KeyError(f"{kind.__name__} expects the arrays {sorted(wanted)}, missing or unknown: {odd}")
    return kind(**{name: int(arrays[name]) if wanted[name] == "int" else arrays[name] for name in wanted})
