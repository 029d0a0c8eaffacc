"""The statistics of all sites during a pass: one collector per site, and one per attention layer."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor

from anisoscope.measurement.current_batch import CurrentBatch
from anisoscope.measurement.head_blocks import HeadBlocks
from anisoscope.measurement.policies import OUTSIZED
from anisoscope.records import Site
from anisoscope.stats.cloud import Cloud, from_arrays, to_arrays
from anisoscope.stats.collector import Collector, Part
from anisoscope.stats.head_scores import Heads
from anisoscope.stats.rows import Rows
from anisoscope.stats.scratch import Room


@dataclass(frozen=True)
class CollectorOptions:
    """What every collector of a pass is created with."""

    names: frozenset[str]  # statistics
    sample: int  # rows kept per site
    extremes: int  # rows of largest norm kept per block, at least
    sinks: bool  # whether first tokens of windows are collected separately
    sites: int  # that share the room
    room: Room = field(default_factory=Room)  # what all sites together may hold in memory


@dataclass
class SiteCollectors:
    """Collects the rows of every site; `level` is how many times the smallest blocks are joined from the start."""

    options: CollectorOptions
    level: int = 0
    clouds: dict[Site, Collector] = field(default_factory=dict)
    heads: dict[Site, HeadBlocks] = field(default_factory=dict)

    def add(self, batch: CurrentBatch, site: Site, x: Any) -> None:
        """Add what a forward pass of this batch gave at a site."""
        if site.kind == "pattern":
            length = (x.q if isinstance(x, Heads) else x.logits).shape[2]
            counts = batch.counts(site.stack, length)
            self.heads.setdefault(site, HeadBlocks()).add(x, counts, batch.block)
        elif site.kind in ("q", "k", "q.pre", "k.pre"):
            heads = x.shape[1]
            for head in range(heads):
                self._add_rows(batch, Site(site.kind, site.layer, head, stack=site.stack), x[:, head], heads)
        else:
            self._add_rows(batch, site, x)

    def _add_rows(self, batch: CurrentBatch, site: Site, x: Tensor, heads: int = 1) -> None:
        index, tokens = batch.tokens(site.stack, x.shape[1])
        if not len(tokens):
            return
        flat = x.reshape(-1, x.shape[-1])  # (b · T, d)
        rows = Rows(flat if index is None else flat[index.to(flat.device)], tokens)
        self._collector(site, heads).add(rows, batch.priority(site, rows))

    def finish(self, site: Site) -> Cloud:
        """Return the cloud of a site and release its collector."""
        return self.clouds.pop(site).finish()

    def take_part(self, site: Site) -> Part | None:
        """Return what was collected at a site, for another process to absorb, and release it."""
        collector = self.heads.pop(site, None) if site.kind == "pattern" else self.clouds.pop(site, None)
        return None if collector is None else collector.part()

    def absorb(self, site: Site, part: Part | None) -> None:
        """Add what another process collected at a site from other documents."""
        if part is not None:
            into = self.heads.setdefault(site, HeadBlocks()) if site.kind == "pattern" else self._collector(site)
            into.absorb(part)

    def save(self, folder: Path) -> dict[str, Any]:
        """Write everything to an existing folder; return what `load` needs besides, as plain JSON."""
        for site, collector in self.clouds.items():
            collector.save(folder / str(site))
        for site, heads in self.heads.items():
            blocks = {number: to_arrays(stats) for number, stats in heads.blocks.items()}
            arrays = {f"{number}/{name}": x for number, found in blocks.items() for name, x in found.items()}
            save_file(arrays, _heads_file(folder, str(site), heads.level))
        return {
            "level": self.level,
            "clouds": [str(site) for site in self.clouds],
            "heads": [[str(site), heads.level] for site, heads in self.heads.items()],
        }

    def load(self, folder: Path, state: dict[str, Any]) -> None:
        """Read what `save` wrote."""
        self.level = state["level"]
        for name in state["clouds"]:
            self._collector(Site.parse(name), -(-len(state["clouds"]) // self.options.sites)).load(folder / name)
        for name, level in state["heads"]:
            blocks: dict[int, dict[str, Tensor]] = {}
            for path, x in load_file(_heads_file(folder, name, level)).items():
                number, rest = path.split("/", 1)
                blocks.setdefault(int(number), {})[rest] = x
            stats = {number: from_arrays(arrays) for number, arrays in blocks.items()}
            self.heads[Site.parse(name)] = HeadBlocks(level, stats)

    def _collector(self, site: Site, parts: int = 1) -> Collector:
        """The collector of a site, which may be one of several parts (heads) of a site of the request."""
        if site not in self.clouds:
            options = self.options
            self.clouds[site] = Collector(
                options.names,
                level=self.level,
                sample=options.sample,
                extremes=options.extremes,
                sinks=options.sinks,
                outsized=OUTSIZED,
            )
            self.clouds[site].room = options.room.shared(options.sites * parts)
        return self.clouds[site]


def _heads_file(folder: Path, site: str, level: int) -> Path:
    return folder / f"{site}.{level}.heads.safetensors"


def collected_names(sources: Iterable[frozenset[str] | set[str]], second_pass: Iterable[str]) -> frozenset[str]:
    """The statistics that one pass collects for these metrics: their sources, and what every site needs."""
    always = {"Moments", "Directions", "Norms", "Documents", "Sample"}
    return frozenset(set().union(*sources) | always) - set(second_pass)
