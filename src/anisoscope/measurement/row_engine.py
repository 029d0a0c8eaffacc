"""The engine of rows without a model, in `Geometry` and `measure_rows`: batches to statistics, and those to results."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from anisoscope.errors import InputError
from anisoscope.measurement.request import VECTOR_SAMPLE
from anisoscope.measurement.row_stream import RowStream
from anisoscope.measurement.run_output import choose_metrics
from anisoscope.metrics.evaluate import MetricResult, evaluate
from anisoscope.metrics.metric import Metric
from anisoscope.stats.cloud import Cloud
from anisoscope.stats.collect import second_pass, second_pass_on_sample, with_documents
from anisoscope.stats.collector import Collector, Part
from anisoscope.stats.moments import Moments
from anisoscope.stats.registry import SECOND_PASS
from anisoscope.stats.rows import Rows
from anisoscope.stats.scratch import Room

_ROOM = Room(blocks=256 << 20)  # more than one of many sites may hold: the blocks of rows of up to 900 numbers
Batches = Iterable[tuple[Tensor, Tensor | None]]  # rows (n, d), and the document of each if documents are known


@dataclass(frozen=True)
class RowOptions:
    """What rows are measured for.

    Attributes:
        metrics: Metrics by name; None for all that the rows allow.
        sample: Rows kept for metrics that need rows.
        seed: Seed of the sample.
        errors: Whether error bars are computed.
        precise: Multiply rows in float64 throughout.
        expected: Number of rows that will come, if known.
        worker: Number of the worker that collects the rows.
    """

    metrics: Sequence[str | Metric] | None = None
    sample: int = VECTOR_SAMPLE
    seed: int = 0
    errors: bool = True
    precise: bool = False
    expected: int | None = None
    worker: int = 0

    def plain(self) -> dict[str, Any]:
        """Return the options as JSON can hold them: metrics are names."""
        names = None if self.metrics is None else [m.name if isinstance(m, Metric) else m for m in self.metrics]
        return {**vars(self), "metrics": names}


class RowEngine:
    """Collects rows that arrive in batches of any size, and evaluates metrics of all of them.

    Args:
        options: What to collect.
        twice: Whether the rows can be read twice. If not, metrics that need this are computed from the sample.
    """

    def __init__(self, options: RowOptions, *, twice: bool = False) -> None:
        self.options = options
        self._twice = twice
        self.stream = RowStream(options.worker, options.seed, options.expected)
        self.collector: Collector | None = None
        self._chosen: dict[bool, list[Metric]] = {}  # by whether documents are known

    @property
    def metrics(self) -> list[Metric]:
        """The metrics that these rows can have."""
        documented = self.stream.documented
        if documented not in self._chosen:
            self._chosen[documented] = choose_metrics(self.options.metrics, {"documents"} if documented else set())
        return self._chosen[documented]

    def add(self, x: Tensor, document: Tensor | None) -> None:
        """Add rows (n, d) with their documents."""
        for piece in self.stream.add(x, document):
            if self.collector is None:
                self.collector = self.new_collector()
            self.collector.add(piece)

    def new_collector(self) -> Collector:
        """Return a collector of what the metrics need, without rows."""
        names = with_documents(self._sources(), torch.empty(0) if self.stream.documented else None)
        make = {"Moments": partial(Moments.of, precise=True)} if self.options.precise else None
        if names & set(SECOND_PASS) and not self._twice:
            names.add("Sample")
        collector = Collector(sorted(names - set(SECOND_PASS)), make=make, sample=self.options.sample)
        collector.room = _ROOM
        return collector

    def whole(self) -> Collector:
        """Return a collector of all rows so far, also of those that wait for a full piece; nothing here is changed."""
        collector = self.new_collector() if self.collector is None else self.collector.copy()
        for rows in self.stream.rest():
            collector.add(rows)
        return collector

    def cloud(self, again: Callable[[], Batches] | None = None) -> Cloud:
        """Return the statistics of all rows so far.

        Args:
            again: Reads the same rows again, for metrics that need them twice. Without it, these come from the sample.
        """
        if not self.stream.rows:
            raise InputError("There are no rows yet. Call update(rows) first.")
        cloud, sources = self.whole().finish(), self._sources()
        second = [name for name in SECOND_PASS if name in sources]
        if not second:
            return cloud
        return (
            second_pass_on_sample(cloud, second) if again is None else second_pass(cloud, self._pieces(again()), second)
        )

    def results(self, cloud: Cloud, *, site: str, run: str) -> list[MetricResult]:
        """Evaluate the metrics."""
        errors: Any = "fast" if self.options.errors and self.options.metrics is None else self.options.errors
        return evaluate(cloud, self.metrics, errors=errors, site=site, run=run, unit=self.stream.unit)

    def absorb(self, seen: dict[str, Any], part: Part) -> None:
        """Add the rows of another worker."""
        self.stream.absorb(seen)
        if self.collector is None:
            self.collector = self.new_collector()
        self.collector.absorb(part)

    def _sources(self) -> set[str]:
        return {name for metric in self.metrics for name in metric.sources} | {"Directions", "Moments"}

    def _pieces(self, batches: Batches) -> Iterator[Rows]:
        """The same pieces as in the first pass."""
        stream = RowStream(self.options.worker, self.options.seed, self.options.expected)
        for x, document in batches:
            yield from stream.add(x, document)
        yield from stream.rest()
