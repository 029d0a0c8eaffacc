"""Mean and standard deviation of every metric over batches of tokens, as papers report them."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from anisoscope.measurement.site_statistics import EvaluationOptions, SiteCollectors, SiteResult, site_results
from anisoscope.metrics.evaluate import MetricResult
from anisoscope.records import Record, Site

Key = tuple[Any, ...]  # site, metric, version, tokens, index, variant


class BatchSpread:
    """Evaluates every batch of N tokens by itself, and reports each metric's mean and deviation over the batches.

    Args:
        size: Tokens per batch.
        empty: Creates collectors that have seen nothing, one for each batch.
    """

    def __init__(self, size: int, empty: Callable[[], SiteCollectors]) -> None:
        self._size = size
        self._empty = empty
        self._values: dict[Key, list[float]] = {}
        self._tokens = 0  # of the current batch
        self.collectors = empty()

    def add_tokens(self, more: int, unit: str) -> None:
        """Note that the collectors have seen this many more tokens; a full batch is evaluated and released."""
        self._tokens += more
        if self._tokens < self._size:
            return
        for site in site_results(self.collectors, EvaluationOptions(unit=unit, errors=False)):
            for r in (m.record for m in site.measured):
                if r.value is not None:
                    key = (r.site, r.metric, r.version, r.tokens, r.index, json.dumps(dict(r.variant), sort_keys=True))
                    self._values.setdefault(key, []).append(r.value)
        self.collectors, self._tokens = self._empty(), 0

    @property
    def batches(self) -> int:
        """How many full batches there were."""
        return max((len(values) for values in self._values.values()), default=0)

    def save(self, folder: Path) -> dict[str, Any]:
        """Write the current batch to a new folder; return what `load` needs besides, as plain JSON."""
        folder.mkdir()
        values = [[list(key), values] for key, values in self._values.items()]
        return {"values": values, "tokens": self._tokens, "collectors": self.collectors.save(folder)}

    def load(self, folder: Path, state: dict[str, Any]) -> None:
        """Read what `save` wrote."""
        self._values = {tuple(key): list(values) for key, values in state["values"]}
        self._tokens = state["tokens"]
        self.collectors.load(folder, state["collectors"])

    def results(self, options: EvaluationOptions) -> Iterator[SiteResult]:
        """Yield mean (with its standard error) and deviation over the full batches, as variants of each metric."""
        batches = self.batches
        if batches < 2:
            return
        by_site: dict[str, list[MetricResult]] = {}
        for (site, metric, version, tokens, index, variant), values in self._values.items():
            if len(values) < batches:
                continue  # a number that some batches lack, such as the largest dimensions, has no spread
            mean, deviation = statistics.fmean(values), statistics.stdev(values)
            shared: dict[str, Any] = {"index": index, "n": self._size, "version": version}
            shared |= {"run": options.run, "step": options.step}
            shared["tokens"] = options.policies[0] if tokens == "all" else options.policies[1]
            for of, value, error in (("mean", mean, deviation / math.sqrt(batches)), ("std", deviation, None)):
                kind = None if error is None else f"spread-{batches}-batches"
                which = {**json.loads(variant), "over": "batches", "of batches": of}
                record = Record(site, metric, value, variant=which, error=error, error_kind=kind, **shared)
                by_site.setdefault(site, []).append(MetricResult(record))
        for name, measured in by_site.items():
            yield SiteResult(Site.parse(name), {}, measured)
