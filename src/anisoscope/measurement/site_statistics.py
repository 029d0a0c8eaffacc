"""The statistics of all sites of a pass: collected from batches, then evaluated site by site under both policies."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from anisoscope.distributed import Ranks
from anisoscope.hooks.branches import Branch
from anisoscope.measurement.current_batch import CurrentBatch
from anisoscope.measurement.head_blocks import HeadBlocks
from anisoscope.measurement.policies import OUTSIZED, STREAM, FlaggedTokens, described, massive
from anisoscope.metrics import Metric
from anisoscope.metrics.evaluate import MetricResult, evaluate
from anisoscope.records import SUMMED_KINDS, Site
from anisoscope.stats.cloud import Cloud, from_arrays, to_arrays
from anisoscope.stats.collect import second_pass_on_sample
from anisoscope.stats.collector import Collector, Part
from anisoscope.stats.head_scores import Heads
from anisoscope.stats.neighbours import LocalDimensions, Neighbours, TwoNeighbours
from anisoscope.stats.registry import SECOND_PASS, UNFORGETTING
from anisoscope.stats.router_sums import Routing
from anisoscope.stats.rows import Rows
from anisoscope.stats.scratch import Room

POLICIES = ("all", "no-sink")
BRANCHES = ("attn", "mlp")  # sites whose rows are added to the residual stream
_WITHOUT = "~no-sink"  # at the end of the name of a folder
_BY_HEAD = ("q", "k", "q.pre", "k.pre")  # sites with one cloud per head
_ALWAYS = frozenset({"Moments", "Directions", "Norms", "Documents", "Sample"})  # what every site collects


@dataclass(frozen=True)
class PassOptions:
    """What the statistics of a pass are collected and evaluated with."""

    metrics: Sequence[Metric]
    sample: int  # rows kept per site
    extremes: int  # rows of largest norm kept per block, at least
    tokens: bool  # rows are tokens, which may be massive; not one row per sequence
    grid: bool  # positions of an image: no first tokens
    sites: int  # that share the room
    ranks: Ranks  # each rank of a job evaluates every n-th site
    room: Room  # what all sites together may hold in memory

    @property
    def of_heads(self) -> list[Metric]:
        return [m for m in self.metrics if m.requires & {"heads", "router"}]

    @property
    def of_clouds(self) -> list[Metric]:
        return [m for m in self.metrics if not m.requires & {"heads", "router"}]

    @property
    def has_sinks(self) -> bool:
        return self.tokens and not self.grid

    def collector(self, site: Site, level: int) -> Collector:
        """Return an empty collector for a site."""
        names = _ALWAYS.union(*(m.sources for m in self.of_clouds)).difference(SECOND_PASS)
        return Collector(
            names if site.kind in BRANCHES else names - {"Writes"},
            level=level,
            sample=self.sample,
            extremes=self.extremes,
            sinks=self.has_sinks,
            outsized=OUTSIZED if self.tokens else math.inf,  # kept: it may be flagged at another site
        )


@dataclass(frozen=True)
class SiteShape:
    """What came at a site: how many clouds (one per head of `q` and `k`), their width, and the bytes of a number."""

    clouds: int
    width: int
    number: int


class CopiedWhenTaken(dict[Site, Collector]):
    """Collectors of a pass that continues: each is copied when it is taken, so that one copy exists at a time."""

    def pop(self, site: Site, *default: Any) -> Any:
        """Remove a collector and return a copy of it."""
        collector = super().pop(site, *default)
        return collector.copy() if isinstance(collector, Collector) else collector


@dataclass
class SiteCollectors:
    """Collects the rows of every site; `level` is how many times the smallest blocks are joined from the start."""

    options: PassOptions
    level: int = 0
    clouds: dict[Site, Collector] = field(default_factory=dict)
    without_sinks: dict[Site, Collector] = field(default_factory=dict)  # means of sequences without their sinks
    heads: dict[Site, HeadBlocks] = field(default_factory=dict)
    shapes: dict[Site, SiteShape] = field(default_factory=dict)  # of the sites that have rows

    def add(self, batch: CurrentBatch, site: Site, x: Any) -> None:
        """Add what a forward pass of this batch gave at a site."""
        if site.kind in SUMMED_KINDS:
            length = (
                x.logits.shape[1] if isinstance(x, Routing) else (x.q if isinstance(x, Heads) else x.logits).shape[2]
            )
            counts = batch.counts(site.stack, length)
            self.heads.setdefault(site, HeadBlocks()).add(x, counts, batch.block)
        elif isinstance(x, Branch):
            self._note_shape(batch, site, x.rows)
            self._add_rows(batch, site, x.rows, write=None if x.stream is None else (x.written, x.stream))
        elif site.kind in _BY_HEAD:
            heads = x.shape[1]
            self._note_shape(batch, site, x, heads)
            for head in range(heads):
                self._add_rows(batch, Site(site.kind, site.layer, head, stack=site.stack), x[:, head], heads)
        else:
            self._note_shape(batch, site, x)
            self._add_rows(batch, site, x)

    def _note_shape(self, batch: CurrentBatch, site: Site, x: Tensor, heads: int = 1) -> None:
        if site not in self.shapes:
            clouds = 2 * heads if batch.rows == "mean" and batch.sinks else heads
            self.shapes[site] = SiteShape(clouds, x.shape[-1], x.element_size())

    def _add_rows(
        self,
        batch: CurrentBatch,
        site: Site,
        x: Tensor,
        heads: int = 1,
        write: tuple[Tensor, Tensor] | None = None,
    ) -> None:
        index, tokens = batch.tokens(site.stack, x.shape[1])
        if not len(tokens):
            return
        if batch.rows == "mean":
            whole, without = batch.means(site, x)
            self._collector(site, 2 * heads).add(whole)
            if without is not None and len(without.tokens):
                self._collector(site, 2 * heads, self.without_sinks).add(without)
            return
        chosen = [_counted_rows(each, index) for each in (x, *(write or ()))]  # (n, d) each
        rows = Rows(chosen[0], tokens, (chosen[1], chosen[2]) if write else None)
        self._collector(site, heads).add(rows, batch.priority(site, rows) if batch.rows == "tokens" else None)

    def finish(self, site: Site) -> Cloud:
        """Return the cloud of a site and release its collector."""
        return self.clouds.pop(site).finish()

    def finish_without_sinks(self, site: Site) -> Cloud | None:
        """Return the cloud of means without sinks of a site, if they were collected, and release its collector."""
        return self.without_sinks.pop(site).finish() if site in self.without_sinks else None

    def take_parts(self, site: Site) -> tuple[Part | None, Part | None]:
        """Return what was collected at a site, with and without sinks, for another process, and release it."""
        collector = self.heads.pop(site, None) if site.kind in SUMMED_KINDS else self.clouds.pop(site, None)
        without = self.without_sinks.pop(site, None)
        return None if collector is None else collector.part(), None if without is None else without.part()

    def absorb(self, site: Site, parts: tuple[Part | None, Part | None]) -> None:
        """Add what another process collected at a site from other documents."""
        part, without = parts
        if part is not None:
            into = self.heads.setdefault(site, HeadBlocks()) if site.kind in SUMMED_KINDS else self._collector(site)
            into.absorb(part)
        if without is not None:
            self._collector(site, 2, self.without_sinks).absorb(without)

    def save(self, folder: Path) -> dict[str, Any]:
        """Write everything to an existing folder; return what `load` needs besides, as plain JSON."""
        for site, collector in self.clouds.items():
            collector.save(folder / str(site))
        for site, collector in self.without_sinks.items():
            collector.save(folder / f"{site}{_WITHOUT}")
        for site, heads in self.heads.items():
            blocks = {number: to_arrays(stats) for number, stats in heads.blocks.items()}
            arrays = {f"{number}/{name}": x for number, found in blocks.items() for name, x in found.items()}
            save_file(arrays, _heads_file(folder, str(site), heads.level))
        return {
            "level": self.level,
            "clouds": [str(site) for site in self.clouds],
            "without_sinks": [str(site) for site in self.without_sinks],
            "heads": [[str(site), heads.level] for site, heads in self.heads.items()],
        }

    def load(self, folder: Path, state: dict[str, Any]) -> None:
        """Read what `save` wrote."""
        self.level = state["level"]
        parts = -(-(len(state["clouds"]) + len(state["without_sinks"])) // self.options.sites)
        for name in state["clouds"]:
            self._collector(Site.parse(name), parts).load(folder / name)
        for name in state["without_sinks"]:
            self._collector(Site.parse(name), parts, self.without_sinks).load(folder / f"{name}{_WITHOUT}")
        for name, level in state["heads"]:
            blocks: dict[int, dict[str, Tensor]] = {}
            for path, x in load_file(_heads_file(folder, name, level)).items():
                number, rest = path.split("/", 1)
                blocks.setdefault(int(number), {})[rest] = x
            stats = {number: from_arrays(arrays) for number, arrays in blocks.items()}
            self.heads[Site.parse(name)] = HeadBlocks(level, stats)

    def _collector(self, site: Site, parts: int = 1, among: dict[Site, Collector] | None = None) -> Collector:
        """The collector of a site, which may be one of several parts (heads) of a site of the request."""
        collectors = self.clouds if among is None else among
        if site not in collectors:
            collectors[site] = self.options.collector(site, self.level)
            collectors[site].room = self.options.room.shared(self.options.sites * parts)
        return collectors[site]


def _counted_rows(x: Tensor, index: Tensor | None) -> Tensor:
    """The rows that count, (b, T, d) -> (n, d)."""
    flat = x.reshape(-1, x.shape[-1])  # (b · T, d)
    return flat if index is None else flat[index.to(flat.device)]


def _heads_file(folder: Path, site: str, level: int) -> Path:
    return folder / f"{site}.{level}.heads.safetensors"


# --- evaluation ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SiteResult:
    """One site's clouds by token policy, their metrics, and the tokens that were massive here for the first time."""

    site: Site
    clouds: dict[str, Cloud]
    measured: list[MetricResult]
    removed: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True)
