"""The statistics of all sites during a pass: one collector per site, and one per attention layer."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor

from anisoscope.hooks.branches import Branch
from anisoscope.measurement.current_batch import CurrentBatch
from anisoscope.measurement.head_blocks import HeadBlocks
from anisoscope.records import SUMMED_KINDS, Site
from anisoscope.stats.cloud import Cloud, from_arrays, to_arrays
from anisoscope.stats.collector import Collector, Part
from anisoscope.stats.head_scores import Heads
from anisoscope.stats.router_sums import Routing
from anisoscope.stats.rows import Rows
from anisoscope.stats.scratch import Room

_WITHOUT = "~no-sink"  # at the end of the name of a folder
BRANCHES = ("attn", "mlp")  # sites whose rows are added to the residual stream


@dataclass(frozen=True)
class CollectorOptions:
    """What every collector of a pass is created with."""

    names: frozenset[str]  # statistics
    sample: int  # rows kept per site
    extremes: int  # rows of largest norm kept per block, at least
    sinks: bool  # whether first tokens of windows are collected separately
    outsized: float  # norms over their batch's median from which a row is kept: it may be flagged at another site
    sites: int  # that share the room
    room: Room = field(default_factory=Room)  # what all sites together may hold in memory


class CopiedWhenTaken(dict[Site, Collector]):
    """Collectors of a pass that continues: each is copied when it is taken, so that one copy exists at a time."""

    def pop(self, site: Site, *default: Any) -> Any:
        """Remove a collector and return a copy of it."""
        collector = super().pop(site, *default)
        return collector.copy() if isinstance(collector, Collector) else collector


@dataclass
class SiteCollectors:
    """Collects the rows of every site; `level` is how many times the smallest blocks are joined from the start."""

    options: CollectorOptions
    level: int = 0
    clouds: dict[Site, Collector] = field(default_factory=dict)
    without_sinks: dict[Site, Collector] = field(default_factory=dict)  # means of sequences without their sinks
    heads: dict[Site, HeadBlocks] = field(default_factory=dict)

    def add(self, batch: CurrentBatch, site: Site, x: Any) -> None:
        """Add what a forward pass of this batch gave at a site."""
        if site.kind in SUMMED_KINDS:
            length = (
                x.logits.shape[1] if isinstance(x, Routing) else (x.q if isinstance(x, Heads) else x.logits).shape[2]
            )
            counts = batch.counts(site.stack, length)
            self.heads.setdefault(site, HeadBlocks()).add(x, counts, batch.block)
        elif isinstance(x, Branch):
            self._add_rows(batch, site, x.rows, write=None if x.stream is None else (x.written, x.stream))
        elif site.kind in ("q", "k", "q.pre", "k.pre"):
            heads = x.shape[1]
            for head in range(heads):
                self._add_rows(batch, Site(site.kind, site.layer, head, stack=site.stack), x[:, head], heads)
        else:
            self._add_rows(batch, site, x)

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
            options = self.options
            collectors[site] = Collector(
                options.names if site.kind in BRANCHES else options.names - {"Writes"},
                level=self.level,
                sample=options.sample,
                extremes=options.extremes,
                sinks=options.sinks,
                outsized=options.outsized,
            )
            collectors[site].room = options.room.shared(options.sites * parts)
        return collectors[site]


def _counted_rows(x: Tensor, index: Tensor | None) -> Tensor:
    """The rows that count, (b, T, d) -> (n, d)."""
    flat = x.reshape(-1, x.shape[-1])  # (b · T, d)
    return flat if index is None else flat[index.to(flat.device)]


def _heads_file(folder: Path, site: str, level: int) -> Path:
    return folder / f"{site}.{level}.heads.safetensors"


def collected_names(sources: Iterable[frozenset[str] | set[str]], second_pass: Iterable[str]) -> frozenset[str]:
    """The statistics that one pass collects for these metrics: their sources, and what every site needs."""
    always = {"Moments", "Directions", "Norms", "Documents", "Sample"}
    return frozenset(set().union(*sources) | always) - set(second_pass)
