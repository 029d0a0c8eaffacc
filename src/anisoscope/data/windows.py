"""Windows of a batch: packed sequences cut at restarting position ids, and digests that identify them."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from anisoscope.data.inputs import as_batch, flat_inputs
from anisoscope.data.token_table import Batch, TokenTable, table_without_ids
from anisoscope.errors import InputError


def probe_batches(model: nn.Module, data: Any) -> list[Batch]:
    """Convert held-out tokens, one batch of any kind or several, to batches."""
    items = [data] if isinstance(data, Mapping | Tensor | Batch) else list(data)
    if not items:
        raise InputError("The probe holds no batch. Pass held-out tokens: a batch like those you train on, or a list.")
    batches: list[Batch] = []
    first_document = 0
    for item in items:
        batch = item if isinstance(item, Batch) else windows_of(as_inputs(model, (), item), first_document)
        first_document = int(batch.document.max()) + 1
        batches.append(batch)
    return batches


def as_inputs(model: nn.Module, args: tuple[Any, ...], data: Any) -> dict[str, Any]:
    """Name the arguments of a model: keywords as they are, positional ones by the parameters of its `forward`.

    A dict with none of the names that `forward` takes is its first argument, as in sentence-transformers.
    """
    parameters = [p for p in inspect.signature(model.forward).parameters.values() if p.kind != p.VAR_KEYWORD]
    names = [p.name for p in parameters if p.kind != p.VAR_POSITIONAL]
    needs_first = bool(names) and parameters[0].default is parameters[0].empty and not args
    is_first = isinstance(data, Mapping) and bool(data) and needs_first and not any(name in names for name in data)
    keywords = dict(data) if isinstance(data, Mapping) and not is_first else {}
    positional = args if isinstance(data, Mapping) and not is_first else (data, *args)
    return {**dict(zip(names, positional, strict=False)), **keywords}


def windows_of(inputs: dict[str, Any], first_document: int = 0) -> Batch:
    """Make a batch whose documents are its windows: a sequence, or each part of a packed sequence.

    A part begins where the position ids do not increase: 0 1 2 0 1 are two windows, of three and two tokens.
    """
    batch = as_batch(inputs, first_document)
    named = flat_inputs(inputs)
    batch = replace(batch, decoder=_decoder_side(named, batch))
    positions = named.get("position_ids")
    if not isinstance(positions, Tensor) or positions.ndim != 2 or positions.shape[1] != batch.counts.shape[1]:
        return batch
    position = positions.expand(batch.counts.shape).cpu()  # (b, T)
    restarts = torch.zeros_like(batch.counts)  # (b, T)
    restarts[:, 1:] = (position[:, 1:] <= position[:, :-1]) & batch.counts[:, 1:] & batch.counts[:, :-1]
    if not bool(restarts.any()):
        return batch
    begins = restarts.clone()
    begins[:, 0] = True
    document = begins.flatten().cumsum(0).reshape(begins.shape) - 1 + first_document  # (b, T)
    column = torch.arange(begins.shape[1]).expand(begins.shape)
    offset = column - torch.where(begins, column, 0).cummax(1).values  # (b, T)
    return replace(batch, document=document, position=offset, offset=offset, unit="windows")


def _decoder_side(inputs: dict[str, Any], batch: Batch) -> TokenTable | None:
    """Make the table of the decoder's tokens; None if the model has no decoder besides its encoder."""
    ids, labels, mask = (inputs.get(name) for name in ("decoder_input_ids", "labels", "decoder_attention_mask"))
    tokens = ids if isinstance(ids, Tensor) else labels
    if not isinstance(tokens, Tensor) or tokens.ndim != 2 or len(tokens) != len(batch.document):
        return None
    counts = tokens >= 0  # labels of −100 are padding
    if isinstance(mask, Tensor):
        counts = counts & mask.bool()
    return table_without_ids(batch.document[:, 0], counts.cpu())


def digests(batch: Batch) -> set[bytes]:
    """Return a digest of each window: of its token ids, or of its numbers if it has no ids."""
    if bool((batch.token >= 0).any()):
        document, token = batch.document[batch.counts], batch.token[batch.counts]
        parts = [token[document == each] for each in document.unique()]
    else:
        main = next(x for x in flat_inputs(batch.inputs).values() if isinstance(x, Tensor))
        parts = list(main.detach().cpu().contiguous())
    return {hashlib.blake2b(_bytes(part), digest_size=16).digest() for part in parts}


def covered(batches: Iterable[Batch]) -> set[bytes]:
    """Return the digests of all windows of these batches."""
    return set().union(*(digests(batch) for batch in batches))


def fingerprint(windows: Iterable[bytes]) -> str:
    """Return one short text for a set of window digests, the same for the same set."""
    return hashlib.blake2b(b"".join(sorted(windows)), digest_size=8).hexdigest()


def _bytes(x: Tensor) -> bytes:
    return x.contiguous().view(torch.uint8).numpy().tobytes()
