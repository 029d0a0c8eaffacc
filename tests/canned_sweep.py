"""A sweep without models: an engine that answers at once, and a small request."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anisoscope
from anisoscope.metrics.evaluate import MetricResult
from anisoscope.models.weight_files import weights_digest
from anisoscope.records import Record
from anisoscope.sweep.engines import Outcome, Pull
from anisoscope.sweep.jobs import Answer, Job, Measure

SMALL: dict[str, Any] = {"tokens": 400, "window": 32, "metrics": ["mean_cosine"], "sites": ["resid"], "errors": False}


def canned(job: Job) -> Answer:
    """An answer without a model: the numbers of a task are those of its key."""
    if not isinstance(job, Measure):
        return Answer([MetricResult(Record("resid.0", "cka", 1.0))])
    checkpoint = job.task.checkpoint
    value = int(job.task.key[:8], 16) / 2**32
    about = {"model": {"digest": weights_digest(Path(checkpoint.source)), "commit": None}}
    return Answer([MetricResult(Record("resid.0", "mean_cosine", value))], about=about, sketch=[float(checkpoint.step)])


def canned_engine(pull: Pull) -> Iterator[Outcome]:
    """Answer every job at once."""
    while (job := pull()) is not None:
        yield Outcome(job, canned(job))


def steps_of(path: Path) -> list[int]:
    """The steps that a run has records of."""
    return sorted({record.step for record in anisoscope.Run.open(path).records()})
