"""The request of a tangent test: what it shares with `measure`, what differs, and the settings of its run."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from anisoscope.data.batches import WINDOW, model_batches
from anisoscope.data.token_table import Batch
from anisoscope.errors import InputError
from anisoscope.measurement.request import TANGENT_DEFAULTS, TANGENT_OPTIONS, OutputOptions, Request, names_of, plain
from anisoscope.models.open import Opened
from anisoscope.tangent.splits import split_batches


def tangent_request(options: Mapping[str, Any]) -> Request:
    """Make a request from options, with the defaults of a tangent test."""
    return Request.of(**{**TANGENT_DEFAULTS, **options})


def require_two_sides(request: Request, fit: Any, test: Any) -> None:
    """Refuse, before anything is opened, a request without data or with too few tokens for two batches.

    Raises:
        InputError: Neither text nor both `fit` and `test` are given, or the tokens of a side fill no window.
    """
    if request.data.text is None:
        if fit is None or test is None:
            raise InputError(
                "A test needs text, or batches to fit on and others to test on. Pass text, or fit and test."
            )
        return
    if fit is not None or test is not None:
        raise InputError("Text is split into fit and test tokens here. Pass text, or fit and test, not both.")
    window, tokens = request.data.window or WINDOW, request.statistics.tokens
    if tokens is not None and tokens < window:
        raise InputError(
            f"{tokens} tokens to fit on fill no window of {window}. Use at least {window} tokens, or a shorter window."
        )


def read_sides(opened: Opened | None, request: Request) -> tuple[list[Batch], list[Batch]]:
    """Read the text of a request and split it into batches to fit on and batches to test on.

    Batches are smaller than requested if the tokens of one side would not fill one.

    Raises:
        InputError: The model has no tokenizer or takes no text, or the text is too short.
    """
    if opened is None:
        raise InputError("A bare module cannot read text. Pass fit= and test=, or a model by name.")
    if opened.modality != "text":
        source = opened.info["source"]
        raise InputError(f"{source} takes {opened.modality}, not text. Pass fit= and test= to tangent_test in Python.")
    reading, tokens, size = request.reading(), request.statistics.tokens, request.data.batch
    if tokens is not None:
        reading["tokens"] = 2 * tokens
        size = max(1, min(size, tokens // (request.data.window or WINDOW)))
    return split_batches(model_batches(opened, request.data.text, batch=size, **reading))


def opening(request: Request) -> dict[str, Any]:
    """Return the keywords of `open_model` for another model of the same test: all but the revision."""
    return {name: value for name, value in request.opening().items() if name != "revision"}


def tangent_settings(request: Request, model: Any, own: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the numbers of a test depend on, as plain JSON: a run is resumed only if this is equal.

    Args:
        request: The shared options.
        model: The model, as the caller named it.
        own: The options that only a tangent test has.
    """
    shared = {name: x for name, x in request.settings().items() if name in TANGENT_OPTIONS}
    outputs = names_of(OutputOptions)
    return {
        "model": _name(model),
        "data": _name(request.data.text),
        **{name: x for name, x in shared.items() if name not in outputs},
        **{name: plain(value) for name, value in own.items()},
    }


def digest_of_counts(counts: Mapping[int, int] | None) -> str | None:
    """Return a short digest of a table of counts, by which two requests are compared."""
    if counts is None:
        return None
    text = json.dumps(sorted((int(token), int(count)) for token, count in counts.items()))
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _name(value: Any) -> str | None:
    if isinstance(value, Opened):
        value = value.info["source"]
    return None if value is None else str(value) if isinstance(value, str | Path) else type(value).__name__
