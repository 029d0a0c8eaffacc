"""From a collected cloud to records: every metric's numbers with their error bars and nulls.

Error bars are jackknives over blocks of documents: each metric is computed again without each block. Blocks differ a
little in size, so the delete-m_j form is used (Busing, Meijer and van der Leeden 1999). Where blocks are not all of
the dependence (rows that share neighbours, pairs of blocks) a value says by how much to stretch the replicates.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from anisoscope.errors import MetricError
from anisoscope.metrics.metric import Metric, Undefined, Value
from anisoscope.metrics.nulls import Isotropic, isotropic
from anisoscope.records import Record, Replicates
from anisoscope.stats.cloud import Cloud
from anisoscope.stats.derived import Peeled, sources
from anisoscope.stats.moments import Moments
from anisoscope.stats.neighbours import LocalDimensions, Neighbours
from anisoscope.stats.threads import in_threads

FEWEST_BLOCKS = 4
_Found = list[Value] | MetricError


@dataclass(frozen=True)
class MetricResult:
    """A record, and its value without each block in turn (so that two runs can be compared in pairs)."""

    record: Record
    replicates: tuple[float, ...] = ()


def evaluate(
    cloud: Cloud,
    metrics: Sequence[Metric],
    *,
    site: str,
    run: str = "",
    step: int = 0,
    tokens: str = "all",
    unit: str = "rows",
    errors: bool = True,
    slow_errors: bool = True,
) -> list[MetricResult]:
    """All numbers of these metrics for a cloud. A metric without a value gives one record whose note says why.

    `unit` is what blocks are made of: documents, windows, rows. Without `slow_errors` metrics that iterate to a
    fixed point are computed once and not again without each block.
    """
    # whole neighbourhoods first: metrics of two neighbours then need no search of their own
    whole = {
        m.name: _largest(_attempt(m, cloud), m.top)
        for m in sorted(metrics, key=lambda m: not {Neighbours, LocalDimensions} & set(m.needs))
    }
    barred = [m for m in metrics if m.bars and (slow_errors or not m.slow)]
    without = _replicates(cloud, barred, whole) if errors and len(cloud.blocks) >= FEWEST_BLOCKS else []
    null = isotropic(cloud) if cloud.has(Moments) and _finite(cloud) else None
    out: list[MetricResult] = []
    for metric in metrics:
        found = whole[metric.name]
        if isinstance(found, MetricError):
            why = f"{found.reason}; {found.remedy}"
            out.append(MetricResult(Record(site, metric.name, None, run, step, metric.version, tokens, note=why)))
            continue
        for value in found:
            error, note, replicates = _error(metric, value, without, cloud, unit, errors)
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
                null=_null(metric, value, null, cloud),
                n=cloud.n if value.n is None else value.n,
                note="; ".join(text for text in (value.note, note) if text) or None,
            )
            out.append(MetricResult(record, replicates))
    return out


def jackknife(value: float, replicates: Sequence[float], sizes: Sequence[int]) -> float:
    """Standard error of a value from its replicates without each block, blocks of any sizes.

    >>> jackknife(2.0, [2.5, 2.0, 1.5], [1, 1, 1])  # the mean of 1, 2, 3: its standard error is 1/√3
    0.5773502691896257
    """
    n, blocks = sum(sizes), len(sizes)
    centre = blocks * value - sum((1 - m / n) * r for m, r in zip(sizes, replicates, strict=True))
    spread = 0.0
    for m, replicate in zip(sizes, replicates, strict=True):
        h = n / m
        spread += (h * value - (h - 1) * replicate - centre) ** 2 / (h - 1)
    return math.sqrt(spread / blocks)


@dataclass(frozen=True)
class _Without:
    """What the metrics say without one block of `size` rows."""

    size: int
    values: dict[str, dict[tuple[object, ...], float | None]]


def _replicates(cloud: Cloud, metrics: Sequence[Metric], whole: Mapping[str, _Found]) -> list[_Without]:
    """The numbers of `whole` without each block in turn, as many at a time as threads: each is too small to share."""
    peel = any(Peeled in metric.needs for metric in metrics)
    made = {kind for metric in metrics for kind in metric.needs if kind.__name__ not in cloud.carried}
    sample = any("Sample" in sources(kind) for kind in made)
    keys = {name: [v.key for v in found] for name, found in whole.items() if not isinstance(found, MetricError)}

    def without(place: int) -> _Without:
        part = cloud.without_block(place, peel=peel, sample=sample)
        values = {}
        for metric in metrics:
            found = _attempt(metric, part, keys.get(metric.name))
            values[metric.name] = {} if isinstance(found, MetricError) else {v.key: v.value for v in found}
        return _Without(cloud.n - part.n, values)

    return in_threads(without, range(len(cloud.blocks)))


def _attempt(metric: Metric, cloud: Cloud, only: Collection[tuple[object, ...]] | None = None) -> _Found:
    try:
        return metric.values(cloud, only)
    except MetricError as why:
        return why


def _error(
    metric: Metric, value: Value, without: Sequence[_Without], cloud: Cloud, unit: str, wanted: bool
) -> tuple[float | None, str | None, tuple[float, ...]]:
    if value.value is None or not wanted:
        return None, None, ()
    if not without and not metric.bars:
        return None, None, ()
    if not without:
        return None, f"no error bar: {len(cloud.blocks)} blocks of {unit}, {FEWEST_BLOCKS} are needed", ()
    if metric.name not in without[0].values:
        return None, "no error bar unless asked for by name: it is slow" if metric.bars else None, ()
    replicates = [part.values[metric.name].get(value.key) for part in without]
    known = [r for r in replicates if r is not None]
    if len(known) < len(replicates):
        return None, "no error bar: without some blocks there is no value", ()
    stretched = [value.value + value.stretch * (r - value.value) for r in known]
    sizes = [part.size for part in without]
    return jackknife(value.value, stretched, sizes), None, Replicates(stretched, sizes)


def _null(metric: Metric, value: Value, null: Isotropic | None, cloud: Cloud) -> float | None:
    if value.null is not None or metric.null is None or null is None:
        return value.null
    share = 1.0 if value.n is None else min(1.0, value.n / cloud.n)  # a sample is worth fewer rows
    try:
        level = metric.null(Isotropic(null.dim, max(null.rows * share, 1.0), null.heaviest), value)
    except Undefined:
        return None
    return level if level is not None and math.isfinite(level) else None


def _largest(values: _Found, top: int | None) -> _Found:
    if isinstance(values, MetricError) or top is None or len(values) <= top:
        return values
    return sorted(values, key=lambda v: -abs(v.value or 0.0))[:top]


def _finite(cloud: Cloud) -> bool:
    return bool(cloud.get(Moments).fourth.isfinite())
