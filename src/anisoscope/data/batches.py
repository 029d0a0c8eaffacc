"""Batches for an opened model: its modality, limits and start tokens filled in."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from anisoscope.data.audio import audio_batches
from anisoscope.data.images import image_batches
from anisoscope.data.text import TextDocuments, text_batches, text_documents
from anisoscope.data.token_table import Batch
from anisoscope.errors import InputError
from anisoscope.models.open import Opened

# The usual window of text where a model allows longer ones.
WINDOW = 512

# Raw bytes may stand in for a tokenizer up to this vocabulary (256 bytes, and special tokens as in ByT5).
_BYTE_ROWS = 384


def model_batches(
    opened: Opened,
    source: str | Path | Iterable[Any],
    *,
    window: int | None = None,
    batch: int = 8,
    tokens: int | None = None,
    special: bool = True,
    field: str | None = None,
    mark: str | None = None,
    seconds: float | None = None,
    tokenizer: Any = None,
) -> Iterator[Batch]:
    """The batches that `opened.model` takes, from text, images or recordings: `opened.model(**batch.inputs)`.

    `window`, `tokens`, `special`, `field`, `mark` and `tokenizer` are for text (see `text_batches` and
    `text_documents`), `seconds` for recordings (see `audio_batches`). The window is 512 tokens, or what the model
    allows if that is less.
    """
    config: Any = opened.model.config
    if opened.modality == "text":
        batches = _text(opened, source, window, batch, tokens, special, field, mark, tokenizer)
    elif opened.modality == "image":
        size = getattr(config, "image_size", None) or 224
        channels = getattr(config, "num_channels", None) or 3
        batches = image_batches(opened.processor, source, batch=batch, size=size, channels=channels)
    elif opened.modality == "audio":
        if opened.processor is None and _main_input(opened) != "input_values":
            raise InputError(
                f"{opened.info['source']} has no feature extractor; put preprocessor_config.json beside it"
            )
        batches = audio_batches(
            opened.processor,
            source,
            batch=batch,
            seconds=seconds,
            decoder_start=opened.info["decoder_start"],
            decoder_window=getattr(config, "max_target_positions", None) or 448,
        )
    else:
        raise InputError(f"{opened.info['architecture']} takes {_main_input(opened)}, not text, images or sound")
    taken = inspect.signature(opened.model.forward).parameters
    return (replace(b, inputs={name: x for name, x in b.inputs.items() if name in taken}) for b in batches)


def _text(
    opened: Opened,
    source: str | Path | Iterable[str],
    window: int | None,
    batch: int,
    tokens: int | None,
    special: bool,
    field: str | None,
    mark: str | None,
    tokenizer: Any,
) -> Iterator[Batch]:
    limit, rows = opened.info["max_positions"], opened.info["embedding_rows"]
    if window is not None and limit is not None and window > limit:
        raise InputError(f"window {window} is longer than the {limit} positions of the model; give at most {limit}")
    if tokenizer == "bytes" and (rows is None or not 256 <= rows <= _BYTE_ROWS):
        raise InputError(f"tokenizer='bytes' needs a vocabulary of 256 to {_BYTE_ROWS}; the model has {rows}")
    documents = source if isinstance(source, TextDocuments) else text_documents(source, field=field, mark=mark)
    return text_batches(
        opened.processor if tokenizer is None else tokenizer,
        documents,
        window=window or min(WINDOW, limit or WINDOW),
        batch=batch,
        tokens=tokens,
        special=special,
        decoder_start=opened.info["decoder_start"],
        vocabulary=rows,
        # A model that takes no mask would mix padding into its states.
        padding="attention_mask" in inspect.signature(opened.model.forward).parameters,
    )


def _main_input(opened: Opened) -> str:
    return str(getattr(opened.model, "main_input_name", "?"))
