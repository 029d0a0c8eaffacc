"""The sampled rows after a map: their cloud, their neighbours, and the numbers that follow from them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from anisoscope.embedding_quality.corpus import Corpus
from anisoscope.embedding_quality.means import MeanError, mean_of
from anisoscope.embedding_quality.quality_records import number_key
from anisoscope.embedding_quality.row_maps import RowMap, unit
from anisoscope.metrics import find
from anisoscope.metrics.embedding import HUB_NEIGHBOURS, occurrences
from anisoscope.metrics.evaluate import MetricResult, evaluate
from anisoscope.records import Record
from anisoscope.stats.cloud import Cloud
from anisoscope.stats.collect import collect
from anisoscope.stats.inference import jackknife
from anisoscope.stats.knn import nearest, unique_rows
from anisoscope.stats.neighbours import Neighbours
from anisoscope.stats.rows import Rows, Tokens

METRICS = ("mean_cosine", "uniformity", "hubness", "participation_ratio", "two_nn")
WITH_NULL = ("hubness", "two_nn")  # whose null is drawn
NEIGHBOURS = HUB_NEIGHBOURS


@dataclass(frozen=True)
class MappedSample:
    """The distinct sampled rows after a map, in the order of their blocks."""

    name: str
    x: Tensor  # (m, e)
    tokens: Tokens
    number: Tensor  # (m,) row numbers

    @cached_property
    def cloud(self) -> Cloud:
        names = {name for metric in find(METRICS) for name in metric.sources} | {"Moments", "Sample"}
        return collect(lambda: [Rows(self.x, self.tokens)], names, sample=len(self.x))

    @cached_property
    def neighbours(self) -> Neighbours:
        """Neighbours of all rows; the rows are in the order of `order`."""
        return self.cloud.get(Neighbours)

    @cached_property
    def order(self) -> Tensor:
        """Which of the rows each row of `neighbours` is, (m',)."""
        known = self.neighbours
        first = torch.full((len(known.x),), len(known.distinct))
        first = first.scatter_reduce(0, known.distinct, torch.arange(len(known.distinct)), "amin")
        row = {key: i for i, key in enumerate(self.tokens.key.tolist())}
        return torch.tensor([row[key] for key in known.key[first].tolist()])

    @cached_property
    def nearest(self) -> Tensor:
        """The ten nearest rows of each row, (m, 10) indices into x; −1 for rows that became copies of another."""
        index = torch.full((len(self.x), NEIGHBOURS), -1)
        index[self.order] = self.order[self.neighbours.index[:, :NEIGHBOURS]]
        return index

    def results(self, unit: str = "rows") -> list[MetricResult]:
        """Return the metrics of the cloud, with their replicates over blocks of `unit`; the records name the map."""
        out = evaluate(self.cloud, find(METRICS), site="vectors", unit=unit)
        return [replace(each, record=_named(each.record, self.name)) for each in out]


def sampled_rows(corpus: Corpus) -> MappedSample:
    """Return the distinct rows of the sample as stored, in the order of their numbers."""
    first, _ = unique_rows(unit(corpus.sample.x))
    rows = corpus.sample.rows.take(first)
    number = corpus.sampled[first]
    order = number.sort().indices
    return MappedSample("", rows.x[order], rows.tokens.take(order), number[order])


def mapped(sample: MappedSample, row_map: RowMap) -> MappedSample:
    """Return the sampled rows after a map."""
    return replace(sample, name=row_map.name, x=row_map.apply(sample.x))


def null_sample(mapped_rows: MappedSample, seed: int) -> MappedSample:
    """Draw Gaussian rows with the mean and covariance of these rows, at length 1: the same cone without structure."""
    x = mapped_rows.x.double()
    mean = x.mean(0)
    values, axes = torch.linalg.eigh((x - mean).T @ (x - mean) / len(x))
    noise = torch.randn(x.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    drawn = mean + (noise * values.clamp(min=0).sqrt()) @ axes.T
    return replace(mapped_rows, name="null", x=unit(drawn))


def drawn_nulls(sample: MappedSample, seed: int) -> dict[tuple[Any, ...], float]:
    """Return hubness and dimension of Gaussian rows with the same mean and covariance, at length 1."""
    results = (each.record for each in null_sample(sample, seed).results())
    return {number_key(r): r.value for r in results if r.metric in WITH_NULL and r.value is not None}


def kept_neighbours(before: Tensor, after: Tensor, block: Tensor) -> MeanError:
    """Return the average share of the ten nearest rows that stay the same; −1 is no row."""
    shared = ((after[:, :, None] == before[:, None, :]) & (after[:, :, None] >= 0)).any(2).double().mean(1)
    return mean_of(shared, block)


def nearest_rows(x: Tensor) -> Tensor:
    """Return the ten nearest rows of each row, (m, 10)."""
    return nearest(x, NEIGHBOURS).index


def top_hubs(sample: MappedSample, count: int) -> list[tuple[int, int]]:
    """Return the rows that are most often among the ten nearest of others: row number and how often."""
    often = occurrences(sample.neighbours)
    best = often.topk(min(count, len(often)))
    rows = sample.number[sample.order[best.indices]]
    return [(int(row), int(times)) for row, times in zip(rows.tolist(), best.values.tolist(), strict=True)]


def paired_changes(
    before: Sequence[MetricResult], after: Sequence[MetricResult]
) -> Iterator[tuple[MetricResult, float, float | None]]:
    """Yield each number after with its change and the error of the change, from replicates without the same blocks."""
    known = {number_key(each.record): each for each in before}
    for each in after:
        old = known.get(number_key(each.record))
        if old is None or old.record.value is None or each.record.value is None:
            continue
        difference = each.record.value - old.record.value
        error = None
        if len(each.replicates) > 1 and len(each.replicates) == len(old.replicates):
            deltas = [b - a for a, b in zip(old.replicates, each.replicates, strict=True)]
            error = jackknife(difference, deltas, getattr(each.replicates, "sizes", None))
        yield each, difference, error


def _named(record: Record, name: str) -> Record:
    return replace(record, variant={**record.variant, "remedy": name})
