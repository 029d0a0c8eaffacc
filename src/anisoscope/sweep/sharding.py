"""One model's documents measured by several workers: each counts a share into a folder, one adds and evaluates them."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from anisoscope.capture import Layout, find_layout
from anisoscope.data.inputs import device_of, first_item, peek
from anisoscope.errors import InputError, StoreError
from anisoscope.measurement.document_shares import Share
from anisoscope.measurement.engine import Engine
from anisoscope.measurement.measure_model import SAMPLE, SITES, TOKENS, Asked, in_words, read_data
from anisoscope.measurement.run_output import run_info
from anisoscope.measurement.site_result import SiteResult
from anisoscope.metrics.evaluate import MetricResult
from anisoscope.models.open import Opened
from anisoscope.store.files import understood

_WRITING = ".writing"


def count_share(opened: Opened, request: Mapping[str, Any], share: Share, seed: int, folder: Path) -> None:
    """Runs the model over one share of the documents and writes what was counted; all of it or nothing."""
    layout, batches = _read(opened, request, share)
    survey = _survey(opened, layout, request, seed, share)
    if survey.run(batches, request.get("tokens", TOKENS)):
        raise KeyboardInterrupt  # half a share is none
    temporary = folder.with_name(folder.name + _WRITING)
    shutil.rmtree(temporary, ignore_errors=True)
    shutil.rmtree(folder, ignore_errors=True)
    survey.save(temporary)
    temporary.replace(folder)


def evaluate_shares(
    opened: Opened, request: Mapping[str, Any], folders: Sequence[Path], seed: int, seeing: Callable[[SiteResult], None]
) -> tuple[dict[str, Any], list[MetricResult]]:
    """The facts and numbers of shares that were counted into folders: those of one pass over all their documents."""
    layout, _ = _read(opened, request, Share())
    whole = _survey(opened, layout, request, seed, Share())
    for folder in folders:
        part = _survey(opened, layout, request, seed, Share())
        with understood(folder, "delete it, and its share is counted again", StoreError):
            part.load(folder)
        whole.absorb(part)
    measured: list[MetricResult] = []
    removed: list[dict[str, Any]] = []
    for done in whole.evaluated(errors=bool(request.get("errors", True))):
        seeing(done)
        measured += done.measured
        removed += done.removed
    about = {
        "model": opened.info,
        "data": {"source": str(_data(request)[1]), "window": request.get("window"), "tokens": whole.counted},
        "unit": whole.unit,
        "removed": {"count": len(removed), "tokens": in_words(removed[:256], opened)},
        "sample": request.get("sample", SAMPLE),
    }
    return run_info(about, whole.chosen), measured


def _read(opened: Opened, request: Mapping[str, Any], share: Share) -> tuple[Layout, Iterable[Any]]:
    """The model's layout, and the batches that all shares read: as many times larger as there are shares."""
    kind, source = _data(request)
    batch = int(request.get("batch", 8)) * share.of
    reading = dict(request.get("reading") or {})
    tokens, window = request.get("tokens", TOKENS), request.get("window")
    first, batches = peek(read_data(opened, {kind: source}, tokens, window, batch, reading))
    return find_layout(opened.model, first_item(first, device_of(opened.model))), batches


def _survey(opened: Opened, layout: Layout, request: Mapping[str, Any], seed: int, share: Share) -> Engine:
    tokens = request.get("tokens", TOKENS)
    asked = Asked(
        metrics=request.get("metrics"),
        sites=list(request.get("sites", SITES)),
        tokens=tokens,
        batch_tokens=None,
        sample=request.get("sample", SAMPLE),
        seed=seed,
        special=request.get("special", True),
        errors=request.get("errors", True),
        weights=False,
        generate=None,
    )
    return asked.survey(opened.model, layout, tokens=tokens, share=share)


def _data(request: Mapping[str, Any]) -> tuple[str, Any]:
    kinds = {"text": request.get("text"), "image": request.get("images"), "audio": request.get("audio")}
    given = [(kind, source) for kind, source in kinds.items() if source is not None]
    if len(given) != 1 or request.get("weights") or request.get("generate") or request.get("batch_tokens"):
        raise InputError("shares are of one text, folder of images or of sound; leave weights and generation out")
    return given[0]
