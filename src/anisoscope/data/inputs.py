"""What a model is called with: any batch as tensors and the table of its tokens."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from anisoscope.data.token_table import Batch, item_table, with_inputs
from anisoscope.errors import InputError


def as_batch(given: Any, first_document: int) -> Batch:
    """A batch with its table: as it came, or made for bare inputs, each sequence a document of its own."""
    if isinstance(given, Batch):
        return given
    inputs = dict(given) if isinstance(given, Mapping) else {}
    tensors = [x for x in (inputs.values() if inputs else [given]) if isinstance(x, Tensor)]
    if not tensors:
        raise InputError(f"a batch is a dict of tensors, a tensor or a Batch; got {type(given).__name__}")
    ids = inputs.get("input_ids", given if isinstance(given, Tensor) and not given.is_floating_point() else None)
    mask = inputs.get("attention_mask")
    b = len(tensors[0])
    if mask is not None and mask.ndim == 2:
        counts = mask.bool().cpu()
    else:
        counts = torch.ones(b, 1 if ids is None else ids.shape[1], dtype=torch.bool)
    document = torch.arange(first_document, first_document + b)
    table = item_table(document, counts)
    offset = (counts.long().cumsum(1) - 1).clamp(min=0)  # the first unmasked token is the sink, also with left padding
    token = table.token if ids is None else ids.cpu().long().masked_fill(~counts, -1)
    table = replace(table, position=offset, offset=offset, token=token)
    return with_inputs(table, inputs, documents_are="sequences")


def peek(batches: Iterable[Any]) -> tuple[Any, Iterable[Any]]:
    """The first batch, and all of them."""
    rest = iter(batches)
    first = next(rest, None)
    if first is None:
        raise InputError("the data gave no tokens to measure; give a longer text, more images or longer clips")
    return first, chain([first], rest)


def first_item(given: Any, device: torch.device) -> dict[str, Any] | None:
    """The first sequence of a batch as keyword arguments: enough for a model to show its layout."""
    inputs = given.inputs if isinstance(given, Batch) else given
    if not isinstance(inputs, Mapping):
        return None
    return {name: x[:1].to(device) if isinstance(x, Tensor) and x.ndim else x for name, x in inputs.items()}


def call(model: nn.Module, batch: Batch, given: Any) -> None:
    device = device_of(model)
    if isinstance(given, Tensor):
        model(given.to(device))
    else:
        model(**{name: x.to(device) if isinstance(x, Tensor) else x for name, x in batch.inputs.items()})


def device_of(model: nn.Module) -> torch.device:
    return next((p.device for p in model.parameters()), torch.device("cpu"))
