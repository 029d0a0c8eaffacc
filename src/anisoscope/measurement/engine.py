"""The engine: one pass of a model over its batches, collected site by site, then evaluated under each token policy."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from anisoscope.data.inputs import as_batch, call
from anisoscope.data.token_table import Batch
from anisoscope.distributed import Ranks
from anisoscope.errors import CaptureError, InputError
from anisoscope.hooks import Layout, expand, observe_sites
from anisoscope.hooks.branches import Branch
from anisoscope.measurement.batch_spread import BatchSpread
from anisoscope.measurement.current_batch import CurrentBatch, counted
from anisoscope.measurement.document_shares import Share, blocks_of, take_items, take_rows
from anisoscope.measurement.policies import OUTSIZED
from anisoscope.measurement.request import MODEL_SAMPLE, Request, require_rows
from anisoscope.measurement.run_output import choose_metrics
from anisoscope.measurement.site_collectors import CollectorOptions, CopiedWhenTaken, SiteCollectors, collected_names
from anisoscope.measurement.site_evaluation import EvaluationOptions, SiteEvaluator, SiteResult
from anisoscope.records import SUMMED_KINDS, Record, Site
from anisoscope.stats.block_numbers import BlockNumbers
from anisoscope.stats.collect import BLOCKS
from anisoscope.stats.registry import SECOND_PASS
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


@dataclass(frozen=True)
class SiteShape:
    """What came at a site: how many clouds (one per head of `q` and `k`), their width, and the bytes of a number."""

    clouds: int
    width: int
    number: int


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
        ranks = ranks or Ranks()
        self._evaluator = SiteEvaluator(self.metrics, layout.grid, ranks, tokens=request.statistics.rows == "tokens")
        self._alone = ranks.world == 1
        self.room = Room(parent=scratch)
        self.shapes: dict[Site, SiteShape] = {}  # of the sites that have rows
        self._share = share or Share(ranks.rank, ranks.world)
        # a block of documents holds at least this many tokens; without blocks all documents are one
        least = _UNIT if request.statistics.rows == "tokens" else 1  # a sequence has one row, so few tokens are many
        self._block_tokens = sys.maxsize if not blocks else least if expected is None else max(1, expected // _UNITS)
        self.extremes = max(_EXTREMES, (expected or 0) // 2048)  # 1.6 % of a block's rows and more
        level = 1 if expected is not None and blocks else 0  # of 64 smallest blocks, 32 pairs are kept
        self._collectors = SiteCollectors(self._collector_options(self.extremes), level)
        self._block_numbers: BlockNumbers | None = None
        self._batches = 0
        self._first_document = 0
        size = request.statistics.batch_tokens
        self._spread = None if size is None else BatchSpread(size, self._empty_collectors, replace(self._evaluator))

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
                more = self._feed(inputs)
                if on_progress is not None:
                    on_progress(more)
                if after_batch is not None:
                    after_batch()
        except KeyboardInterrupt:
            if not self.tokens or not self._alone:  # other ranks may have ended already
                raise
            return True
        if not self.tokens:
            raise InputError("the data holds no tokens to measure; use a longer text, more images or longer clips")
        return False

    def results(self, options: EvaluationOptions | None = None) -> Iterator[SiteResult]:
        """Yield the result of every site under both token policies; its clouds are released with the next request."""
        options = replace(options or EvaluationOptions(), unit=self.unit)
        yield from self._evaluator.results(self._collectors, options)
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
        so_far, options = SiteCollectors(here.options, here.level, clouds, without), EvaluationOptions(errors=False)
        results = replace(self._evaluator, metrics=cheap).results(so_far, options)
        return [measured.record for result in results for measured in result.measured]

    def one_of_each(self, options: EvaluationOptions) -> Iterator[SiteResult]:
        """Yield the result of the first site with rows, and of the first attention layer, to see what they cost."""
        of_rows, of_heads = self._collectors.clouds, self._collectors.heads
        few = replace(self._collectors, clouds=_first(of_rows), heads=_first(of_heads))
        yield from self._evaluator.results(few, options)

    @property
    def batches(self) -> int:
        """How many batches were counted so far."""
        return self._batches

    @property
    def windows(self) -> int:
        """How many windows, images or clips were fed so far."""
        return self._first_document

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

    def _feed(self, inputs: Any) -> int:
        """Run the model on this process's share of a batch; return how many tokens the whole batch counts."""
        batch = as_batch(inputs, self._first_document)
        self.unit = batch.unit
        self._first_document += len(batch.document)
        counts = counted(batch, self.request.statistics.special)
        block = blocks_of(batch, counts, self._numbers(counts))  # (b,)
        if self._share.of == 1 or self._share.forward_all:
            self._forward(batch, inputs, block)
        else:
            for items in self._share.pieces(block):
                self._forward(take_items(batch, items), take_rows(inputs, items, len(block)), block[items])
        more = int(counts.sum())
        self.tokens += more
        self._batches += 1
        if self._spread is not None:
            self._spread.add_tokens(more, self.unit)
        return more

    def _forward(self, batch: Batch, inputs: Any, block: Tensor) -> None:
        statistics = self.request.statistics
        rows, sinks = statistics.rows, not self.layout.grid
        current = CurrentBatch(batch, block, self._share.owns(block), statistics.special, statistics.seed, rows, sinks)

        def collect(site: Site, x: Any) -> None:
            if site.kind not in SUMMED_KINDS and site not in self.shapes:
                heads = x.shape[1] if site.kind in ("q", "k", "q.pre", "k.pre") else 1
                clouds = 2 * heads if statistics.rows == "mean" and sinks else heads
                of_rows = x.rows if isinstance(x, Branch) else x
                self.shapes[site] = SiteShape(clouds, of_rows.shape[-1], of_rows.element_size())
            if self._spread is not None:
                self._spread.collectors.add(current, site, x)
            self._collectors.add(current, site, x)

        # only this forward is captured: creating the batches may run the model too, as generation does
        # no_grad, not inference_mode: what a model caches in there could not take part in training afterwards
        branches = any("branch" in metric.requires for metric in self.metrics)
        watch = observe_sites(self.model, self.sites, collect, layout=self.layout, branches=branches)
        with torch.no_grad(), watch as log:
            call(self.model, batch, inputs)
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

    def _collector_options(self, extremes: int) -> CollectorOptions:
        names = collected_names([m.sources for m in self.metrics if not m.requires & {"heads", "router"}], SECOND_PASS)
        sample = self.request.statistics.sample or MODEL_SAMPLE
        tokens = self.request.statistics.rows == "tokens"
        sinks, outsized = tokens and not self.layout.grid, OUTSIZED if tokens else math.inf
        return CollectorOptions(names, sample, extremes, sinks, outsized, len(self.sites), self.room)

    def _empty_collectors(self) -> SiteCollectors:
        return SiteCollectors(self._collector_options(_EXTREMES))


def known_facts(sites: Iterable[Site]) -> set[str]:
    """Return what rows at these sites come with, for `Metric.requires`.

    >>> sorted(known_facts([Site("resid", 0), Site("pattern", 0)]))
    ['documents', 'heads', 'tokens']
    """
    return {"documents", "tokens"} | {_COMES_WITH[site.kind] for site in sites if site.kind in _COMES_WITH}


def _first(by_site: dict[Site, Any]) -> dict[Site, Any]:
    return {site: by_site[site] for site in sorted(by_site)[:1]}


def _require_sites(model: nn.Module, layout: Layout, names: Iterable[str]) -> list[Site]:
    sites = expand(layout, list(names))
    if not sites:
        what = f"none of {', '.join(names)} exists in {type(model).__name__}" if names else "no site was requested"
        raise CaptureError(f"{what}; name some, such as embed, resid or final")
    return sites
