"""New metrics of an existing run, computed from the statistics that it keeps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from anisoscope.errors import InputError, MetricError, StoreError
from anisoscope.metrics import Metric, find
from anisoscope.metrics.evaluate import MetricResult, evaluate, records_and_replicates
from anisoscope.records import Site
from anisoscope.stats.cloud import Block, Cloud, from_arrays
from anisoscope.stats.registry import UNFORGETTING
from anisoscope.store.files import parse_errors
from anisoscope.store.run import Run, record_key

_FITS = "concepts"  # stored by the tracker like a statistic: the state of a fit, which no metric needs
_SAMPLES = ("reference", "frozen")  # rows and heads that the tracker keeps for drift and bases, in place of a policy
_KINDS = {"heads": ("pattern",), "router": ("router",), "branch": ("attn", "mlp")}  # sites of metrics that need these


def recompute(run: str | Path | Run, metrics: Sequence[str]) -> Run:
    """Compute metrics of an existing run from the statistics it keeps, and append the records to it.

    Every metric is computed at the sites that it applies to: those of attention at `pattern` sites, for example. A
    training run keeps sampled rows of its reference step only, which is enough for metrics of neighbours.

    Args:
        run: A run or its folder.
        metrics: Metrics by name.

    Returns:
        The run, with its earlier records and the new ones. The new ones have error bars only if the run keeps block
        statistics (`keep_blocks`); an earlier record with an error bar is not replaced by one without. A run of a large
        model keeps only small statistics, unless it was measured with `keep_statistics`.

    Raises:
        InputError: The run keeps no statistics.
        MetricError: A metric needs a statistic that the run does not keep, or compares two measurements.

    Example: `recompute("runs/model", ["rankme"])`.
    """
    path = run.path if isinstance(run, Run) else Path(run)
    chosen = find(metrics)
    Run.open(path)  # refuse a folder that is not a run before writing to it
    with Run.create(path, resume=True) as writer:
        sources = _stored_sources(writer)
        if not sources:
            raise InputError(
                f"run {writer.name} keeps no statistics; measure it again with --keep-statistics (keep_statistics=True)"
            )
        for metric in chosen:
            _require_site(metric, sources)
        unit = str(writer.info.get("unit", "rows"))
        remedy = "measure again with --keep-statistics, or with this metric"
        if writer.info.get("kind") == "training":
            remedy = "pass it to the tracker: Tracker(metrics=[…])"
        out: list[MetricResult] = []
        for source in sources:
            applicable = [metric for metric in chosen if source.allows(metric)]
            if not applicable:
                continue
            cloud = _stored_cloud(writer, source)
            _require_statistics(applicable, cloud, source.site, remedy)
            # Arrays of the right names may still have impossible shapes or values.
            with parse_errors(source.described(path), "measure this step again", StoreError):
                out += evaluate(
                    cloud,
                    applicable,
                    site=source.site,
                    run=writer.name,
                    step=source.step,
                    tokens=source.tokens,
                    unit=unit,
                    errors=bool(source.blocks),
                )
        writer.update_info(metrics={metric.name: metric.card() for metric in chosen})
        writer.append(*records_and_replicates(_without_loss(writer, out)))
    return Run.open(path)


@dataclass(frozen=True)
class _Source:
    """Stored statistics of one site: the name that they are stored under, and the token policy of their rows."""

    step: int
    site: str
    stored: str
    tokens: str
    blocks: tuple[int, ...]

    def allows(self, metric: Metric) -> bool:
        """Whether `measure` would compute the metric here: at this kind of site, and under this policy."""
        kind = Site.parse(self.site).kind
        wanted = [kinds for need, kinds in _KINDS.items() if need in metric.requires]
        if any(kind not in kinds for kinds in wanted):
            return False
        if not wanted and kind in (*_KINDS["heads"], *_KINDS["router"]):
            return False
        return not (self.tokens.endswith("no-sink") and metric.sources & {"Extremes", *UNFORGETTING})

    def described(self, path: Path) -> str:
        return f"{path}, the statistics of {self.site} at step {self.step}"


def _stored_sources(run: Run) -> list[_Source]:
    """The statistics of a run, each address once: a policy's own statistics before the tracker's samples."""
    addresses = [each for each in run.statistics() if each[2] != _FITS]
    policies = {record.site: record.tokens for record in run if record.tokens.endswith("no-sink")}
    sources: dict[tuple[int, str, str], _Source] = {}
    for step, site, stored, block in sorted(addresses, key=lambda each: each[2] in _SAMPLES):
        if block is None:
            blocks = tuple(b for s, at, t, b in addresses if (s, at, t) == (step, site, stored) and b is not None)
            tokens = policies.get(site, "all") if stored in _SAMPLES else stored
            sources.setdefault((step, site, tokens), _Source(step, site, stored, tokens, blocks))
    return list(sources.values())


def _require_site(metric: Metric, sources: Sequence[_Source]) -> None:
    if "reference" in metric.requires:
        remedy = "choose it while you track a training, or use `anisoscope similarity`"
        raise MetricError(metric.name, "it compares two measurements of the same tokens", remedy)
    if not any(source.allows(metric) for source in sources):
        raise MetricError(metric.name, "the run has no site that it applies to", "measure again with this metric")


def _require_statistics(metrics: Sequence[Metric], cloud: Cloud, site: str, remedy: str) -> None:
    for metric in metrics:
        missing = sorted(name for name in metric.sources if name not in cloud.stats)
        if missing:
            raise MetricError(metric.name, f"the run keeps no {', '.join(missing)} at {site}", remedy)


def _without_loss(run: Run, measured: Sequence[MetricResult]) -> list[MetricResult]:
    """The results that do not replace a record that has an error bar by one that has none."""
    names = {result.record.metric for result in measured}
    barred = {record_key(record) for record in run if record.metric in names and record.error is not None}
    return [m for m in measured if m.record.error is not None or record_key(m.record) not in barred]


def _stored_cloud(run: Run, source: _Source) -> Cloud:
    def load(block: int | None) -> dict[str, Any]:
        arrays = run.load_statistics(source.step, source.site, source.stored, block)
        with parse_errors(source.described(run.path), "measure this step again", StoreError):
            return from_arrays({name: torch.from_numpy(array) for name, array in arrays.items()})

    # sums over documents cannot leave out single tokens, so metrics must know that some were left out
    unfiltered = Cloud({}) if source.tokens.endswith("no-sink") else None
    return Cloud(load(None), tuple(Block(number, load(number)) for number in source.blocks), unfiltered=unfiltered)
