"""Runs as the drivers write and read them: records, statistics, and a new metric on an old run."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from anisoscope import __version__
from anisoscope.errors import InputError, MetricError
from anisoscope.metrics import Metric, catalogue, find
from anisoscope.metrics.evaluate import Measured, evaluate
from anisoscope.records import Record
from anisoscope.stats.blocks import Block, Cloud, from_arrays, to_arrays
from anisoscope.store import Run


def recompute(run: str | Path | Run, metrics: Sequence[str]) -> list[Record]:
    """Metrics of an old run from the statistics it keeps; the new records are added to it.

    Error bars need the statistics of the blocks (`keep_blocks`, `--keep-blocks`).
    """
    path = run.path if isinstance(run, Run) else Path(run)
    chosen = find(metrics)
    Run.open(path)  # a folder that is no run is refused before anything is written to it
    with Run.create(path, resume=True) as writer:
        addresses = writer.statistics()
        whole = [(step, site, tokens) for step, site, tokens, block in addresses if block is None]
        if not whole:
            raise InputError(f"run {writer.name} keeps no statistics; measure it again with --out")
        unit = str(writer.info.get("unit", "rows"))
        out: list[Measured] = []
        for step, site, tokens in whole:
            blocks = [b for s, at, t, b in addresses if (s, at, t) == (step, site, tokens) and b is not None]
            cloud = _stored_cloud(writer, step, site, tokens, blocks)
            for metric in chosen:
                missing = sorted(name for name in metric.sources if name not in cloud.stats)
                if missing:
                    needed = f"the run keeps no {', '.join(missing)} at {site}"
                    raise MetricError(metric.name, needed, "measure again with this metric")
            out += evaluate(
                cloud, chosen, site=site, run=writer.name, step=step, tokens=tokens, unit=unit, errors=bool(blocks)
            )
        writer.update_info(metrics={metric.name: metric.card() for metric in chosen})
        save_measured(writer, out)
    return [m.record for m in out]


def choose_metrics(names: Sequence[str] | None, known: set[str]) -> list[Metric]:
    """The metrics named, or all that rows with these facts (`documents`, `tokens`) can have."""
    if names is None:
        return [m for m in catalogue().values() if m.requires <= known]
    chosen = find(names)
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


def save_measured(run: Run, measured: Sequence[Measured]) -> None:
    run.append([m.record for m in measured], [m.replicates or None for m in measured])


def save_cloud(run: Run, cloud: Cloud, *, site: str, step: int = 0, tokens: str = "all", blocks: bool = False) -> None:
    """Keeps a cloud's pooled statistics, and those of its blocks where asked."""
    run.save_statistics(step, site, tokens, _numpy(to_arrays(cloud.stats)))
    for block in cloud.blocks if blocks else ():
        run.save_statistics(step, site, tokens, _numpy(to_arrays(block.load())), block=block.number)


def _stored_cloud(run: Run, step: int, site: str, tokens: str, blocks: Sequence[int]) -> Cloud:
    def load(block: int | None) -> dict[str, Any]:
        arrays = run.load_statistics(step, site, tokens, block)
        return from_arrays({name: torch.from_numpy(array) for name, array in arrays.items()})

    return Cloud(load(None), tuple(Block(number, load(number)) for number in blocks))


def _numpy(arrays: dict[str, Tensor]) -> dict[str, np.ndarray[Any, Any]]:
    """Tensors as numpy arrays; bfloat16, which numpy lacks, is widened."""
    return {name: (t.float() if t.dtype == torch.bfloat16 else t).numpy() for name, t in arrays.items()}
