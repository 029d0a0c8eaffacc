"""New metrics of an existing run, computed from the statistics that it keeps."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from anisoscope.errors import InputError, MetricError, StoreError
from anisoscope.measurement.run_output import save_measured
from anisoscope.metrics import find
from anisoscope.metrics.evaluate import MetricResult, evaluate
from anisoscope.stats.cloud import Block, Cloud, from_arrays
from anisoscope.store.files import parse_errors
from anisoscope.store.run import Run

_CONCEPTS = "concepts"  # stored by the tracker like a statistic: the state of a fit, which no metric needs


def recompute(run: str | Path | Run, metrics: Sequence[str]) -> Run:
    """Compute metrics of an existing run from the statistics it keeps, and append the records to it.

    Args:
        run: A run or its folder.
        metrics: Metrics by name.

    Returns:
        The run, with its earlier records and the new ones. The new ones have error bars only if the run keeps block
        statistics (`keep_blocks`). A run of a large model keeps only small statistics, unless it was measured with
        `keep_statistics`.

    Raises:
        InputError: The run keeps no statistics.
        MetricError: A metric needs a statistic that the run does not keep.

    Example: `recompute("runs/model", ["rankme"])`.
    """
    path = run.path if isinstance(run, Run) else Path(run)
    chosen = find(metrics)
    Run.open(path)  # refuse a folder that is not a run before writing to it
    with Run.create(path, resume=True) as writer:
        addresses = [each for each in writer.statistics() if each[2] != _CONCEPTS]
        whole = [(step, site, tokens) for step, site, tokens, block in addresses if block is None]
        if not whole:
            raise InputError(
                f"run {writer.name} keeps no statistics; measure it again with --keep-statistics (keep_statistics=True)"
            )
        unit = str(writer.info.get("unit", "rows"))
        out: list[MetricResult] = []
        for step, site, tokens in whole:
            blocks = [b for s, at, t, b in addresses if (s, at, t) == (step, site, tokens) and b is not None]
            cloud = _stored_cloud(writer, step, site, tokens, blocks)
            for metric in chosen:
                missing = sorted(name for name in metric.sources if name not in cloud.stats)
                if missing:
                    needed = f"the run keeps no {', '.join(missing)} at {site}"
                    raise MetricError(metric.name, needed, "measure again with --keep-statistics, or with this metric")
            # Arrays of the right names may still have impossible shapes or values.
            with parse_errors(
                f"{path}, the statistics of {site} at step {step}", "measure this step again", StoreError
            ):
                out += evaluate(
                    cloud, chosen, site=site, run=writer.name, step=step, tokens=tokens, unit=unit, errors=bool(blocks)
                )
        writer.update_info(metrics={metric.name: metric.card() for metric in chosen})
        save_measured(writer, out)
    return Run.open(path)


def _stored_cloud(run: Run, step: int, site: str, tokens: str, blocks: Sequence[int]) -> Cloud:
    def load(block: int | None) -> dict[str, Any]:
        arrays = run.load_statistics(step, site, tokens, block)
        with parse_errors(
            f"{run.path}, the statistics of {site} at step {step}", "measure this step again", StoreError
        ):
            return from_arrays({name: torch.from_numpy(array) for name, array in arrays.items()})

    # sums over documents cannot leave out single tokens, so metrics must know that some were left out
    unfiltered = Cloud({}) if tokens.endswith("no-sink") else None
    return Cloud(load(None), tuple(Block(number, load(number)) for number in blocks), unfiltered=unfiltered)
