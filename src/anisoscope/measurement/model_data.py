"""What a measurement reads: the model, opened in one call, and batches from whatever the user passed as data."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.utils.data import DataLoader

from anisoscope.data.batches import WINDOW, model_batches
from anisoscope.data.text import TokenRows
from anisoscope.data.text_sources import TextDocuments, text_size
from anisoscope.data.token_table import Batch
from anisoscope.distributed import Ranks
from anisoscope.errors import InputError
from anisoscope.measurement.request import Request
from anisoscope.models.open import Opened, open_model, opened_module

_BYTES = 3  # of text per token, or a few more: fewer blocks than hoped are worse than joining some
_IDS = "input_ids"


def open_for(model: nn.Module | str | Path | Opened, request: Request) -> Opened:
    """Return the model of a request, ready to be measured.

    Args:
        model: A name, which is opened; a module, which is used as it is; or what `open_model` returned.
        request: Its `tokenizer`, if it is an object, replaces the model's own.
    """
    processor = None if isinstance(request.model.tokenizer, str) else request.model.tokenizer
    if isinstance(model, nn.Module):
        return opened_module(model, processor)
    if isinstance(model, Opened):
        opened = model
    else:
        source = request.source()
        modality = None if source is None or source[0] == "text" else source[0]
        head = request.sites.weights or request.sites.generate is not None
        opened = open_model(model, modality=modality, head=head, **request.opening())
    return opened if processor is None else replace(opened, processor=processor)


def with_data(request: Request, data: Any) -> tuple[Request, Iterable[Any] | None]:
    """Sort what a user passed as data: texts and rows of token ids become the request's `text`, the rest are batches.

    Args:
        request: The request; its `field` names the column of text of a dataset.
        data: None; one batch; or an iterable of texts, of rows of a dataset, or of batches, such as a `DataLoader`.

    Returns:
        The request, and the batches, or None if the request names the data.

    Raises:
        InputError: The data is empty, or its rows hold neither text nor tensors.
    """
    if data is None:
        return request, None
    if isinstance(data, str | Path):
        return request.having(text=data), None
    if isinstance(data, Mapping | Tensor | Batch):
        return request, [data]
    if isinstance(data, DataLoader):  # reading its first batch would start its workers twice
        return request, _Unwrapped(data)
    rest = iter(data)
    first = next(rest, None)
    if first is None:
        raise InputError("The data is empty. Pass texts, rows of a dataset or batches.")
    again = chain([first], rest) if rest is data else data
    if isinstance(first, str):
        return request.having(text=again), None
    if isinstance(first, Mapping):
        column = request.data.field or "text"
        if isinstance(first.get(column), str):
            return request.having(text=TextDocuments(lambda: (row[column] for row in again)), field=None), None
        if _is_list_of_ids(first.get(_IDS)):
            return request.having(text=TokenRows(again)), None
        if not any(isinstance(value, Tensor) for value in first.values()):
            raise InputError(
                f"The rows have no text in a column {column!r}; their columns are {', '.join(map(str, first))}. "
                "Name the column of text (field=…), or pass batches of tensors."
            )
    return request, _Unwrapped(again)


class _Unwrapped:
    """Batches as a loader gives them; of a tuple or a list, such as (inputs, labels), only the first entry."""

    def __init__(self, batches: Iterable[Any]) -> None:
        self._batches = batches

    def __iter__(self) -> Iterator[Any]:
        for batch in self._batches:
            yield batch[0] if isinstance(batch, tuple | list) and batch else batch


def read_data(opened: Opened, request: Request, ranks: Ranks | None = None) -> Iterable[Batch]:
    """Return the batches of the one source of a request, which must be of the model's modality."""
    modality, source = request.source() or ("nothing", ())
    if modality != opened.modality:
        raise InputError(f"{opened.info['source']} takes {opened.modality}, got {modality}; give it {opened.modality}")
    size, batch_tokens = request.data.batch, request.statistics.batch_tokens
    if batch_tokens is not None:
        size = max(1, min(size, batch_tokens // (request.data.window or WINDOW)))  # no forward may hold two batches
    if ranks is not None and not request.model.tensor_parallel:
        size *= ranks.world  # each rank runs its share of every batch
    return model_batches(opened, source, batch=size, **request.reading())


def expected_tokens(request: Request) -> int | None:
    """How many tokens the data will hold at most: a short text has as many blocks of documents as a long one."""
    limit, text = request.statistics.tokens, request.data.text
    if text is None:
        return limit
    size = text_size(text)
    if size is None:
        return None  # of unknown length: small blocks are joined as it streams by
    return min(limit or size, max(1, size // _BYTES))


def _is_list_of_ids(value: Any) -> bool:
    """Whether a value is one sequence of token ids: a list of whole numbers, or an array of one dimension."""
    if getattr(value, "ndim", None) == 1:
        return True
    return isinstance(value, list | tuple) and bool(value) and isinstance(value[0], int)
