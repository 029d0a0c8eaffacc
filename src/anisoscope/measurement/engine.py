"""The engine: one pass of a model over its batches, collected site by site, then evaluated under each token policy."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from anisoscope.data.inputs import as_batch, device_of, on_device
from anisoscope.data.token_table import Batch
from anisoscope.distributed import Ranks
from anisoscope.errors import CaptureError, InputError
from anisoscope.hooks import Layout, expand, observe_sites
from anisoscope.hooks.forward import Sink
from anisoscope.measurement.batch_spread import BatchSpread
from anisoscope.measurement.current_batch import CurrentBatch, counted
from anisoscope.measurement.document_shares import Share, blocks_of
from anisoscope.measurement.request import MODEL_SAMPLE, Request, require_rows
from anisoscope.measurement.run_output import choose_metrics
from anisoscope.measurement.site_statistics import (
    CopiedWhenTaken,
    EvaluationOptions,
    PassOptions,
    SiteCollectors,
    SiteResult,
    SiteShape,
    site_results,
)
from anisoscope.records import Record, Site
from anisoscope.stats.collect import BLOCKS
from anisoscope.stats.documents import BlockNumbers
from anisoscope.stats.scratch import Room

_UNIT = 256  # tokens of the smallest block if the total is not known
_UNITS = 64  # smallest blocks if it is: a text of a quarter of that length still has enough
_EXTREMES = 256  # rows of largest norm that a block keeps, at least
_COMES_WITH = {
    "pattern": "heads",
    "router": "router",
    "attn": "branch",
    "mlp": "branch",
}  # what a site has besides rows
OnProgress = Callable[[int], None]  # called with the number of tokens since the last call


class Engine:
    """Turns batches into statistics of every site, and those into results.

    Args:
        model: The model to run.
        layout: Where its layers are.
        request: What to measure; its groups `sites` and `statistics` are used.
        expected: How many tokens will come, if known. Blocks of documents are sized by it.
        blocks: Whether documents are kept in blocks, which error bars and comparisons across documents need.
        share: The documents of every batch that this process runs the model on.
        ranks: The processes that measure the other shares. All are fed the same batches.
        scratch: Where statistics that do not fit into memory are stored. Default: the system's temporary folder.

    Raises:
        CaptureError: None of the requested sites exists.
    """

    def __init__(
        self,
        model: nn.Module,
        layout: Layout,
        request: Request,
        *,
        expected: int | None = None,
        blocks: bool = True,
        share: Share | None = None,
        ranks: Ranks | None = None,
        scratch: Path | None = None,
    ) -> None:
        require_rows(request)
        self.model = model
        self.layout = layout
        self.request = request
        self.sites = _require_sites(model, layout, request.sites.sites)
        self.tokens = 0  # counted so far
        self.unit = "documents"
        self.metrics = self._chosen_metrics()
        self._ranks = ranks or Ranks()
        self.room = Room(parent=scratch)
        self._share = share or Share(self._ranks.rank, self._ranks.world)
        # a block of documents holds at least this many tokens; without blocks all documents are one
        least = _UNIT if request.statistics.rows == "tokens" else 1  # a sequence has one row, so few tokens are many
        self._block_tokens = sys.maxsize if not blocks else least if expected is None else max(1, expected // _UNITS)
        self.extremes = max(_EXTREMES, (expected or 0) // 2048)  # 1.6 % of a block's rows and more
        level = 1 if expected is not None and blocks else 0  # of 64 smallest blocks, 32 pairs are kept
        self._collectors = SiteCollectors(self._pass_options(self.extremes), level)
        self._block_numbers: BlockNumbers | None = None
        self._batches = 0
        self._first_document = 0
        size = request.statistics.batch_tokens
        self._spread = None if size is None else BatchSpread(size, self._empty_collectors)

    def run(
        self,
        batches: Iterable[Any],
        limit: int | None = None,
        on_progress: OnProgress | None = None,
        after_batch: Callable[[], None] | None = None,
    ) -> bool:
        """Feed the batches through the model until `limit` tokens are counted.

        Batches that a loaded engine has counted already are skipped.

        Returns:
            Whether the user interrupted it; then the batches so far count.

        Raises:
            InputError: The batches hold no tokens.
        """
        done = self._batches
        try:
            for number, inputs in enumerate(batches):
                if limit is not None and self.tokens >= limit:
                    break
                if number < done:
                    continue
                batch, block, more = self._counted_batch(inputs)
                for piece in self._share.pieces(batch, inputs, block):
                    self._forward(*piece)
                self.tokens += more
                self._batches += 1
                if self._spread is not None:
                    self._spread.add_tokens(more, self.unit)
                if on_progress is not None:
                    on_progress(more)
                if after_batch is not None:
                    after_batch()
        except KeyboardInterrupt:
            if not self.tokens or self._ranks.world > 1:  # other ranks may have ended already
                raise
            return True
        if not self.tokens:
            raise InputError("the data holds no tokens to measure; use a longer text, more images or longer clips")
        return False

    def results(self, options: EvaluationOptions | None = None) -> Iterator[SiteResult]:
        """Yield the result of every site under both token policies; its clouds are released with the next request."""
        options = replace(options or EvaluationOptions(), unit=self.unit)
        yield from site_results(self._collectors, options)
        if self._spread is not None:
            yield from self._spread.results(options)

    def count(self, batches: Iterable[Any], limit: int | None = None) -> tuple[int, int]:
        """Return how many tokens and blocks of documents `run` would count in these batches, without the model."""
        numbers, tokens, first, seen = BlockNumbers(self._block_tokens), 0, 0, {0}
        for inputs in batches:
            if limit is not None and tokens >= limit:
                break
            batch = as_batch(inputs, first)
            first += len(batch.document)
            counts = counted(batch, self.request.statistics.special)
            seen |= set(blocks_of(batch, counts, numbers).tolist())
            tokens += int(counts.sum())
        level = self._collectors.level
        while max(seen) >> level >= 2 * BLOCKS:
            level += 1
        return tokens, len({number >> level for number in seen})

    def provisional(self, names: Collection[str]) -> list[Record]:
        """Return those of some metrics that need sums only, of all tokens so far and without errors; then continue."""
        cheap = [m for m in self.metrics if m.name in names and m.sources <= {"Moments", "Directions", "Norms"}]
        here = self._collectors
        clouds, without = CopiedWhenTaken(here.clouds), CopiedWhenTaken(here.without_sinks)
        so_far = SiteCollectors(replace(here.options, metrics=cheap), here.level, clouds, without)
        results = site_results(so_far, EvaluationOptions(errors=False))
        return [measured.record for result in results for measured in result.measured]

    def one_of_each(self, options: EvaluationOptions) -> Iterator[SiteResult]:
        """Yield the result of the first site with rows, and of the first attention layer, to see what they cost."""
        of_rows, of_heads = self._collectors.clouds, self._collectors.heads
        few = replace(self._collectors, clouds=_first(of_rows), heads=_first(of_heads))
        yield from site_results(few, options)

    @property
    def batches(self) -> int:
        """How many batches were counted so far."""
        return self._batches

    @property
    def windows(self) -> int:
        """How many windows, images or clips were fed so far."""
        return self._first_document

    @property
    def shapes(self) -> dict[Site, SiteShape]:
        """What came at the sites that have rows."""
        return self._collectors.shapes

    @property
    def collected_sites(self) -> int:
        """How many sites have statistics that are not evaluated yet; each head of `q` and `k` is one."""
        return len(self._collectors.clouds) + len(self._collectors.heads)

    @property
    def full_batches(self) -> int | None:
        """How many batches of `batch_tokens` there were; None if no spread was requested."""
        return None if self._spread is None else self._spread.batches

    def save(self, folder: Path) -> None:
        """Write everything counted so far to a new folder; `load` on an engine of the same request resumes from it."""
        folder.mkdir(parents=True)
        state = {
            "batches": self._batches,
            "tokens": self.tokens,
            "first_document": self._first_document,
            "unit": self.unit,
            "collectors": self._collectors.save(folder),
            "block_numbers": None if self._block_numbers is None else self._block_numbers.state(),
            "spread": None if self._spread is None else self._spread.save(folder / "spread"),
        }
        (folder / "state.json").write_text(json.dumps(state))

    def load(self, folder: Path) -> None:
        """Read what `save` wrote."""
        state = json.loads((folder / "state.json").read_text())
        self._batches, self.tokens = state["batches"], state["tokens"]
        self._first_document, self.unit = state["first_document"], state["unit"]
        self._collectors.load(folder, state["collectors"])
        self._block_numbers = None if state["block_numbers"] is None else BlockNumbers(*state["block_numbers"])
        if self._spread is not None:
            self._spread.load(folder / "spread", state["spread"])

    # --- one batch ------------------------------------------------------------------------------------------------

    def _counted_batch(self, inputs: Any) -> tuple[Batch, Tensor, int]:
        """Return the next batch, the block of each of its items, (b,), and how many of its tokens count."""
        batch = as_batch(inputs, self._first_document)
        self.unit = batch.unit
        self._first_document += len(batch.document)
        counts = counted(batch, self.request.statistics.special)
        return batch, blocks_of(batch, counts, self._numbers(counts)), int(counts.sum())

    def _forward(self, batch: Batch, inputs: Any, block: Tensor) -> None:
        """Run the model on a batch and add what comes at each site to its statistics."""
        statistics = self.request.statistics
        rows, sinks = statistics.rows, not self.layout.grid
        current = CurrentBatch(batch, block, self._share.owns(block), statistics.special, statistics.seed, rows, sinks)
        collect: Sink = partial(self._collectors.add, current)
        if self._spread is not None:
            collect = _both(partial(self._spread.collectors.add, current), collect)
        # only this forward is captured: creating the batches may run the model too, as generation does
        # no_grad, not inference_mode: what a model caches in there could not take part in training afterwards
        branches = any("branch" in metric.requires for metric in self.metrics)
        watch = observe_sites(self.model, self.sites, collect, layout=self.layout, branches=branches)
        device = device_of(self.model)
        with torch.no_grad(), watch as log:
            if isinstance(inputs, Tensor):
                self.model(inputs.to(device))
            else:
                self.model(**on_device(batch.inputs, device))
        log.require(self.sites)

    def _numbers(self, counts: Tensor) -> BlockNumbers:
        if self._block_numbers is None:
            # an item whose length only the model knows (an image) is a block of its own, to be joined with others
            unknown = counts.shape[1] == 1 and self._block_tokens < sys.maxsize
            self._block_numbers = BlockNumbers(1 if unknown else self._block_tokens)
            if unknown:
                self._collectors.level = 0
        return self._block_numbers

    # --- what is collected ----------------------------------------------------------------------------------------

    def _chosen_metrics(self) -> list[Any]:
        pooled = self.request.statistics.rows != "tokens"
        known = known_facts(self.sites) - ({"tokens", "branch"} if pooled else set())
        names = self.request.statistics.metrics
        return [m for m in choose_metrics(names, known) if names is not None or not m.slow]

    def _pass_options(self, extremes: int) -> PassOptions:
        statistics = self.request.statistics
        return PassOptions(
            self.metrics,
            sample=statistics.sample or MODEL_SAMPLE,
            extremes=extremes,
            tokens=statistics.rows == "tokens",
            grid=self.layout.grid,
            sites=len(self.sites),
            ranks=self._ranks,
            room=self.room,
        )

    def _empty_collectors(self) -> SiteCollectors:
        return SiteCollectors(self._pass_options(_EXTREMES))


def known_facts(sites: Iterable[Site]) -> set[str]:
    """Return what rows at these sites come with, for `Metric.requires`.

    >>> sorted(known_facts([Site("resid", 0), Site("pattern", 0)]))
    ['documents', 'heads', 'tokens']
    """
    return {"documents", "tokens"} | {_COMES_WITH[site.kind] for site in sites if site.kind in _COMES_WITH}


def _both(first: Sink, second: Sink) -> Sink:
    def collect(site: Site, x: Any) -> None:
        first(site, x)
        second(site, x)

    return collect


def _first(by_site: dict[Site, Any]) -> dict[Site, Any]:
    return {site: by_site[site] for site in sorted(by_site)[:1]}


def _require_sites(model: nn.Module, layout: Layout, names: Iterable[str]) -> list[Site]:
    sites = expand(layout, list(names))
    if not sites:
        what = f"none of {', '.join(names)} exists in {type(model).__name__}" if names else "no site was requested"
        raise CaptureError(f"{what}; name some, such as embed, resid or final")
    return sites
