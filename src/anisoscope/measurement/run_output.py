"""Runs as the drivers write them: what a run says of itself, its records, its statistics."""

from __future__ import annotations

import platform
import shutil
import tempfile
import weakref
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from anisoscope import __version__
from anisoscope.errors import InputError, MetricError
from anisoscope.metrics import Metric, catalogue, find
from anisoscope.metrics.evaluate import MetricResult
from anisoscope.stats.cloud import Cloud, to_arrays
from anisoscope.store.run import Run


def choose_metrics(names: Sequence[str | Metric] | None, known: set[str]) -> list[Metric]:
    """The metrics named (or given as they are), or all that rows with these facts (`documents`, `tokens`) can have."""
    if names is None:
        return [m for m in catalogue().values() if m.requires <= known]
    if isinstance(names, str):
        raise InputError(f"metrics is a list of names, such as [{names!r}], not a text")
    chosen = [name if isinstance(name, Metric) else find([name])[0] for name in names]
    for metric in chosen:
        lacking = sorted(metric.requires - known)
        if lacking:
            raise MetricError(
                metric.name, f"the rows come without {' and '.join(lacking)}", "give them, or leave it out"
            )
    return chosen


def run_info(info: dict[str, Any], metrics: Iterable[Metric]) -> dict[str, Any]:
    """What a run says of itself: the given facts, the versions, the cards of its metrics."""
    versions = {"anisoscope": __version__, "torch": torch.__version__, "numpy": np.__version__}
    return {
        **info,
        "versions": {**versions, "python": platform.python_version()},
        "metrics": {metric.name: metric.card() for metric in metrics},
    }


def create_run(out: str | Path | None, info: dict[str, Any], command: str | None) -> Run:
    """A run in the folder asked for, or in one that goes with the object."""
    if out is not None:
        return Run.create(out, info, command=command)
    folder = tempfile.mkdtemp(prefix="anisoscope-run-")
    run = Run.create(Path(folder) / "run", info, command=command)
    weakref.finalize(run, shutil.rmtree, folder, ignore_errors=True)
    return run


def save_measured(run: Run, measured: Sequence[MetricResult]) -> None:
    run.append([m.record for m in measured], [m.replicates or None for m in measured])


def save_cloud(run: Run, cloud: Cloud, *, site: str, step: int = 0, tokens: str = "all", blocks: bool = False) -> None:
    """Keeps a cloud's pooled statistics, and those of its blocks where asked."""
    run.save_statistics(step, site, tokens, _numpy(to_arrays(cloud.stats)))
    for block in cloud.blocks if blocks else ():
        run.save_statistics(step, site, tokens, _numpy(to_arrays(block.load())), block=block.number)


def _numpy(arrays: dict[str, Tensor]) -> dict[str, np.ndarray[Any, Any]]:
    """Tensors as numpy arrays; bfloat16, which numpy lacks, is widened."""
    return {name: (t.float() if t.dtype == torch.bfloat16 else t).numpy() for name, t in arrays.items()}
