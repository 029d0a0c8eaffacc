"""Measure the models of the atlas: trained and untrained, on each input, one process per measurement, resumable."""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from anisoscope.errors import AnisoscopeError, InputError, StoreError
from anisoscope.records import Site
from anisoscope.store.files import read_json, sweep_temporaries, write_text
from anisoscope.store.run import Run
from anisoscope.studies.atlas.atlas_inputs import input_source
from anisoscope.studies.atlas.atlas_registry import AtlasModel, Registry
from anisoscope.studies.atlas.builders import model_folder
from anisoscope.studies.atlas.checks import CheckResult, run_check
from anisoscope.studies.atlas.evidence import ModelEvidence, profiles_of, write_evidence
from anisoscope.studies.atlas.untrained_twin import untrained_twin

COMMON = "topics"  # the text that all text models read
SITES = ("embed", "resid", "final")
METRICS = (
    "spectral_anisotropy",
    "mean_cosine",
    "mean_cosine_centred",
    "drift_norm",
    "participation_ratio",
    "isoscore",
    "two_nn",
    "outlier_dimensions",
)
SAMPLE = 2048  # rows for the dimension
OnStatus = Callable[[str], None]
Cost = dict[str, Any]  # of a measurement: see `measure_subject`
_RATIO = "participation_ratio"
_COST = ".cost.json"  # of a measurement, next to its run: a run is replaced only if nothing else is in its folder


@dataclass(frozen=True)
class AtlasSubject:
    """One measurement: a model's folder and an input."""

    folder: Path
    source: str
    kind: str  # text, images, audio or tables
    tokens: int
    window: int | None
    out: Path


@dataclass(frozen=True)
class AtlasOutcome:
    """What became of the models: measured now, complete before, and why others failed."""

    measured: list[str]
    skipped: list[str]
    failed: dict[str, str]


def measure_atlas(
    models: Sequence[AtlasModel],
    registry: Registry,
    cache: Path,
    evidence: Path,
    *,
    workers: int = 1,
    again: bool = False,
    on_status: OnStatus | None = None,
) -> AtlasOutcome:
    """Measure models and write one file of evidence per model; models that have one are skipped.

    Args:
        models: Which models, in this order.
        registry: Where their inputs are listed.
        cache: Folder for downloads, built models and runs.
        evidence: Folder for the results.
        workers: How many measurements run at a time, each in its own process.
        again: Measure from nothing, also models that have evidence.
        on_status: Called with what is being done.
    """
    say = on_status or (lambda _: None)
    outcome = AtlasOutcome([], [], {})
    for number, model in enumerate(models, 1):
        if (evidence / f"{model.name}.json").is_file() and not again:
            outcome.skipped.append(model.name)
            continue
        say(f"{model.name} ({number} of {len(models)})")
        try:
            write_evidence(measured(model, registry, cache, workers=workers, again=again, on_status=say), evidence)
            outcome.measured.append(model.name)
        except (AnisoscopeError, OSError, BrokenProcessPool) as error:
            outcome.failed[model.name] = str(error)
            say(f"{model.name} failed: {error}")
    return outcome


def measured(
    model: AtlasModel,
    registry: Registry,
    cache: Path,
    *,
    workers: int = 1,
    again: bool = False,
    on_status: OnStatus | None = None,
) -> ModelEvidence:
    """Build, check and measure one model and its untrained twin.

    Raises:
        InputError: The model does not pass its check.
    """
    say = on_status or (lambda _: None)
    say(f"{model.name}: building")
    folder = model_folder(model, cache)
    names = [model.input, *([COMMON] if model.common and model.input != COMMON else [])]
    sources = {name: input_source(registry.inputs[name], registry, cache) for name in names}
    say(f"{model.name}: checking")
    check = run_check(folder, model.check, sources[model.input])
    if not check.passed:
        raise InputError(f"{model.name} does not pass its check: {check.text}. It is not measured.")
    alike = model_folder(registry.models[model.twin], cache) if model.twin else folder
    folders = {"trained": folder, "untrained": untrained_twin(alike)}
    subjects = {
        (state, name): AtlasSubject(
            where,
            source,
            registry.inputs[name].kind,
            model.tokens,
            model.window,
            cache / "runs" / f"{where.name}--{name}",
        )
        for state, where in folders.items()
        for name, source in sources.items()
    }
    costs = {}
    for key, cost in run_subjects(subjects, workers, again=again):
        costs[key] = cost
        say(f"{model.name}: {key[0]} on {key[1]} measured")
    return _evidence(model, registry, check, subjects, costs)


