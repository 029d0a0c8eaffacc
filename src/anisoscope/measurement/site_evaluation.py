"""From collected statistics to results: every site under both token policies, with several ranks taking turns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from anisoscope.distributed import Ranks
from anisoscope.measurement.policies import FlaggedTokens, described, massive
from anisoscope.measurement.sequences import STREAM
from anisoscope.measurement.site_collectors import SiteCollectors
from anisoscope.metrics import Metric
from anisoscope.metrics.evaluate import MetricResult, evaluate
from anisoscope.records import Site
from anisoscope.stats.cloud import Cloud, from_arrays, to_arrays
from anisoscope.stats.collect import second_pass_on_sample
from anisoscope.stats.neighbours import LocalDimensions, Neighbours, TwoNeighbours
from anisoscope.stats.registry import SECOND_PASS, UNFORGETTING

POLICIES = ("all", "no-sink")


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


@dataclass(frozen=True)
class SiteEvaluator:
    """The metrics of a pass, evaluated site by site; each rank of a job evaluates every n-th site."""

    metrics: Sequence[Metric]
    grid: bool  # positions of an image: no first tokens
    ranks: Ranks
    tokens: bool = True  # rows are tokens, which may be massive; not one row per sequence

    @property
    def of_heads(self) -> list[Metric]:
        return [m for m in self.metrics if m.requires & {"heads", "router"}]

    @property
    def of_clouds(self) -> list[Metric]:
        return [m for m in self.metrics if not m.requires & {"heads", "router"}]

    def results(self, collectors: SiteCollectors, options: EvaluationOptions) -> Iterator[SiteResult]:
        """Yield every site's result, in order, on rank 0; a result's clouds are released when the next is requested."""
        flags = FlaggedTokens()
        for turn in self._turns(collectors.clouds):
            site = self._exchange(collectors, turn)
            cloud = None if site is None else collectors.finish(site)
            means = None if site is None else collectors.finish_without_sinks(site)
            new = self._raise_flags(flags, turn, site, cloud)
            result = None
            if site is not None and cloud is not None:
                removed = described(cloud, new[site], site)
                without = means if self.grid or not self.tokens else cloud.without_tokens(flags.at(site), first=True)
                result = replace(self._evaluate_cloud(cloud, without, site, options), removed=removed)
                del without
            del cloud, means
            yield from self._sent_to_first(result)
            if result is not None:
                result.clouds.clear()  # a caller that keeps results must not keep the rows of all sites
            del result
        for turn in self._turns(collectors.heads):
            site = self._exchange(collectors, turn)
            yield from self._sent_to_first(None if site is None else self._evaluate_heads(collectors, site, options))

    def _raise_flags(
        self, flags: FlaggedTokens, turn: Sequence[Site], site: Site | None, cloud: Cloud | None
    ) -> dict[Site, Tensor]:
        """The tokens of each site of a turn that are massive there and were not flagged before.

        Positions of an image are never left out, and norms of their rows may be spread over any range.
        """
        none = torch.zeros(0, dtype=torch.int64)
        watched = self.tokens and not self.grid and site is not None and site.kind in STREAM
        mine = massive(cloud) if watched and cloud is not None else none
        return {each: flags.flag(each, keys) for each, keys in zip(turn, self.ranks.gather(mine), strict=False)}

    def _evaluate_cloud(
        self, cloud: Cloud, without: Cloud | None, site: Site, options: EvaluationOptions
    ) -> SiteResult:
        """The metrics of a site: of all rows, and of those without sinks, if there are any."""
        metrics = [m for m in self.of_clouds if "branch" not in m.requires or "Writes" in cloud.stats]
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

    def _evaluate_heads(self, collectors: SiteCollectors, site: Site, options: EvaluationOptions) -> SiteResult:
        tokens, cloud = options.policies[0], collectors.heads[site].cloud()
        metrics = [m for m in self.of_heads if m.sources <= set(cloud.stats)]
        measured = evaluate(cloud, metrics, site=str(site), tokens=tokens, **options.labels(options.errors))
        return SiteResult(site, {tokens: cloud}, measured)

    # --- several ranks --------------------------------------------------------------------------------------------

    def _turns(self, sites: Iterable[Site]) -> list[list[Site]]:
        """The sites that any rank has seen, in order, in groups of one site per rank."""
        every = sorted(set().union(*self.ranks.gather(set(sites))))
        return [every[first : first + self.ranks.world] for first in range(0, len(every), self.ranks.world)]

    def _exchange(self, collectors: SiteCollectors, turn: Sequence[Site]) -> Site | None:
        """Send the statistics of a turn's sites to the ranks that evaluate them; return this rank's site."""
        for owner, site in enumerate(turn):
            parts = (None, None) if owner == self.ranks.rank else collectors.take_parts(site)
            for received in self.ranks.collect(parts, owner):
                collectors.absorb(site, received)
        return turn[self.ranks.rank] if self.ranks.rank < len(turn) else None

    def _sent_to_first(self, result: SiteResult | None) -> Iterator[SiteResult]:
        """All ranks' results on rank 0, without the blocks that only error bars needed."""
        if result is not None and self.ranks.world > 1:
            clouds = {policy: Cloud(from_arrays(to_arrays(cloud.stats))) for policy, cloud in result.clouds.items()}
            result = replace(result, clouds=clouds)
        yield from (each for each in self.ranks.gather_first(result) if each is not None)
