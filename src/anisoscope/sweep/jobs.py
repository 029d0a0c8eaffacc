"""What a worker is given and what it returns; both are plain values that travel between processes and machines."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from anisoscope.errors import AnisoscopeError
from anisoscope.measurement.measure_model import measure
from anisoscope.measurement.model_data import open_for
from anisoscope.measurement.request import Request
from anisoscope.measurement.site_statistics import SiteResult
from anisoscope.metrics.evaluate import MetricResult
from anisoscope.models.checkpoints import Checkpoint
from anisoscope.models.downloads import forget, is_remote
from anisoscope.models.open import Opened
from anisoscope.store.run import record_key
from anisoscope.sweep.series import fetching, sketch
from anisoscope.sweep.tasks import Task
from anisoscope.sweep.trajectory import KeptRows, between_layers, keep, moved

_ABOUT = ("model", "data", "unit", "metrics", "removed", "not_finite", "rows", "token_policy", "sample", "versions")


@dataclass(frozen=True)
class Measure:
    """A checkpoint to be measured."""

    task: Task
    request: Request
    upcoming: Checkpoint | None = None  # downloaded meanwhile
    forget: bool = False  # whether its download is removed afterwards


@dataclass(frozen=True)
class Compare:
    """The rows kept of two steps, to be compared."""

    step: int
    now: tuple[KeptRows, ...]
    then: tuple[KeptRows, ...]
    against: str | None


Job = Measure | Compare


@dataclass(frozen=True)
class Answer:
    """What a worker returns: results, rows kept for comparisons, facts for the run; or why it failed."""

    measured: list[MetricResult] = field(default_factory=list)
    kept: tuple[KeptRows, ...] = ()
    about: dict[str, Any] = field(default_factory=dict)
    sketch: list[float] = field(default_factory=list)
    seconds: float = 0.0
    worker: str = ""
    error: str | None = None
    hopeless: bool = False  # trying again would end the same way


def work(job: Job) -> Answer:
    """Do a job. A failure is an answer too, so that the rest of a sweep continues."""
    began = time.perf_counter()
    worker = f"{socket.gethostname()}:{os.getpid()}"
    try:
        answer = _do(job)
    except Exception as error:
        hopeless = isinstance(error, AnisoscopeError)
        text = str(error) if hopeless else f"{type(error).__name__}: {error}"
        return Answer(seconds=time.perf_counter() - began, worker=worker, error=text, hopeless=hopeless)
    return Answer(**{**vars(answer), "seconds": time.perf_counter() - began, "worker": worker})


def _do(job: Job) -> Answer:
    if isinstance(job, Compare):
        return Answer(moved(job.now, job.then, step=job.step, against=job.against))
    answer = _measure(job)
    if job.forget and is_remote(job.task.checkpoint.source):
        forget(job.task.checkpoint.source, job.task.checkpoint.revision)
    return answer


def _measure(job: Measure) -> Answer:
    checkpoint = job.task.checkpoint
    request = job.request.having(revision=checkpoint.revision, seed=job.task.seed)
    opened = open_for(checkpoint.source, request)
    kept: list[KeptRows] = []
    with fetching(job.upcoming, job.request.opening()):
        run = measure(opened, **request.flat_without("vectors", "output"), on_site=partial(_keep, kept))
        if run.info["interrupted"]:
            raise KeyboardInterrupt  # half a measurement is none
    replicates = run.replicates()
    measured = [MetricResult(record, replicates.get(record_key(record), ())) for record in run.records()]
    return _answer(job.task, measured, kept, run.info, opened)


def _keep(kept: list[KeptRows], result: SiteResult) -> None:
    rows = keep(result)
    if rows is not None:
        kept.append(rows)


def _answer(
    task: Task, measured: list[MetricResult], kept: list[KeptRows], info: Mapping[str, Any], opened: Opened
) -> Answer:
    step = task.checkpoint.step
    similar = between_layers(kept, step=step)
    about = {name: info[name] for name in _ABOUT if name in info}
    return Answer(measured + similar, tuple(kept), about, sketch(opened.model))
