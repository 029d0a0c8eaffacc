"""Requests that cannot be met are refused before anything is opened."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from anisoscope.distributed import Ranks
from anisoscope.errors import InputError
from anisoscope.measurement.request import Request


def require_data(request: Request, batches: Iterable[Any] | None) -> None:
    """Refuse a request without data, with two kinds of data, or with too little of it."""
    sources = [x for x in (request.data.text, request.data.images, request.data.audio) if x is not None]
    if batches is None and not sources and not request.sites.weights:
        raise InputError("nothing to measure: give text, images, audio or batches, or set weights=True")
    if len(sources) > 1:
        raise InputError("a model takes one kind of data; give one of text, images and audio")
    tokens, size = request.statistics.tokens, request.statistics.batch_tokens
    if size is not None and tokens is not None and tokens < 2 * size:
        raise InputError(f"{tokens} tokens hold no two batches of {size}; measure at least {2 * size}")


def require_shareable(request: Request, ranks: Ranks) -> None:
    """Refuse what several processes cannot do, before anything is opened."""
    split = request.model.tensor_parallel
    if split and ranks.world == 1:
        raise InputError("tensor parallel needs several processes: start them with torchrun")
    alone = request.sites.generate is not None or request.statistics.batch_tokens is not None
    if ranks.world > 1 and alone:
        raise InputError("generated tokens and batches of tokens are measured by one process; run without torchrun")
    heads = [site for site in request.sites.sites if str(site).split(".")[0] in ("q", "k", "pattern")]
    if split and (request.sites.weights or heads):
        what = heads[0] if heads else "a weight"
        raise InputError(f"{what} is in pieces if layers are split over processes; leave it out, or use device_map")
