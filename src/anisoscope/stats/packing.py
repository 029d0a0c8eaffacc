"""Statistics as named arrays: to be stored in files and sent between processes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from typing import Any, TypeVar

import torch
from torch import Tensor

S = TypeVar("S")


def pack(statistic: Any) -> dict[str, Tensor]:
    """Return the fields of a statistic as CPU tensors; numbers become 0-d tensors."""
    values = {field.name: getattr(statistic, field.name) for field in fields(statistic)}
    return {
        name: value.detach().cpu().contiguous() if isinstance(value, Tensor) else torch.tensor(value)
        for name, value in values.items()
    }


def unpack(kind: type[S], arrays: Mapping[str, Tensor]) -> S:
    """Rebuild a statistic from the arrays that `pack` returned.

    Fields with a default may be missing: files written before they existed stay readable.

    Raises:
        KeyError: An array is missing or unknown. The message names it.
    """
    types = {field.name: str(field.type) for field in fields(kind)}  # type: ignore[arg-type]
    optional = {field.name for field in fields(kind) if field.default is not MISSING}  # type: ignore[arg-type]
    wrong = sorted((set(types) ^ set(arrays)) - (optional - set(arrays)))
    if wrong:
        raise KeyError(f"{kind.__name__} expects the arrays {sorted(types)}; missing or unknown: {wrong}.")
    plain: dict[str, Callable[[Tensor], Any]] = {"int": int, "bool": bool}
    return kind(**{name: plain.get(types[name], lambda x: x)(array) for name, array in arrays.items()})