class EvaluationOptions:
    """How sites are evaluated and how their records are labelled.

    A `sparing` evaluation searches neighbours and computes error bars only once, without sinks, in half the time.
    """

    run: str = ""
    step: int = 0
    unit: str = "documents"
    errors: bool = True
    policies: tuple[str, str] = POLICIES
    sparing: bool = False

    def labels(self, errors: bool) -> dict[str, Any]:
        """Return the keywords of `evaluate` that all sites share."""
        shared = {"run": self.run, "step": self.step, "unit": self.unit}
        return {**shared, "errors": errors}


def site_results(collectors: SiteCollectors, options: EvaluationOptions) -> Iterator[SiteResult]:
    """Yield every site's result, in order, on rank 0; a result's clouds are released when the next is requested."""
    setup, flags = collectors.options, FlaggedTokens()
    for turn in _turns(setup.ranks, collectors.clouds):
        site = _exchange(collectors, turn)
        cloud = None if site is None else collectors.finish(site)
        means = None if site is None else collectors.finish_without_sinks(site)
        new = _raise_flags(setup, flags, turn, site, cloud)
        result = None
        if site is not None and cloud is not None:
            removed = described(cloud, new[site], site)
            without = cloud.without_tokens(flags.at(site), first=True) if setup.has_sinks else means
            result = replace(_evaluate_cloud(setup, cloud, without, site, options), removed=removed)
            del without
        del cloud, means
        yield from _sent_to_first(setup.ranks, result)
        if result is not None:
            result.clouds.clear()  # a caller that keeps results must not keep the rows of all sites
        del result
    for turn in _turns(setup.ranks, collectors.heads):
        site = _exchange(collectors, turn)
        yield from _sent_to_first(setup.ranks, None if site is None else _evaluate_heads(collectors, site, options))


