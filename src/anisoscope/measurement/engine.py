"""One pass of a model over its batches, collected site by site, then evaluated under each token policy."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from anisoscope.capture import Layout, capture, expand
from anisoscope.data.inputs import as_batch, call
from anisoscope.data.token_table import Batch
from anisoscope.distributed import Ranks
from anisoscope.errors import CaptureError, InputError
from anisoscope.measurement.batch_spread import Spread
from anisoscope.measurement.current_batch import STREAM, Current, counted
from anisoscope.measurement.document_shares import Share, blocks_of, take_items, take_rows
from anisoscope.measurement.head_blocks import HeadBlocks
from anisoscope.measurement.policies import OUTSIZED, described, massive
from anisoscope.measurement.run_output import choose_metrics
from anisoscope.measurement.site_result import SiteResult
from anisoscope.metrics import Metric
from anisoscope.metrics.evaluate import MetricResult, evaluate
from anisoscope.records import Site
from anisoscope.stats.cloud import Cloud, from_arrays, to_arrays
from anisoscope.stats.collect import second_pass_on_sample
from anisoscope.stats.collector import BlockNumbers, Collector, Part
from anisoscope.stats.head_scores import Heads
from anisoscope.stats.neighbours import LocalDimensions, Neighbours, TwoNeighbours
from anisoscope.stats.registry import SECOND_PASS
from anisoscope.stats.rows import Rows

_UNIT = 256  # tokens of the smallest block where the total is not known
_APART = 256  # rows of largest norm that are held apart in a block and in the whole, at least
_UNITS = 64  # smallest blocks where it is: a text of a quarter of that length still has enough
Progress = Callable[[int], None]


class Engine:
    """One pass of a model over its batches, collected site by site."""

    def __init__(
        self,
        model: nn.Module,
        layout: Layout,
        sites: Sequence[str],
        metrics: Sequence[str | Metric] | None,
        *,
        special: bool,
        sample: int,
        seed: int,
        tokens: int | None,
        blocks: bool = True,
        batch_tokens: int | None = None,
        share: Share | None = None,
        ranks: Ranks | None = None,
    ) -> None:
        """Without `blocks`, which error bars and what is compared across documents need, all rows are one block.

        Of the batches only the documents of `share` go through the model; `ranks` are the processes that measure the
        other shares, and are all given the same batches.
        """
        self.model = model
        self.layout = layout
        self.sites = expand(self.layout, sites)
        if not self.sites:
            asked = f"none of {', '.join(sites)} exists in {type(model).__name__}" if sites else "no site was asked for"
            raise CaptureError(f"{asked}; name some, such as embed, resid or final")
        known = {"documents", "tokens"} | ({"heads"} if any(site.kind == "pattern" for site in self.sites) else set())
        chosen = choose_metrics(metrics, known)
        self.chosen = [m for m in chosen if metrics is not None or not m.slow]
        self.head_metrics = [m for m in self.chosen if "heads" in m.requires]
        self.metrics: list[Metric] = [m for m in self.chosen if "heads" not in m.requires]
        self.counted = 0
        self.unit = "documents"
        self._special = special
        self._seed = seed
        self._unit_rows = _UNIT if tokens is None else max(1, tokens // _UNITS)
        if not blocks:
            self._unit_rows = sys.maxsize
        self._options: dict[str, Any] = {"sample": sample, "sinks": not self.layout.grid, "outsized": OUTSIZED}
        self._options["extremes"] = max(_APART, (tokens or 0) // 2048)  # a block: 1.6 % of its rows and more
        self._level = 1 if tokens is not None and blocks else 0  # 64 blocks are to be dealt out, 32 to be kept apart
        self._names = set().union(*(m.sources for m in self.metrics)) | {"Moments", "Directions", "Norms", "Documents"}
        self._names |= {"Sample"}
        self._collectors: dict[Site, Collector] = {}
        self._heads: dict[Site, HeadBlocks] = {}
        self._numbers: BlockNumbers | None = None
        self._ranks = ranks or Ranks()
        self._share = share or Share(self._ranks.rank, self._ranks.world)
        self._batches = 0
        self._first_document = 0
        self._spread = None if batch_tokens is None else Spread(batch_tokens, self._empty)

    @property
    def full_batches(self) -> int | None:
        """How many batches of `batch_tokens` there were; None where no spread was asked for."""
        return None if self._spread is None else self._spread.batches

    def _empty(self) -> Engine:
        """A survey of the same sites and metrics that has seen nothing."""
        names = [metric.name for metric in self.chosen]
        return Engine(
            self.model,
            self.layout,
            [str(site) for site in self.sites],
            names,
            special=self._special,
            sample=self._options["sample"],
            seed=self._seed,
            tokens=None,
        )

    def run(
        self,
        batches: Iterable[Any],
        tokens: int | None = None,
        progress: Progress | None = None,
        keep: Callable[[], None] | None = None,
    ) -> bool:
        """Feeds the batches; True if the user stopped it, in which case what was seen counts.

        Batches that a loaded survey has seen before are skipped. `keep` is called after every batch.
        """
        seen_before = self._batches
        try:
            for number, given in enumerate(batches):
                if tokens is not None and self.counted >= tokens:
                    break
                if number < seen_before:
                    continue
                more = self._feed(given)
                if progress is not None:
                    progress(more)
                if keep is not None:
                    keep()
        except KeyboardInterrupt:
            if not self.counted or self._ranks.world > 1:  # the other ranks may be gone already
                raise
            return True
        if not self.counted:
            raise InputError("the data gave no tokens to measure; give a longer text, more images or longer clips")
        return False

    def _feed(self, given: Any) -> int:
        """One batch through the model, or the share of it; how many tokens it holds."""
        batch = as_batch(given, self._first_document)
        self.unit = batch.documents_are
        self._first_document += len(batch.document)
        counts = counted(batch, self._special)
        block = blocks_of(batch, counts, self._block_numbers(counts))  # (b,)
        if self._share.of == 1 or self._share.forward_all:
            self._forward(batch, given, block)
        else:
            for places in self._share.pieces(block):
                self._forward(take_items(batch, places), take_rows(given, places, len(block)), block[places])
        more = int(counts.sum())
        self.counted += more
        self._batches += 1
        if self._spread is not None:
            self._spread.fed(more)
        return more

    def _forward(self, batch: Batch, given: Any, block: Tensor) -> None:
        self._batch = Current(batch, block, self._share.owns(block), self._special, self._seed)
        # only this forward is watched: making the batches may run the model too, as generation does
        # no_grad, not inference_mode: what a model caches in there could not take part in training afterwards
        with torch.no_grad(), capture(self.model, self.sites, self._sink, layout=self.layout) as seen:
            call(self.model, batch, given)
        seen.require(self.sites)

    def _block_numbers(self, counts: Tensor) -> BlockNumbers:
        if self._numbers is None:
            # an item whose length only the model knows (an image) is a block of its own, to be joined with others
            unknown = counts.shape[1] == 1 and self._unit_rows < sys.maxsize
            self._numbers = BlockNumbers(1 if unknown else self._unit_rows)
            self._level = 0 if unknown else self._level
        return self._numbers

    def _sink(self, site: Site, x: Any) -> None:
        if self._spread is not None:
            part = self._spread.part
            part._batch, part.unit = self._batch, self.unit
            part._sink(site, x)
        if site.kind == "pattern":
            self._pattern(site, x)
        elif site.kind in ("q", "k", "q.pre", "k.pre"):
            for head in range(x.shape[1]):
                self._count(Site(site.kind, site.layer, head, stack=site.stack), x[:, head])
        else:
            self._count(site, x)

    def _count(self, site: Site, x: Tensor) -> None:
        place, tokens = self._batch.tokens(site.stack, x.shape[1])
        if not len(tokens):
            return
        flat = x.reshape(-1, x.shape[-1])  # (b · T, d)
        rows = Rows(flat if place is None else flat[place.to(flat.device)], tokens)
        self._collector(site).add(rows, self._batch.priority(site, rows))

    def _collector(self, site: Site) -> Collector:
        if site not in self._collectors:
            self._collectors[site] = Collector(self._names - set(SECOND_PASS), level=self._level, **self._options)
        return self._collectors[site]

    def _pattern(self, site: Site, heads: Any) -> None:
        length = (heads.q if isinstance(heads, Heads) else heads.logits).shape[2]
        counts = self._batch.counts(site.stack, length)
        self._heads.setdefault(site, HeadBlocks()).add(heads, counts, self._batch.block)

    def evaluated(
        self,
        *,
        run: str = "",
        step: int = 0,
        errors: bool = True,
        slow_errors: bool = True,
        policies: tuple[str, str] = ("all", "no-sink"),
        sparing: bool = False,
    ) -> Iterator[SiteResult]:
        """Every site under both policies, one after another; its clouds are let go when the next one is asked for.

        A `sparing` evaluation searches neighbours and takes error bars only once, without sinks: half of its time.
        """
        flagged: dict[str, Tensor] = {}
        options: dict[str, Any] = {
            "run": run,
            "step": step,
            "unit": self.unit,
            "errors": errors,
            "slow_errors": slow_errors,
        }
        none = torch.zeros(0, dtype=torch.int64)
        for turn in self._turns(self._collectors):
            own = self._bring_together(turn)
            cloud = None if own is None else self._collectors.pop(own).finish()
            outsized = none if own is None or cloud is None or own.kind not in STREAM else massive(cloud)
            removed: list[dict[str, Any]] = []
            gone: dict[Site, Tensor] = {}
            for site, keys in zip(turn, self._ranks.gather(outsized), strict=False):
                known = flagged.get(site.stack, none)
                new = keys[~torch.isin(keys, known)]
                flagged[site.stack] = gone[site] = torch.cat((known, new))
                if site == own and cloud is not None:
                    removed = described(cloud, new, site)
            done = None
            if own is not None and cloud is not None:
                done = self._evaluate_cloud(cloud, own, gone[own], removed, policies, sparing, options)
            yield from self._on_first(done)
            if done is not None:
                done.clouds.clear()  # whoever still holds it would hold two sites' rows and blocks at a time
            del cloud, done
        for turn in self._turns(self._heads):
            own = self._bring_together(turn)
            yield from self._on_first(None if own is None else self._evaluate_heads(own, policies[0], options))
        if self._spread is not None:
            yield from self._spread.evaluated(run=run, step=step, policies=policies)

    def absorb(self, other: Engine) -> None:
        """Adds what a survey made alike has counted of another share of the same data."""
        self.counted, self.unit = other.counted, other.unit
        for site in (*other._collectors, *other._heads):
            self._absorb(site, other._part(site))

    def _part(self, site: Site) -> Part | None:
        """What was counted at a site, for another to absorb; here it is let go."""
        found = self._heads.pop(site, None) if site.kind == "pattern" else self._collectors.pop(site, None)
        return None if found is None else found.part()

    def _absorb(self, site: Site, part: Part | None) -> None:
        if part is not None:
            into = self._heads.setdefault(site, HeadBlocks()) if site.kind == "pattern" else self._collector(site)
            into.absorb(part)

    def _turns(self, seen: Iterable[Site]) -> list[list[Site]]:
        """The sites that any rank has seen, in order, as many at a time as there are ranks."""
        sites = sorted(set().union(*self._ranks.gather(set(seen))))
        return [sites[first : first + self._ranks.world] for first in range(0, len(sites), self._ranks.world)]

    def _bring_together(self, turn: Sequence[Site]) -> Site | None:
        """The statistics of a turn's sites from all ranks, each at the rank that evaluates it: which is this rank's."""
        for owner, site in enumerate(turn):
            part = None if owner == self._ranks.rank else self._part(site)
            for received in self._ranks.collect(part, owner):
                self._absorb(site, received)
        return turn[self._ranks.rank] if self._ranks.rank < len(turn) else None

    def _on_first(self, done: SiteResult | None) -> Iterator[SiteResult]:
        """What the ranks have evaluated, on rank 0, without the blocks that only error bars needed."""
        if done is not None and self._ranks.world > 1:
            clouds = {policy: Cloud(from_arrays(to_arrays(cloud.stats))) for policy, cloud in done.clouds.items()}
            done = replace(done, clouds=clouds)
        yield from (each for each in self._ranks.gather_first(done) if each is not None)

    def _evaluate_heads(self, site: Site, tokens: str, options: dict[str, Any]) -> SiteResult:
        heads = self._heads[site].cloud()
        metrics = [m for m in self.head_metrics if m.sources <= set(heads.stats)]
        return SiteResult(site, {tokens: heads}, evaluate(heads, metrics, site=str(site), tokens=tokens, **options))

    def _evaluate_cloud(
        self,
        cloud: Cloud,
        site: Site,
        flagged: Tensor,
        removed: list[dict[str, Any]],
        policies: tuple[str, str],
        sparing: bool,
        options: dict[str, Any],
    ) -> SiteResult:
        second = [name for name in SECOND_PASS if any(name in m.sources for m in self.metrics)]
        searching = {Neighbours, TwoNeighbours, LocalDimensions} if sparing and not self.layout.grid else set()
        views = [(policies[0], cloud, [m for m in self.metrics if searching.isdisjoint(m.needs)])]
        if not self.layout.grid:
            streaming = [m for m in self.metrics if not m.sources & {"Norms", "Extremes"}]
            left = cloud.without_tokens(flagged, first=True)
            if left.n:  # windows of one token leave nothing
                views.append((policies[1], left, streaming))
        clouds: dict[str, Cloud] = {}
        measured: list[MetricResult] = []
        for tokens, view, metrics in views:
            clouds[tokens] = second_pass_on_sample(view, second) if second else view
            barred = options["errors"] and not (sparing and tokens != views[-1][0])
            some = {**options, "errors": barred}
            measured += evaluate(clouds[tokens], metrics, site=str(site), tokens=tokens, **some)
            clouds[tokens].release_blocks()
        return SiteResult(site, clouds, measured, removed)

    def save(self, folder: Path) -> None:
        """Writes all that has been counted; `load` on a survey made alike goes on from there."""
        folder.mkdir(parents=True)
        for site, collector in self._collectors.items():
            collector.save(folder / str(site))
        for site, heads in self._heads.items():
            blocks = {number: to_arrays(stats) for number, stats in heads.blocks.items()}
            arrays = {f"{number}/{name}": x for number, found in blocks.items() for name, x in found.items()}
            save_file(arrays, folder / f"{site}.{heads.level}.heads.safetensors")
        state = {
            "batches": self._batches,
            "counted": self.counted,
            "first_document": self._first_document,
            "unit": self.unit,
            "collectors": [str(site) for site in self._collectors],
            "heads": [[str(site), heads.level] for site, heads in self._heads.items()],
            "numbers": None if self._numbers is None else self._numbers.state(),
            "spread": None if self._spread is None else self._spread.values(),
        }
        if self._spread is not None:
            self._spread.part.save(folder / "part")
        (folder / "state.json").write_text(json.dumps(state))

    def load(self, folder: Path) -> None:
        """Goes on from what `save` wrote."""
        state = json.loads((folder / "state.json").read_text())
        self._batches, self.counted = state["batches"], state["counted"]
        self._first_document, self.unit = state["first_document"], state["unit"]
        for name in state["collectors"]:
            self._collector(Site.parse(name)).load(folder / name)
        for name, level in state["heads"]:
            arrays = load_file(folder / f"{name}.{level}.heads.safetensors")
            blocks: dict[int, dict[str, Tensor]] = {}
            for path, x in arrays.items():
                number, rest = path.split("/", 1)
                blocks.setdefault(int(number), {})[rest] = x
            heads = {number: from_arrays(found) for number, found in blocks.items()}
            self._heads[Site.parse(name)] = HeadBlocks(level, heads)
        self._numbers = None if state["numbers"] is None else BlockNumbers(*state["numbers"])
        if self._spread is not None:
            self._spread.restore(state["spread"])
            self._spread.part.load(folder / "part")
