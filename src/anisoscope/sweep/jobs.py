"""What a worker is handed and what it answers; both are plain values that travel between processes and machines."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from anisoscope.errors import AnisoscopeError
from anisoscope.measurement.measure_model import measure
from anisoscope.measurement.site_result import SiteResult
from anisoscope.metrics.evaluate import MetricResult
from anisoscope.models.checkpoints import Checkpoint
from anisoscope.models.downloads import forget, is_remote
from anisoscope.models.open import Opened, open_model
from anisoscope.store.run import record_key
from anisoscope.sweep.series import fetching, sketch
from anisoscope.sweep.sharding import count_share, evaluate_shares
from anisoscope.sweep.tasks import Task
from anisoscope.sweep.trajectory import KeptRows, between_layers, keep, moved

_ABOUT = ("model", "data", "unit", "metrics", "removed", "not_finite", "token_policy", "sample", "versions")


@dataclass(frozen=True)
class Measure:
    """A checkpoint to be measured; with more than one share, only to be counted into `folder`."""

    task: Task
    request: Mapping[str, Any]
    upcoming: Checkpoint | None = None  # fetched meanwhile
    forget: bool = False  # whether its download is removed afterwards
    folder: Path | None = None


@dataclass(frozen=True)
class Add:
    """Shares that were counted into folders, to be added and evaluated."""

    task: Task
    request: Mapping[str, Any]
    folders: tuple[Path, ...]
    forget: bool = False


@dataclass(frozen=True)
class Compare:
    """What was kept of two steps, to be compared."""

    step: int
    now: tuple[KeptRows, ...]
    then: tuple[KeptRows, ...]
    against: str | None


Job = Measure | Add | Compare


@dataclass(frozen=True)
class Answer:
    """What a worker found: numbers, what is kept for comparing, facts for the run; or why it failed."""

    measured: list[MetricResult] = field(default_factory=list)
    kept: tuple[KeptRows, ...] = ()
    about: dict[str, Any] = field(default_factory=dict)
    sketch: list[float] = field(default_factory=list)
    seconds: float = 0.0
    worker: str = ""
    error: str | None = None
    hopeless: bool = False  # trying again would end the same way


def work(job: Job) -> Answer:
    """Does a job. Whatever goes wrong is an answer too, so that the rest of a sweep goes on."""
    began = time.perf_counter()
    worker = f"{socket.gethostname()}:{os.getpid()}"
    try:
        found = _do(job)
    except Exception as error:
        hopeless = isinstance(error, AnisoscopeError)
        text = str(error) if hopeless else f"{type(error).__name__}: {error}"
        return Answer(seconds=time.perf_counter() - began, worker=worker, error=text, hopeless=hopeless)
    return Answer(**{**vars(found), "seconds": time.perf_counter() - began, "worker": worker})


def _do(job: Job) -> Answer:
    if isinstance(job, Compare):
        return Answer(moved(job.now, job.then, step=job.step, against=job.against))
    opened = _open(job.task, job.request)
    answer = _add(job, opened) if isinstance(job, Add) else _measure(job, opened)
    if job.forget and is_remote(job.task.checkpoint.source):
        forget(job.task.checkpoint.source, job.task.checkpoint.revision)
    return answer


def _measure(job: Measure, opened: Opened) -> Answer:
    seen: list[KeptRows] = []
    with fetching(job.upcoming, dict(job.request.get("opening") or {})):
        if job.folder is not None:
            count_share(opened, job.request, job.task.share, job.task.seed, job.folder)
            return Answer()
        run = measure(opened, **{**job.request, "seed": job.task.seed}, seeing=partial(_see, seen))
        if run.info["interrupted"]:
            raise KeyboardInterrupt  # half a measurement is none
    others = run.replicates()
    measured = [MetricResult(record, others.get(record_key(record), ())) for record in run.records()]
    return _answer(job.task, measured, seen, run.info, opened)


def _add(job: Add, opened: Opened) -> Answer:
    seen: list[KeptRows] = []
    about, measured = evaluate_shares(opened, job.request, job.folders, job.task.seed, partial(_see, seen))
    return _answer(job.task, measured, seen, about, opened)


def _open(task: Task, request: Mapping[str, Any]) -> Opened:
    kinds = {"image": request.get("images"), "audio": request.get("audio")}
    modality = next((kind for kind, source in kinds.items() if source is not None), None)
    head = bool(request.get("weights")) or request.get("generate") is not None
    opening = {**dict(request.get("opening") or {}), "revision": task.checkpoint.revision}
    return open_model(task.checkpoint.source, head=head, modality=modality, **opening)


def _see(seen: list[KeptRows], done: SiteResult) -> None:
    kept = keep(done)
    if kept is not None:
        seen.append(kept)


def _answer(
    task: Task, measured: list[MetricResult], seen: list[KeptRows], info: Mapping[str, Any], opened: Opened
) -> Answer:
    step = task.checkpoint.step
    similar = between_layers(seen, step=step)
    about = {name: info[name] for name in _ABOUT if name in info}
    return Answer(measured + similar, tuple(seen), about, sketch(opened.model))
