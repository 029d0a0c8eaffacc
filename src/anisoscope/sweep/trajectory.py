"""Changes along a series, on the same tokens: drift from a reference step, between steps, between layers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import load_file, save_file

from anisoscope.errors import StoreError
from anisoscope.measurement.policies import STREAM
from anisoscope.measurement.site_statistics import SiteResult
from anisoscope.metrics import Metric, find
from anisoscope.metrics.evaluate import MetricResult, evaluate
from anisoscope.records import SUMMED_KINDS, Site
from anisoscope.stats.cloud import Cloud, Stats, from_arrays, to_arrays
from anisoscope.stats.head_sums import HeadSums
from anisoscope.stats.sample import Sample
from anisoscope.store.files import file_errors, parse_errors, replacing, sweep_temporaries

ROWS = 1024  # sampled tokens per site that are compared between steps: the same at every site and step
DRIFT = ("mean_direction_drift", "subspace_angle", "cka", "neighbour_overlap")
PATH = ("trajectory",)  # against the reference only, which fixes its axes
SIMILARITY = ("cka", "neighbour_overlap")
HEAD_DRIFT = ("q_direction_drift", "k_direction_drift")
AGAINST = "against"  # the variant that names what a step or layer is compared with; drift from the reference has none
PREVIOUS, BEFORE = "previous step", "layer before"

Arrays = dict[str, np.ndarray[Any, Any]]


@dataclass(frozen=True)
class KeptRows:
    """What is kept of one site for comparisons: sampled rows, or queries and keys of its heads."""

    site: str
    tokens: str  # the policy they were taken under
    arrays: Arrays  # numpy: they travel between processes and are stored on disk

    @property
    def cloud(self) -> Cloud:
        return Cloud(from_arrays({name: torch.from_numpy(array) for name, array in self.arrays.items()}))


def keep(result: SiteResult, rows: int = ROWS) -> KeptRows | None:
    """Return what to keep of a site: its first sampled rows by key, without sinks if there are any."""
    if not result.clouds:
        return None
    tokens = "no-sink" if "no-sink" in result.clouds else next(iter(result.clouds))
    cloud = result.clouds[tokens]
    if tokens not in ("all", "no-sink"):  # generated tokens differ from step to step
        return None
    stats: Stats
    if result.site.kind in SUMMED_KINDS:
        stats = {"HeadSums": cloud.get(HeadSums)} if cloud.has(HeadSums) else {}
    else:
        sample = cloud.get(Sample)
        stats = {"Sample": Sample(min(rows, sample.size), sample.seen, sample.x[:rows].float(), sample.table[:rows])}
    if not stats:
        return None
    return KeptRows(str(result.site), tokens, {name: value.numpy() for name, value in to_arrays(stats).items()})


def save_kept(path: Path, kept: Iterable[KeptRows]) -> None:
    """Write what was kept of one step, completely or not at all."""
    arrays = {f"{each.site}~{each.tokens}~{name}": array for each in kept for name, array in each.arrays.items()}
    with file_errors("write", path):
        path.parent.mkdir(exist_ok=True)
        sweep_temporaries(path.parent)
        with replacing(path) as temporary:
            save_file(arrays, temporary)


def load_kept(path: Path) -> tuple[KeptRows, ...]:
    """Read what `save_kept` wrote."""
    grouped: dict[tuple[str, str], Arrays] = {}
    with (
        file_errors("read", path),
        parse_errors(path, "delete it, and its step is measured again", StoreError),
    ):
        for address, array in load_file(path).items():
            site, tokens, name = address.split("~", 2)
            grouped.setdefault((site, tokens), {})[name] = array
    return tuple(KeptRows(site, tokens, arrays) for (site, tokens), arrays in grouped.items())


def moved(
    now: Iterable[KeptRows], then: Iterable[KeptRows], *, step: int, against: str | None = None
) -> list[MetricResult]:
    """Compare every site with itself at another step; `against` names a step that is not the reference."""
    before = {kept.site: kept for kept in then}
    results: list[MetricResult] = []
    for kept in now:
        if kept.site not in before:
            continue
        rows = (*DRIFT, *PATH) if against is None else DRIFT
        names = HEAD_DRIFT if Site.parse(kept.site).kind == "pattern" else rows
        results += _compared(kept, before[kept.site], find(names), step, against)
    return results


def between_layers(kept: Sequence[KeptRows], *, step: int) -> list[MetricResult]:
    """Compare every layer with the one before it."""
    results: list[MetricResult] = []
    last: dict[str, KeptRows] = {}  # by stack
    for each in sorted(kept, key=lambda kept: Site.parse(kept.site)):
        site = Site.parse(each.site)
        if site.kind not in STREAM:
            continue
        if site.stack in last:
            results += _compared(each, last[site.stack], find(SIMILARITY), step, BEFORE)
        last[site.stack] = each
    return results


def cards() -> dict[str, dict[str, Any]]:
    """Return the cards of the metrics of comparisons."""
    return {metric.name: metric.card() for metric in find((*DRIFT, *PATH, *HEAD_DRIFT))}


def _compared(
    now: KeptRows, then: KeptRows, metrics: Sequence[Metric], step: int, against: str | None
) -> list[MetricResult]:
    pair = now.cloud.with_reference(then.cloud)
    results = evaluate(pair, metrics, site=now.site, step=step, tokens=now.tokens, errors=False)
    return results if against is None else [_against(measured, against) for measured in results]


def _against(measured: MetricResult, what: str) -> MetricResult:
    variant: Mapping[str, Any] = {**measured.record.variant, AGAINST: what}
    return MetricResult(replace(measured.record, variant=variant), measured.replicates)