def run_subjects(
    subjects: dict[Any, AtlasSubject], workers: int = 1, *, again: bool = False
) -> Iterator[tuple[Any, Cost]]:
    """Measure subjects in new processes, so that their peak memory is known; yields their costs.

    A measurement that is complete is not repeated, unless the atlas now asks for something else.
    """
    waiting = {}
    for key, subject in subjects.items():
        cost = None if again else finished_cost(subject)
        if cost is None:
            waiting[key] = subject
        else:
            yield key, cost
    if not waiting:
        return
    options: dict[str, Any] = {"mp_context": get_context("spawn"), "max_tasks_per_child": 1}
    keys = list(waiting)
    shares = [keys[start::workers] for start in range(min(workers, len(keys)))]  # a new process costs seconds
    with ProcessPoolExecutor(len(shares), **options) as pool:
        futures: dict[Future[list[Cost]], list[Any]] = {
            pool.submit(measure_subjects, [waiting[key] for key in share], again): share for share in shares
        }
        for future in as_completed(futures):
            yield from zip(futures[future], future.result(), strict=True)


def measure_subjects(subjects: Sequence[AtlasSubject], again: bool = False) -> list[Cost]:
    """Measure subjects one after another in this process."""
    return [measure_subject(subject, again) for subject in subjects]


def measure_subject(subject: AtlasSubject, again: bool = False) -> Cost:
    """Measure one subject in this process and return its cost: processor seconds, peak memory and weights in bytes.

    Processor time hardly depends on what else the machine does. It is None if an interrupted run is resumed.
    """
    began, resumed = time.process_time(), subject.out.exists() and not again
    if subject.kind == "tables":
        weights = _measure_tables(subject)
    else:
        try:
            _sweep_subject(subject, overwrite=again)
        except StoreError:  # an older version of the library began this run with other settings
            _sweep_subject(subject, overwrite=True)
        weights = int(Run.open(subject.out).info["model"]["parameters"]) * 4
    seconds = None if resumed else round(time.process_time() - began, 1)
    cost: Cost = {"seconds": seconds, "peak": peak_memory(), "weights": weights}
    sweep_temporaries(subject.out.parent)  # of a process that was killed while it wrote this file
    write_text(_cost_path(subject), json.dumps({**cost, "request": _request(subject)}))
    return cost


