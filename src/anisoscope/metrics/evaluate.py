"""Compute metrics of a cloud as records, with error bars and null values.

Error bars come from a jackknife over blocks of documents: every metric is computed again without each block. If blocks
do not account for all dependence (rows that share neighbours, pairs of blocks), the metric's `Value.stretch` corrects
the replicates.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from anisoscope.errors import MetricError
from anisoscope.metrics.metric import Metric, Undefined, Value
from anisoscope.metrics.nulls import Isotropic, isotropic
from anisoscope.records import Record, Replicates
from anisoscope.stats.cloud import Cloud
from anisoscope.stats.derived import Peeled
from anisoscope.stats.inference import jackknife
from anisoscope.stats.moments import Moments
from anisoscope.stats.neighbours import LocalDimensions, Neighbours
from anisoscope.stats.registry import leaves_blocks_out, sources
from anisoscope.stats.threads import in_threads

FEWEST_BLOCKS = 4
_Outcome = list[Value] | MetricError


@dataclass(frozen=True)
class MetricResult:
    """A record, and its value without each block in turn, from which paired comparisons of two runs are made."""

    record: Record
    replicates: tuple[float, ...] = ()


def records_and_replicates(
    results: Sequence[MetricResult],
) -> tuple[list[Record], list[tuple[float, ...] | None]]:
    """Return the records and the replicates of each, the arguments of `Run.append`."""
    return [each.record for each in results], [each.replicates or None for each in results]


def evaluate(
    cloud: Cloud,
    metrics: Sequence[Metric],
    *,
    site: str,
    run: str = "",
    step: int = 0,
    tokens: str = "all",
    unit: str = "rows",
    errors: bool | Literal["fast"] = True,
) -> list[MetricResult]:
    """Compute metrics of a cloud.

    Args:
        cloud: The collected statistics.
        metrics: The metrics; the cloud must hold their `sources`.
        site: Site of the records.
        run: Run of the records.
        step: Step of the records.
        tokens: Token policy of the records.
        unit: What blocks consist of, for `error_kind`: documents, windows or rows.
        errors: Compute error bars; "fast" leaves out those of slow metrics.

    Returns:
        One result per number. A metric without a value gives one record without value, whose note has the reason.
    """
    # whole neighbourhoods first: metrics of two neighbours then need no search of their own
    whole = {
        m.name: _largest(_attempt(m, cloud), m.top)
        for m in sorted(metrics, key=lambda m: not {Neighbours, LocalDimensions} & set(m.needs))
    }
    barred = [m for m in metrics if m.bars and (errors != "fast" or not m.slow)]
    without = _replicates(cloud, barred, whole) if errors and len(cloud.blocks) >= FEWEST_BLOCKS else []
    needs_null = any(m.null is not None for m in metrics) and cloud.has(Moments) and _finite(cloud)
    null = isotropic(cloud) if needs_null else None
    out: list[MetricResult] = []
    for metric in metrics:
        outcome = whole[metric.name]
        if isinstance(outcome, MetricError):
            why = f"{outcome.reason}; {outcome.remedy}"
            out.append(MetricResult(Record(site, metric.name, None, run, step, metric.version, tokens, note=why)))
            continue
        for value in outcome:
            error, note, replicates = _error(metric, value, without, cloud, unit, bool(errors))
            level, no_level = _null(metric, value, null, cloud)
            record = Record(
                site=site,
                metric=metric.name,
                value=value.value,
                run=run,
                step=step,
                version=metric.version,
                tokens=tokens,
                index=value.index,
                variant=value.variant,
                error=error,
                error_kind=None if error is None else f"jackknife-{len(without)}-{unit}",
                null=level,
                n=cloud.n if value.n is None else value.n,
                note="; ".join(text for text in (value.note, note, no_level) if text) or None,
            )
            out.append(MetricResult(record, replicates))
    return out


@dataclass(frozen=True)
class _Without:
    """Values of the metrics without one block of `size` rows."""

    size: int
    values: dict[str, dict[tuple[object, ...], float | None]]


def _replicates(cloud: Cloud, metrics: Sequence[Metric], whole: Mapping[str, _Outcome]) -> list[_Without]:
    """Compute the numbers of `whole` without each block, one block per thread: each is too small for several."""
    peel = any(Peeled in metric.needs for metric in metrics)
    needs = {kind for metric in metrics for kind in metric.needs}
    made = {kind for kind in needs if not leaves_blocks_out(kind) or cloud.derived(kind) is None}
    sample = any("Sample" in sources(kind) for kind in made)
    keys = {name: [v.key for v in values] for name, values in whole.items() if not isinstance(values, MetricError)}
    metrics = [metric for metric in metrics if metric.name in keys]  # of no value there is no error bar

    def without(index: int) -> _Without:
        part = cloud.without_block(index, exact_extremes=peel, sample=sample)
        values = {}
        for metric in metrics:
            outcome = _attempt(metric, part, keys[metric.name])
            values[metric.name] = {} if isinstance(outcome, MetricError) else {v.key: v.value for v in outcome}
        return _Without(cloud.n - part.n, values)

    return in_threads(without, range(len(cloud.blocks)))


def _attempt(metric: Metric, cloud: Cloud, only: Collection[tuple[object, ...]] | None = None) -> _Outcome:
    try:
        return metric.values(cloud, only)
    except MetricError as why:
        return why


def _error(
    metric: Metric, value: Value, without: Sequence[_Without], cloud: Cloud, unit: str, wanted: bool
) -> tuple[float | None, str | None, tuple[float, ...]]:
    if value.value is None or not wanted or not value.bars:
        return None, None, ()
    if not without and not metric.bars:
        return None, None, ()
    if not without:
        return None, f"no error bar: {len(cloud.blocks)} blocks of {unit}, {FEWEST_BLOCKS} are needed", ()
    if metric.name not in without[0].values:
        return None, "no error bar because it is slow: name the metric to get one" if metric.bars else None, ()
    replicates = [part.values[metric.name].get(value.key) for part in without]
    known = [r for r in replicates if r is not None]
    if len(known) < len(replicates):
        return None, "no error bar: there is no value without some of the blocks", ()
    stretched = [value.value + value.stretch * (r - value.value) for r in known]
    sizes = [part.size for part in without]
    return jackknife(value.value, stretched, sizes), None, Replicates(stretched, sizes)


def _null(metric: Metric, value: Value, null: Isotropic | None, cloud: Cloud) -> tuple[float | None, str | None]:
    """Return the null value, or None and, if the rows do not allow one, the reason."""
    if value.null is not None or metric.null is None or null is None:
        return value.null, None
    n = cloud.n if value.n is None else min(value.n, cloud.n)  # a sample has fewer rows
    scaled = Isotropic(null.dim, max(null.rows * n / max(cloud.n, 1), 1.0), null.heaviest)
    if not scaled.describes_tail(n, metric.null_rows):
        needed = math.ceil(metric.null_rows * null.dim)
        return None, f"no null value: {n:,} rows count as {scaled.rows:,.0f} independent ones, {needed:,} are needed"
    try:
        level = metric.null(scaled, value)
    except Undefined:
        return None, None
    return (level, None) if level is not None and math.isfinite(level) else (None, None)


def _largest(values: _Outcome, top: int | None) -> _Outcome:
    if isinstance(values, MetricError) or top is None or len(values) <= top:
        return values
    return sorted(values, key=lambda v: -abs(v.value or 0.0))[:top]


def _finite(cloud: Cloud) -> bool:
    return bool(cloud.get(Moments).fourth.isfinite())
