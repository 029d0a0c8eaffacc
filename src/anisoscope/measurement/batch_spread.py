"""Mean and standard deviation of every metric over batches of tokens, as papers report them."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from anisoscope.measurement.site_result import SiteResult
from anisoscope.metrics.evaluate import MetricResult
from anisoscope.records import Record, Site

if TYPE_CHECKING:
    from anisoscope.measurement.engine import Engine

Key = tuple[Any, ...]  # site, metric, version, tokens, index, variant


class Spread:
    """A metric's spread over batches of so many tokens, as papers report it: each batch is a survey of its own."""

    def __init__(self, tokens: int, empty: Callable[[], Engine]) -> None:
        self._tokens = tokens
        self._empty = empty
        self._found: dict[Key, list[float]] = {}
        self.part = empty()

    def fed(self, tokens: int) -> None:
        """The part has seen so many more tokens; a full batch is evaluated and forgotten."""
        self.part.counted += tokens
        if self.part.counted < self._tokens:
            return
        for site in self.part.evaluated(errors=False):
            for m in site.measured:
                r = m.record
                if r.value is not None:
                    variant = json.dumps(dict(r.variant), sort_keys=True)
                    self._found.setdefault((r.site, r.metric, r.version, r.tokens, r.index, variant), []).append(
                        r.value
                    )
        self.part = self._empty()

    @property
    def batches(self) -> int:
        """How many full batches there were."""
        return max((len(values) for values in self._found.values()), default=0)

    def values(self) -> list[Any]:
        return [[list(key), values] for key, values in self._found.items()]

    def restore(self, values: list[Any]) -> None:
        self._found = {tuple(key): list(found) for key, found in values}

    def evaluated(self, *, run: str, step: int, policies: tuple[str, str]) -> Iterator[SiteResult]:
        """Mean (with its standard error) and standard deviation over the full batches, as variants of each metric."""
        if self.batches < 2:
            return
        batches = self.batches
        by_site: dict[str, list[MetricResult]] = {}
        for (site, metric, version, tokens, index, variant), values in self._found.items():
            if len(values) < batches:
                continue  # a number that some batches lack, such as the largest dimensions, has no spread
            mean, deviation = statistics.fmean(values), statistics.stdev(values)
            shared: dict[str, Any] = {"index": index, "n": self._tokens, "version": version, "run": run, "step": step}
            shared["tokens"] = policies[0] if tokens == "all" else policies[1]
            for of, value, error in (("mean", mean, deviation / math.sqrt(batches)), ("std", deviation, None)):
                kind = None if error is None else f"spread-{batches}-batches"
                which = {**json.loads(variant), "over": "batches", "of batches": of}
                record = Record(site, metric, value, variant=which, error=error, error_kind=kind, **shared)
                by_site.setdefault(site, []).append(MetricResult(record))
        for name, measured in by_site.items():
            yield SiteResult(Site.parse(name), {}, measured)