def peak_memory() -> int:
    """Return the most memory that this process has held so far, in bytes."""
    status = Path("/proc/self/status")
    if status.is_file():  # Linux: ru_maxrss starts there at the memory of the parent process
        line = next(line for line in status.read_text("utf-8").splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def finished_cost(subject: AtlasSubject) -> Cost | None:
    """Return the cost of a measurement that is complete and answers this request, else None."""
    path = _cost_path(subject)
    cost = read_json(path) if path.is_file() else {}
    return cost if cost.pop("request", None) == _request(subject) else None


def _cost_path(subject: AtlasSubject) -> Path:
    return subject.out.with_name(subject.out.name + _COST)


def _request(subject: AtlasSubject) -> dict[str, Any]:
    """Return what the numbers of a subject depend on, except its weights and its input, as plain JSON."""
    wanted = {"metrics": list(METRICS), "sites": list(SITES), "sample": SAMPLE}
    return {**wanted, "tokens": subject.tokens, "window": subject.window}


def _sweep_subject(subject: AtlasSubject, *, overwrite: bool) -> None:
    from anisoscope.sweep import sweep

    data: dict[str, Any] = {subject.kind: subject.source}
    swept = sweep(openable(subject.folder), out=subject.out, overwrite=overwrite, **data, **_request(subject))
    if swept.failed:
        raise InputError("; ".join(swept.failed.values()))


def openable(folder: Path) -> Path:
    """Return what `open_model` opens: the folder, or the one GGUF file in it."""
    files = sorted(folder.glob("*.gguf"))
    return files[0] if len(files) == 1 and not (folder / "config.json").is_file() else folder


def _measure_tables(subject: AtlasSubject) -> int:
    """Measure a model of tables, which no reader of text, images or sound can feed; each table is a document."""
    from safetensors.torch import load_file

    from anisoscope.measurement.measure_model import measure
    from anisoscope.models.open import open_model

    opened = open_model(subject.folder)
    stored = load_file(subject.source)
    names = ("table", "labels")
    batches = [dict(zip(names, pair, strict=True)) for pair in zip(*(stored[n].split(8) for n in names), strict=True)]
    measure(opened, batches, out=subject.out, overwrite=True, **_request(subject))
    return int(opened.info["parameters"]) * 4


def _evidence(
    model: AtlasModel,
    registry: Registry,
    check: CheckResult,
    subjects: dict[tuple[str, str], AtlasSubject],
    costs: dict[tuple[str, str], Cost],
) -> ModelEvidence:
    inputs: dict[str, Any] = {}
    for (state, name), subject in subjects.items():
        run = Run.open(subject.out)
        entry = inputs.setdefault(name, {"describes": registry.inputs[name].describes})
        entry[state] = profiles_of(run.records(), METRICS)
        if state == "trained":
            entry["tokens"] = rows_at_half_depth(run)
            about, widths = run.info["model"], layer_widths(run)
    highest = max(costs.values(), key=lambda cost: cost["peak"] - cost["weights"])
    return ModelEvidence(
        name=model.name,
        family=model.family,
        kind=model.kind,
        modality=model.modality,
        precision=model.precision,
        licence=model.licence,
        packages=[str(archive.package) for archive in model.archives],
        note=model.note,
        parameters=int(about["parameters"]),
        width=widths.pop() if len(widths) == 1 else 0,
        check=check.text,
        seconds=total_seconds(costs.values()),
        memory=round((highest["peak"] - highest["weights"]) / 2**20),
        inputs=inputs,
    )


def total_seconds(costs: Iterable[Cost]) -> int | None:
    """Return the processor time of several measurements; None if one of them has none.

    >>> total_seconds([{"seconds": 10.4}, {"seconds": 2.2}])
    13
    """
    parts = [cost["seconds"] for cost in costs]
    known = [part for part in parts if part is not None]
    return round(sum(known)) if len(known) == len(parts) else None


def rows_at_half_depth(run: Run) -> int:
    """Return how many tokens were measured in the middle of the main stack.

    Only the model knows how many patches an image has, so the data cannot be counted before; convolutions have fewer
    rows in later layers.
    """
    counts = {
        Site.parse(record.site): record.n or 0
        for record in run.records()
        if record.tokens == "all" and record.metric == _RATIO and Site.parse(record.site).kind == "resid"
    }
    layers = sorted(site for site in counts if site.stack == min(counts).stack)
    return counts[layers[len(layers) // 2]]


def layer_widths(run: Run) -> set[int]:
    """Return the widths d of the layers, from participation ratio and IsoScore: IsoScore = (PR − 1)/(d − 1)."""
    values = {
        (record.metric, record.site): record.value
        for record in run.records()
        if record.tokens == "all" and Site.parse(record.site).kind == "resid" and record.value is not None
    }
    pairs = [(ratio, values.get(("isoscore", site))) for (name, site), ratio in values.items() if name == _RATIO]
    return {round(1 + (ratio - 1) / score) for ratio, score in pairs if score}
