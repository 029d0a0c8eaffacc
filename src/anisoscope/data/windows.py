"""Batches as windows: what a model is fed, cut where position ids restart, each window with a digest."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from anisoscope.data.inputs import as_batch
from anisoscope.data.token_table import Batch, TokenTable, item_table
from anisoscope.errors import InputError


def probe_batches(model: nn.Module, given: Any) -> list[Batch]:
    """The held-out tokens as batches: a batch of any kind, or several of them."""
    several = [given] if isinstance(given, Mapping | Tensor | Batch) else list(given)
    if not several:
        raise InputError(
            "the probe holds no batch; give held-out tokens: a batch such as those you train on, or a list"
        )
    batches: list[Batch] = []
    first_document = 0
    for each in several:
        batch = each if isinstance(each, Batch) else windows_of(as_inputs(model, (), each), first_document)
        first_document = int(batch.document.max()) + 1
        batches.append(batch)
    return batches


def as_inputs(model: nn.Module, args: tuple[Any, ...], given: Any) -> dict[str, Any]:
    """What a model is called with, by name: keywords as they are, positions by the names of its `forward`."""
    keywords = dict(given) if isinstance(given, Mapping) else {}
    positions = args if isinstance(given, Mapping) else (given, *args)
    taken = [name for name, p in inspect.signature(model.forward).parameters.items() if p.kind != p.VAR_KEYWORD]
    return {**dict(zip(taken, positions, strict=False)), **keywords}


def windows_of(inputs: dict[str, Any], first_document: int = 0) -> Batch:
    """A batch whose documents are its windows: a sequence, or each part of one that was packed out of several.

    Position ids that do not grow say where the next part begins: 0 1 2 0 1 are two windows, of three and two tokens.
    """
    batch = as_batch(inputs, first_document)
    batch = replace(batch, decoder=_decoder_side(inputs, batch))
    places = inputs.get("position_ids")
    if not isinstance(places, Tensor) or places.ndim != 2 or places.shape[1] != batch.counts.shape[1]:
        return batch
    place = places.expand(batch.counts.shape).cpu()
    restarts = torch.zeros_like(batch.counts)  # (b, T)
    restarts[:, 1:] = (place[:, 1:] <= place[:, :-1]) & batch.counts[:, 1:] & batch.counts[:, :-1]
    if not bool(restarts.any()):
        return batch
    begins = restarts.clone()
    begins[:, 0] = True
    document = begins.flatten().cumsum(0).reshape(begins.shape) - 1 + first_document  # (b, T)
    column = torch.arange(begins.shape[1]).expand(begins.shape)
    offset = column - torch.where(begins, column, 0).cummax(1).values  # (b, T)
    return replace(batch, document=document, position=offset, offset=offset, documents_are="windows")


def _decoder_side(inputs: dict[str, Any], batch: Batch) -> TokenTable | None:
    """The table of a decoder's own tokens, where a model has one beside its encoder."""
    ids, labels, mask = (inputs.get(name) for name in ("decoder_input_ids", "labels", "decoder_attention_mask"))
    own = ids if isinstance(ids, Tensor) else labels
    if not isinstance(own, Tensor) or own.ndim != 2 or len(own) != len(batch.document):
        return None
    counts = own >= 0  # labels of −100 are padding
    if isinstance(mask, Tensor):
        counts = counts & mask.bool()
    return item_table(batch.document[:, 0], counts.cpu())


def digests(batch: Batch) -> set[bytes]:
    """A digest of what each window says: of its token ids, or of the numbers of an item without any."""
    if bool((batch.token >= 0).any()):
        document, token = batch.document[batch.counts], batch.token[batch.counts]
        parts = [token[document == each] for each in document.unique()]
    else:
        main = next(x for x in batch.inputs.values() if isinstance(x, Tensor))
        parts = list(main.detach().cpu().contiguous())
    return {hashlib.blake2b(_bytes(part), digest_size=16).digest() for part in parts}


def covered(batches: Iterable[Batch]) -> set[bytes]:
    """The digests of all windows of these batches."""
    return set().union(*(digests(batch) for batch in batches))


def fingerprint(windows: Iterable[bytes]) -> str:
    """One short text for a set of windows, the same for the same windows."""
    return hashlib.blake2b(b"".join(sorted(windows)), digest_size=8).hexdigest()


def _bytes(x: Tensor) -> bytes:
    return x.contiguous().view(torch.uint8).numpy().tobytes()
