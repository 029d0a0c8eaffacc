"""Batches for an opened model, according to its modality and its limits."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from anisoscope.data.audio import audio_batches
from anisoscope.data.images import image_batches
from anisoscope.data.text import TokenRows, text_batches, token_batches
from anisoscope.data.text_sources import TextDocuments, text_documents
from anisoscope.data.token_table import Batch
from anisoscope.errors import InputError
from anisoscope.models.open import Opened

# Default window of text, if the model allows it.
WINDOW = 512

# Largest vocabulary for which raw bytes may replace a tokenizer (256 bytes, and special tokens as in ByT5).
_MAX_BYTE_VOCABULARY = 384


def model_batches(
    opened: Opened,
    source: Any,
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
    """Read text, images or recordings as batches for a model: `opened.model(**batch.inputs)`.

    Args:
        opened: the model.
        source: see `text_documents`, `image_batches` and `audio_batches`; for text also `TokenRows`.
        window: text: longest window in tokens; by default 512, or what the model allows if that is less.
        batch: windows, images or clips per batch.
        tokens: text: number of tokens to read in all.
        special: text: whether to add the tokenizer's special tokens.
        field: text: field or column that holds the text.
        mark: text: string that separates two documents.
        seconds: recordings: longest clip.
        tokenizer: text: a tokenizer to use instead of the model's, or "bytes".

    Raises:
        InputError: if the source does not fit the model.
    """
    if opened.modality == "text":
        _require_ids(opened)
        _require_byte_vocabulary(opened, tokenizer)
        reader = opened.processor if tokenizer is None else tokenizer
        shared: dict[str, Any] = {
            "window": window_length(opened, window),
            "batch": batch,
            "tokens": tokens,
            "decoder_start": opened.info["decoder_start"],
            "vocabulary": opened.info["embedding_rows"],
            # A model that takes no mask would mix padding into its states.
            "padding": "attention_mask" in _parameters(opened),
        }
        if isinstance(source, TokenRows):
            batches = token_batches(reader, source, **shared)
        else:
            texts = source if isinstance(source, TextDocuments) else text_documents(source, field=field, mark=mark)
            batches = text_batches(reader, texts, special=special, **shared)
    elif opened.modality == "image":
        config: Any = opened.model.config
        size = getattr(config, "image_size", None) or 224
        channels = getattr(config, "num_channels", None) or 3
        batches = image_batches(opened.processor, source, batch=batch, size=size, channels=channels)
    elif opened.modality == "audio":
        batches = _audio(opened, source, batch, seconds)
    else:
        raise InputError(
            f"{opened.info['architecture']} takes {_main_input(opened)}, not text, images or sound. "
            "Pass your own batches instead."
        )
    names = _parameters(opened)
    return (replace(b, inputs={name: x for name, x in b.inputs.items() if name in names}) for b in batches)


def _audio(
    opened: Opened, source: str | Path | Iterable[str | Path], batch: int, seconds: float | None
) -> Iterator[Batch]:
    if opened.processor is None and _main_input(opened) != "input_values":
        raise InputError(
            f"{opened.info['source']} has no feature extractor. Put its preprocessor_config.json into the same folder."
        )
    return audio_batches(
        opened.processor,
        source,
        batch=batch,
        seconds=seconds,
        decoder_start=opened.info["decoder_start"],
        decoder_window=getattr(opened.model.config, "max_target_positions", None) or 448,
    )


def window_length(opened: Opened, window: int | None) -> int:
    """Return the longest window in tokens: `window`, or by default 512 or what the model allows if that is less."""
    limit = opened.info["max_positions"]
    if window is not None and limit is not None and window > limit:
        raise InputError(f"A window of {window} tokens is longer than the {limit} positions of the model. Use {limit}.")
    return window or min(WINDOW, limit or WINDOW)


def _require_byte_vocabulary(opened: Opened, tokenizer: Any) -> None:
    rows = opened.info["embedding_rows"]
    if tokenizer == "bytes" and (rows is None or not 256 <= rows <= _MAX_BYTE_VOCABULARY):
        raise InputError(
            f"tokenizer='bytes' needs a vocabulary of 256 to {_MAX_BYTE_VOCABULARY}; the model has {rows}. "
            "Use the model's tokenizer."
        )


def _require_ids(opened: Opened) -> None:
    if "input_ids" not in _parameters(opened):
        name = type(opened.model).__name__
        raise InputError(f"{name}.forward has no parameter input_ids, so it cannot read text. Pass your own batches.")


def _parameters(opened: Opened) -> Iterable[str]:
    return inspect.signature(opened.model.forward).parameters


def _main_input(opened: Opened) -> str:
    return str(getattr(opened.model, "main_input_name", "?"))
