"""The steps of a check of embeddings: what all rows decide, the sample after each map, retrieval."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from anisoscope.data.vectors import Vectors
from anisoscope.embedding_quality.corpus import Corpus, OnProgress, rows_at, search
from anisoscope.embedding_quality.cosines import BINS, cosines, histogram, random_pairs, separation_of
from anisoscope.embedding_quality.duplicates import find_duplicates, rows_to_read
from anisoscope.embedding_quality.label_separation import (
    SILHOUETTE_ROWS,
    between_share,
    common_label,
    right_votes,
    silhouettes,
)
from anisoscope.embedding_quality.mapped_sample import (
    NEIGHBOURS,
    MappedSample,
    drawn_nulls,
    kept_neighbours,
    mapped,
    nearest_rows,
    paired_changes,
    sampled_rows,
    top_hubs,
)
from anisoscope.embedding_quality.means import mean_of
from anisoscope.embedding_quality.quality_records import QualityRecords
from anisoscope.embedding_quality.retrieval import DEPTH, Relevant, scores
from anisoscope.embedding_quality.row_maps import RowMap, compression_maps, remedy_maps
from anisoscope.errors import InputError
from anisoscope.stats.inference import jackknife

FEWEST_ROWS = 2 * NEIGHBOURS + 1
_HUBS = 10  # listed
_RANK = 1e-12  # share of the largest variance below which a direction has none
_MATCHED = 50_000  # relevant pairs whose cosines are computed
OnStage = Callable[[str, int], None]  # called with what is being done and how many rows it reads


@dataclass(frozen=True)
class Stages:
    """Where progress is reported."""

    progress: OnProgress | None = None
    on_stage: OnStage | None = None

    def begin(self, what: str, units: int) -> OnProgress:
        """Report what begins; return what to call with the units of work that are done."""
        if self.on_stage is not None:
            self.on_stage(what, units)
        return self.progress or _ignore


def _ignore(_: int) -> None:
    """Report to nobody."""


class EmbeddingCheck:
    """One check: `measure` fills `out` with records and `details` with lists."""

    def __init__(
        self,
        corpus: Corpus,
        queries: Vectors | None,
        relevant: Relevant | None,
        labels: tuple[Tensor, list[str]] | None,
        stages: Stages,
        seed: int = 0,
        all_pairs: bool | None = None,
        dot: bool = False,
    ) -> None:
        self.corpus, self.queries, self.relevant, self.labels = corpus, queries, relevant, labels
        self.stages, self.seed, self.all_pairs, self.dot = stages, seed, all_pairs, dot
        self.out = QualityRecords("documents" if corpus.documented else "rows")
        self.details: dict[str, Any] = {}

    def measure(self, remove_top: int | None) -> None:
        """Do everything."""
        norms = self.corpus.norms
        spread = float(norms.std(correction=0) / norms.mean().clamp(min=1e-30))
        remedies = remedy_maps(self.corpus.moments, remove_top, spread, dot=self.dot)
        ranges = self.corpus.stored_ranges if self.dot else self.corpus.ranges
        short = compression_maps(self.corpus.moments, ranges, dot=self.dot)
        stored = sampled_rows(self.corpus)
        if len(stored.x) < FEWEST_ROWS:
            raise InputError(f"Only {len(stored.x)} rows differ in direction. At least {FEWEST_ROWS} are needed.")
        self._facts(spread, len(stored.x), remedies, short)
        self._remedies(stored, remedies)
        self._short(stored, remedies[0], short)
        if self.queries is not None and self.relevant is not None:
            self._retrieval(self.queries, self.relevant, [*remedies, *short])

    def _facts(self, spread: float, distinct: int, remedies: Sequence[RowMap], short: Sequence[RowMap]) -> None:
        n, d = self.corpus.vectors.n, self.corpus.vectors.d
        values = self.corpus.moments.eigenvalues
        flat = int((values <= _RANK * max(float(values.max()), 0.0)).sum())
        self.out.fact("norm_spread", spread, n=n)
        self.out.fact("zero_directions", flat, null=max(0, d - n + 1), n=n)
        ordered = self.corpus.norms.sort().values
        self.details |= {
            "n": n,
            "d": d,
            "sampled": distinct,
            "remedies": [each.name for each in remedies],
            "compressions": [each.name for each in short],
            "norms": [float(ordered[0]), float(ordered[len(ordered) // 2]), float(ordered[-1])],
            "zero rows": int((ordered == 0).sum()),
            "search": "dot" if self.dot else "cosine",
            "queries": None if self.relevant is None else len(self.relevant.queries),
            "groups": None if self.labels is None else len(self.labels[1]),
        }

    def _duplicates(self, sample: MappedSample) -> None:
        progress = self.stages.begin("near duplicates", rows_to_read(self.corpus, self.all_pairs))
        numbers = sample.number[sample.order]
        duplicates = find_duplicates(self.corpus, sample.neighbours, numbers, self.all_pairs, progress)
        self.out.fact("exact_duplicates", duplicates.copies, n=duplicates.among)
        complete = duplicates.searched >= duplicates.among - duplicates.copies
        near = duplicates.near._replace(error=None if complete else duplicates.near.error)
        self.out.mean("near_duplicates", near, "none", n=duplicates.searched)
        self.details["duplicates"] = {
            "copies": duplicates.copies,
            "exact": [list(pair) for pair in duplicates.exact],
            "near": [[a, b, round(cosine, 6)] for a, b, cosine in duplicates.pairs],
            "near cosine": duplicates.cosine,
            "searched": duplicates.searched,
        }

    # --- the sample after each remedy -------------------------------------------------------------------------------

    def _remedies(self, stored: MappedSample, remedies: Sequence[RowMap]) -> None:
        m = len(stored.x)
        progress = self.stages.begin("remedies", m * len(remedies))
        self.details["cosines"] = {"bins": BINS}
        first = mapped(stored, remedies[0])
        before = first.results(self.out.unit)
        separation: tuple[float, list[float]] | None = None
        for row_map in remedies:
            after = first if row_map is remedies[0] else mapped(stored, row_map)
            results = before if after is first else after.results(self.out.unit)
            self.out.results(results, drawn_nulls(after, self.seed) if after is first else {})
            for each, value, error in paired_changes(before, results) if after is not first else ():
                self.out.change(each.record, value, error, len(each.replicates))
            kept = kept_neighbours(first.nearest, after.nearest, stored.tokens.block)
            self.out.mean("kept_neighbours", kept, row_map.name, null=NEIGHBOURS / (m - 1), n=m)
            separation = self._cosines(row_map, after, separation)
            self._groups(row_map.name, after, first)
            progress(m)
        self.details["hubs"] = [list(pair) for pair in top_hubs(first, _HUBS)]
        self._duplicates(first)

    def _cosines(
        self, row_map: RowMap, after: MappedSample, before: tuple[float, list[float]] | None
    ) -> tuple[float, list[float]]:
        """Add cosines of random, nearest and relevant pairs; return the separation before any remedy."""
        x, name = after.x, row_map.name
        random = cosines(*(x[side] for side in random_pairs(len(x), self.seed)))
        has = (after.nearest[:, 0] >= 0).nonzero()[:, 0]
        matched, kind = cosines(x[has], x[after.nearest[has, 0]]), "nearest"
        self.out.mean("nearest_cosine", mean_of(matched, after.tokens.block[has]), name, n=len(matched))
        shown = {"random": histogram(random), "nearest": histogram(matched)}
        if self._pairs is not None:
            matched, kind = cosines(*(row_map.apply(side) for side in self._pairs)), "relevant"
            shown["relevant"] = histogram(matched)
            self.out.mean("alignment", mean_of(2 - 2 * matched), name, n=len(matched), unit="pairs")
        self.details["cosines"][name] = shown
        estimate, without = separation_of(matched, random)
        self.out.mean("separation", estimate, name, variant={"pairs": kind}, n=len(matched), unit="blocks")
        if before is None:
            return estimate.value, without
        if without:
            value = estimate.value - before[0]
            error = jackknife(value, [b - a for a, b in zip(before[1], without, strict=True)])
            self.out.change(self.out.records[-1], value, error, len(without), "blocks")
        return before

    @cached_property
    def _pairs(self) -> tuple[Tensor, Tensor] | None:
        """Queries and their relevant rows, as stored, (p, d) each."""
        if self.queries is None or self.relevant is None:
            return None
        count = len(self.relevant.row)
        pick = torch.linspace(0, count - 1, min(_MATCHED, count)).long().unique()
        return (
            rows_at(self.queries, self.relevant.query[pick]),
            rows_at(self.corpus.vectors, self.relevant.row[pick]),
        )

    def _groups(self, name: str, after: MappedSample, first: MappedSample) -> None:
        """Add how well the labels are separated."""
        if self.labels is None:
            return
        label, block = self.labels[0][after.number], after.tokens.block
        n, groups = len(label), len(label.unique())
        right = right_votes(after.nearest, label)
        self.out.mean("knn_accuracy", mean_of(right, block), name, null=common_label(label), n=n)
        if after is not first:
            gained = mean_of(right - right_votes(first.nearest, label), block)
            self.out.change(self.out.records[-1], gained.value, gained.error, gained.units)
        some = torch.linspace(0, n - 1, min(n, SILHOUETTE_ROWS)).long().unique()
        apart = silhouettes(after.x[some], label[some])
        self.out.mean("silhouette", mean_of(apart, block[some]), name, null=0.0, n=len(some))
        share = between_share(after.x, label)
        self.out.fact("between_share", share, variant={"remedy": name}, null=(groups - 1) / (n - 1), n=n)

    def _short(self, stored: MappedSample, plain: RowMap, maps: Sequence[RowMap]) -> None:
        """Add how many neighbours shorter rows and rows of fewer bits keep."""
        m = len(stored.x)
        progress = self.stages.begin("shorter rows", m * len(maps))
        before = nearest_rows(mapped(stored, plain).x)
        for row_map in maps:
            kept = kept_neighbours(before, nearest_rows(mapped(stored, row_map).x), stored.tokens.block)
            self.out.mean("kept_neighbours", kept, row_map.name, null=NEIGHBOURS / (m - 1), n=m)
            progress(m)

    # --- retrieval --------------------------------------------------------------------------------------------------

    def _retrieval(self, queries: Vectors, relevant: Relevant, maps: Sequence[RowMap]) -> None:
        """Add recall, MRR and nDCG after each map, and the paired changes."""
        stored = rows_at(queries, relevant.queries)
        depth = min(DEPTH, self.corpus.vectors.n)
        before: dict[tuple[str, int], Tensor] = {}
        for row_map in maps:
            progress = self.stages.begin(f"search, {row_map.name}", self.corpus.vectors.n)
            apply = row_map.plain if self.dot else row_map.apply
            hits = search(apply(stored), self.corpus.vectors, apply, depth, progress, dot=self.dot)
            after = scores(hits.index, relevant)
            before = before or after
            for key, values in after.items():
                metric, k = key
                self.out.mean(metric, mean_of(values), row_map.name, index=k, n=len(values), unit="queries")
                if after is not before:
                    gained = mean_of(values - before[key])
                    self.out.change(self.out.records[-1], gained.value, gained.error, gained.units, "queries")
