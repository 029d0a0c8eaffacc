"""Measuring a model: one pass over its inputs, every layer at once, with and without the tokens that draw the curve."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from anisoscope.capture import find_layout
from anisoscope.errors import InputError
from anisoscope.metrics.outliers import MASSIVE
from anisoscope.models import Batch, Opened, model_batches, open_model
from anisoscope.store import Run
from anisoscope.survey import Survey
from anisoscope.survey.inputs import device_of, first_item, peek
from anisoscope.survey.runs import run_info, save_cloud, save_measured

TOKENS = 65_536
SITES = ("embed", "resid", "final")
Progress = Callable[[int], None]


def measure(
    model: nn.Module | str | Path | Opened,
    batches: Iterable[Any] | None = None,
    *,
    text: Any = None,
    images: Any = None,
    audio: Any = None,
    metrics: Sequence[str] | None = None,
    sites: Sequence[str] = SITES,
    tokens: int | None = TOKENS,
    window: int | None = None,
    batch: int = 8,
    special: bool = True,
    sample: int = 8192,
    seed: int = 0,
    errors: bool = True,
    out: str | Path | None = None,
    keep_statistics: bool = False,
    command: str | None = None,
    progress: Progress | None = None,
    opening: Mapping[str, Any] | None = None,
    reading: Mapping[str, Any] | None = None,
) -> Run:
    """The geometry of a model, layer by layer: records under `all` tokens and without sinks, as a run.

    `model` is a module, a folder, a hub id, or what `open_model` gave; its inputs are `batches` (anything the module
    is called with: dicts of tensors, tensors, or `Batch`), or `text`, `images`, `audio` for a model that comes with
    its processor. `special=False` leaves special tokens out; padding never counts. Without `out` the run lives in a
    temporary folder as long as the returned object. `opening` goes to `open_model`, `reading` to `model_batches`.
    """
    opened = model if isinstance(model, Opened) else None
    if isinstance(model, str | Path):
        given = {"image": images, "audio": audio}
        modality = next((name for name, source in given.items() if source is not None), None)
        opened = open_model(model, modality=modality, **(opening or {}))
    if batches is None:
        batches = _read(opened, text, images, audio, tokens, window, batch, special, dict(reading or {}))
    module = opened.model if opened is not None else model
    assert isinstance(module, nn.Module)
    total = tokens if opened is not None else None  # of bare batches nobody knows how many there are
    first, batches = peek(batches)
    layout = find_layout(module, first_item(first, device_of(module)))
    survey = Survey(module, layout, sites, metrics, special=special, sample=sample, seed=seed, tokens=total)
    interrupted = survey.run(batches, tokens, progress)
    info = {
        "kind": "model",
        "model": opened.info if opened is not None else {"architecture": type(module).__name__},
        "data": {"source": _source_name(text, images, audio), "tokens": survey.counted, "window": window},
        "token_policy": {
            "special": special,
            "first token": "position 0 of its window",
            "massive": f"> {MASSIVE} medians",
        },
        "unit": survey.unit,
        "seed": seed,
        "sample": sample,
        "interrupted": interrupted,
    }
    run = _create_run(out, run_info(info, survey.chosen), command)
    removed: list[dict[str, Any]] = []
    for done in survey.evaluated(run=run.name, errors=errors):
        save_measured(run, done.measured)
        removed += done.removed
        if keep_statistics and done.site.kind != "pattern":
            for policy, cloud in done.clouds.items():
                save_cloud(run, cloud, site=str(done.site), tokens=policy)
    run.update_info(removed={"count": len(removed), "tokens": _in_words(removed[:256], opened)})
    return run


def _read(
    opened: Opened | None,
    text: Any,
    images: Any,
    audio: Any,
    tokens: int | None,
    window: int | None,
    batch: int,
    special: bool,
    reading: dict[str, Any],
) -> Iterable[Batch]:
    sources = [source for source in (text, images, audio) if source is not None]
    if opened is None:
        raise InputError("a bare module needs batches: measure(model, batches)")
    if len(sources) != 1:
        raise InputError(f"{opened.info['source']} takes {opened.modality}; give one of text, images, audio")
    if opened.modality == "text":
        reading = {"window": window, "tokens": tokens, **reading}
    return model_batches(opened, sources[0], batch=batch, **reading)


def _in_words(removed: list[dict[str, Any]], opened: Opened | None) -> list[dict[str, Any]]:
    """The removed tokens as a person would name them."""
    if opened is None or opened.modality != "text" or opened.processor is None:
        return removed
    return [{**each, "text": opened.processor.decode([each["token"]])} for each in removed]


def _create_run(out: str | Path | None, info: dict[str, Any], command: str | None) -> Run:
    """A run in the folder asked for, or in one that goes with the object."""
    if out is not None:
        return Run.create(out, info, command=command)
    folder = tempfile.mkdtemp(prefix="anisoscope-run-")
    run = Run.create(Path(folder) / "run", info, command=command)
    weakref.finalize(run, shutil.rmtree, folder, ignore_errors=True)
    return run


def _source_name(*sources: Any) -> str | None:
    given = next((source for source in sources if source is not None), None)
    return str(given) if isinstance(given, str | Path) else None if given is None else type(given).__name__
