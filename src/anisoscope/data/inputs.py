"""Convert whatever a user passes as a batch to tensors and a table of tokens."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from anisoscope.data.token_table import Batch, make_batch, table_without_ids
from anisoscope.errors import InputError


def as_batch(data: Any, first_document: int) -> Batch:
    """Convert a batch of any kind to a `Batch`; without a table, each sequence is one document.

    Args:
        data: a `Batch`, a dict of tensors or a tensor.
        first_document: document id of the first sequence.
    """
    if isinstance(data, Batch):
        return data
    inputs = dict(data) if isinstance(data, Mapping) else {}
    named = flat_inputs(inputs)
    tensors = [x for x in (named.values() if named else [data]) if isinstance(x, Tensor) and x.ndim]
    if not tensors:
        raise InputError(f"A batch is a dict of tensors, a tensor or a Batch, not {type(data).__name__}.")
    ids = named.get("input_ids", data if isinstance(data, Tensor) and not data.is_floating_point() else None)
    mask = named.get("attention_mask")
    b = len(tensors[0])
    if mask is not None and mask.ndim == 2:
        counts = mask.bool().cpu()
    else:
        counts = torch.ones(b, 1 if ids is None else ids.shape[1], dtype=torch.bool)
    document = torch.arange(first_document, first_document + b)
    table = table_without_ids(document, counts)
    offset = (counts.long().cumsum(1) - 1).clamp(min=0)  # the first unmasked token is the sink, also with left padding
    token = table.token if ids is None else ids.cpu().long().masked_fill(~counts, -1)
    table = replace(table, position=offset, offset=offset, token=token)
    return make_batch(table, inputs, unit="sequences")


def flat_inputs(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return named inputs with those of inner dicts, such as the features that sentence-transformers passes as one.

    >>> flat_inputs({"input": {"input_ids": 1}, "labels": 2})
    {'input_ids': 1, 'labels': 2}
    """
    flat: dict[str, Any] = {}
    for name, value in inputs.items():
        flat |= flat_inputs(value) if isinstance(value, Mapping) else {name: value}
    return flat


def on_device(value: Any, device: torch.device) -> Any:
    """Return an input with its tensors on a device, also those of an inner dict; other values stay as they are."""
    if isinstance(value, Mapping):
        return {name: on_device(each, device) for name, each in value.items()}
    return value.to(device) if isinstance(value, Tensor) else value


def peek(batches: Iterable[Any]) -> tuple[Any, Iterable[Any]]:
    """Return the first batch, and an iterable of all batches including it."""
    rest = iter(batches)
    first = next(rest, None)
    if first is None:
        raise InputError("The data holds nothing to measure. Use a longer text, more images or longer clips.")
    return first, chain([first], rest)


def first_item(data: Any, device: torch.device) -> dict[str, Any] | None:
    """Return the first sequence of a batch as keyword arguments, enough to find the layout of a model."""
    inputs = data.inputs if isinstance(data, Batch) else data
    if not isinstance(inputs, Mapping):
        return None
    return {name: _first_of(x, device) for name, x in inputs.items()}


def _first_of(value: Any, device: torch.device) -> Any:
    if isinstance(value, Mapping):
        return {name: _first_of(each, device) for name, each in value.items()}
    return value[:1].to(device) if isinstance(value, Tensor) and value.ndim else value


def device_of(model: nn.Module) -> torch.device:
    """Return the device of a model's first parameter."""
    return next((p.device for p in model.parameters()), torch.device("cpu"))