def _raise_flags(
    setup: PassOptions, flags: FlaggedTokens, turn: Sequence[Site], site: Site | None, cloud: Cloud | None
) -> dict[Site, Tensor]:
    """The tokens of each site of a turn that are massive there and were not flagged before.

    Positions of an image are never left out, and norms of their rows may be spread over any range.
    """
    none = torch.zeros(0, dtype=torch.int64)
    watched = setup.has_sinks and site is not None and site.kind in STREAM
    mine = massive(cloud) if watched and cloud is not None else none
    return {each: flags.flag(each, keys) for each, keys in zip(turn, setup.ranks.gather(mine), strict=False)}


def _evaluate_cloud(
    setup: PassOptions, cloud: Cloud, without: Cloud | None, site: Site, options: EvaluationOptions
) -> SiteResult:
    """The metrics of a site: of all rows, and of those without sinks, if there are any."""
    metrics = [m for m in setup.of_clouds if "branch" not in m.requires or "Writes" in cloud.stats]
    second = [name for name in SECOND_PASS if any(name in m.sources for m in metrics)]
    both = without is not None and bool(without.n)  # windows of one token leave nothing
    searching = {Neighbours, TwoNeighbours, LocalDimensions} if options.sparing and both else set()
    views = [(options.policies[0], cloud, [m for m in metrics if searching.isdisjoint(m.needs)])]
    if both and without is not None:
        streaming = [m for m in metrics if not m.sources & {"Extremes", *UNFORGETTING}]
        views.append((options.policies[1], without, streaming))
    clouds: dict[str, Cloud] = {}
    measured: list[MetricResult] = []
    for tokens, view, chosen in views:
        clouds[tokens] = second_pass_on_sample(view, second) if second else view
        labels = options.labels(options.errors and not (options.sparing and tokens != views[-1][0]))
        measured += evaluate(clouds[tokens], chosen, site=str(site), tokens=tokens, **labels)
        clouds[tokens].release_blocks()
    return SiteResult(site, clouds, measured)


def _evaluate_heads(collectors: SiteCollectors, site: Site, options: EvaluationOptions) -> SiteResult:
    tokens, cloud = options.policies[0], collectors.heads[site].cloud()
    metrics = [m for m in collectors.options.of_heads if m.sources <= set(cloud.stats)]
    measured = evaluate(cloud, metrics, site=str(site), tokens=tokens, **options.labels(options.errors))
    return SiteResult(site, {tokens: cloud}, measured)


# --- several ranks -------------------------------------------------------------------------------------------------


def _turns(ranks: Ranks, sites: Iterable[Site]) -> list[list[Site]]:
    """The sites that any rank has seen, in order, in groups of one site per rank."""
    every = sorted(set().union(*ranks.gather(set(sites))))
    return [every[first : first + ranks.world] for first in range(0, len(every), ranks.world)]


def _exchange(collectors: SiteCollectors, turn: Sequence[Site]) -> Site | None:
    """Send the statistics of a turn's sites to the ranks that evaluate them; return this rank's site."""
    ranks = collectors.options.ranks
    for owner, site in enumerate(turn):
        parts = (None, None) if owner == ranks.rank else collectors.take_parts(site)
        for received in ranks.collect(parts, owner):
            collectors.absorb(site, received)
    return turn[ranks.rank] if ranks.rank < len(turn) else None


def _sent_to_first(ranks: Ranks, result: SiteResult | None) -> Iterator[SiteResult]:
    """All ranks' results on rank 0, without the blocks that only error bars needed."""
    if result is not None and ranks.world > 1:
        clouds = {policy: Cloud(from_arrays(to_arrays(cloud.stats))) for policy, cloud in result.clouds.items()}
        result = replace(result, clouds=clouds)
    yield from (each for each in ranks.gather_first(result) if each is not None)
