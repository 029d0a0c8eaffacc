"""Measuring a model: one pass over its inputs, every layer at once, with and without the tokens that dominate it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from anisoscope.data.inputs import device_of, first_item, peek
from anisoscope.distributed import Ranks, host_ranks
from anisoscope.errors import AnisoscopeError, InputError, is_out_of_memory
from anisoscope.hooks import Layout, find_layout
from anisoscope.measurement.document_shares import Share
from anisoscope.measurement.engine import Engine, OnProgress
from anisoscope.measurement.final_norm import final_norm, norm_effect
from anisoscope.measurement.finished_run import FILES, file_stamps, finished_run
from anisoscope.measurement.generation import generated_batches
from anisoscope.measurement.holdings import return_freed_memory, scratch_note
from anisoscope.measurement.massive_words import SeenTokens, removed_tokens
from anisoscope.measurement.measure_weights import measure_weights, weight_metrics
from anisoscope.measurement.model_data import expected_tokens, open_for, read_data, with_data
from anisoscope.measurement.request import (
    MODEL_SAMPLE,
    DataOptions,
    ModelOptions,
    Request,
    SiteOptions,
    StatisticsOptions,
    accepts,
    names_of,
    require_data,
    require_rows,
    require_shareable,
)
from anisoscope.measurement.resume import Partial
from anisoscope.measurement.run_output import KEPT, open_run, run_info, save_cloud, small_statistics
from anisoscope.measurement.site_statistics import EvaluationOptions, SiteResult
from anisoscope.metrics.evaluate import records_and_replicates
from anisoscope.metrics.outliers import MASSIVE
from anisoscope.models.open import Opened
from anisoscope.records import SUMMED_KINDS, Record
from anisoscope.stats.cloud import Cloud
from anisoscope.stats.directions import Directions
from anisoscope.stats.sample import Sample
from anisoscope.store.run import Run

PROVISIONAL = ("spectral_anisotropy", "top_coordinate", "mean_cosine", "isoscore", "participation_ratio")
PROVISIONAL_TOKENS = 4096
GENERATED = 16_384  # tokens that are generated at most: each costs a forward pass
_OUTPUT = ("out", "keep_statistics", "overwrite")
MEASURE_OPTIONS = (*names_of(DataOptions, SiteOptions, StatisticsOptions, ModelOptions), *_OUTPUT)
OnStatus = Callable[[str], None]  # called with what is being done
OnSite = Callable[[SiteResult], None]  # called with every site's clouds and numbers before they are released
OnNote = Callable[[str], None]  # called with a sentence for the user
OnProvisional = Callable[[int, list[Record]], None]  # called with a number of tokens and records without errors
OnEvaluated = Callable[[int, int], None]  # called with the number of sites that are evaluated, and of all sites


@dataclass(frozen=True)
class Callbacks:
    """Whom to inform while a measurement runs."""

    progress: OnProgress | None = None
    status: OnStatus = lambda _: None
    site: OnSite = lambda _: None
    evaluated: OnEvaluated = lambda _done, _total: None
    note: OnNote = lambda _: None
    provisional: OnProvisional | None = None


@accepts(*MEASURE_OPTIONS)
def measure(
    model: nn.Module | str | Path | Opened,
    data: Any = None,
    *,
    processor: Any = None,
    command: str | None = None,
    progress: OnProgress | None = None,
    on_status: OnStatus | None = None,
    on_site: OnSite | None = None,
    on_evaluated: OnEvaluated | None = None,
    on_note: OnNote | None = None,
    on_provisional: OnProvisional | None = None,
    distributed: bool = False,
    **options: Any,
) -> Run:
    """Measure the geometry of a model, layer by layer, over all tokens and without sinks.

    Args:
        model: A module, a folder, a hub id, or what `open_model` returned.
        data: What the model reads: texts (a list or any iterable of strings), rows of a dataset with a column of text
            or of `input_ids`, or batches: dicts of tensors, tensors or `Batch`, such as a `DataLoader` gives. Texts
            need a model with its tokenizer. Instead of `data`, a model can read `text`, `images` or `audio` from files.
        processor: The tokenizer, image processor or feature extractor of a module; another name for `tokenizer`.
        command: The command line, for the run's own record.
        progress: Called with the number of tokens since the last call.
        on_status: Called with what is being done.
        on_site: Called with each site's clouds and results before they are released.
        on_evaluated: Called after the pass, and then after each site, with the number of sites that are evaluated and
            the number of all sites.
        on_note: Called with a sentence that the user should read, such as how large scratch files will be.
        on_provisional: Called once, after 4,096 of at least twice as many tokens, with the number of tokens and with
            records of a few metrics without error bars, for a first impression.
        distributed: All ranks of `torch.distributed` call this with the same arguments. Each measures its share of the
            documents and the statistics add; rank 0 writes, every rank gets the records.
        {options}

    Returns:
        A run with one record per site, metric and token policy. Without `out` it lives in a temporary folder, as long
        as the returned object. With `out`, a measurement of a model by name that was interrupted is resumed, and one
        that is complete is returned as it is.

    Raises:
        InputError: The request cannot be met; the message says what to change.
        StoreError: `out` holds a run of another request. Pass `overwrite=True` to replace it.

    Example: `measure("./model", text="corpus.jsonl", tokens=4096, out="runs/model").frame()`.
    """
    listeners: dict[str, Any] = {"status": on_status, "site": on_site, "evaluated": on_evaluated, "note": on_note}
    callbacks = Callbacks(progress, provisional=on_provisional, **{k: x for k, x in listeners.items() if x is not None})
    request = _with_processor(Request.of(**options), processor)
    return measure_request(model, request, data, callbacks=callbacks, command=command, distributed=distributed)


def measure_request(
    model: nn.Module | str | Path | Opened,
    request: Request,
    data: Any = None,
    *,
    callbacks: Callbacks,
    command: str | None = None,
    distributed: bool = False,
) -> Run:
    """Measure what a request names; the arguments and the result are those of `measure`."""
    request, batches = with_data(request, data)
    require_data(request, batches=batches is not None)
    require_rows(request)
    ranks = host_ranks() if distributed else Ranks()
    require_shareable(request, ranks.world)
    repeatable = batches is None and not isinstance(model, nn.Module) and request.is_repeatable
    stamps = None
    if isinstance(model, str | Path):
        finished = finished_run(model, request) if repeatable and ranks.world == 1 else None
        if finished is not None:
            return finished
        stamps = file_stamps(model)
    opened = open_for(model, request)
    return_freed_memory()  # opening a model may take twice its size
    if ranks.world > 1:
        callbacks = replace(callbacks, provisional=None)
    is_first = ranks.rank == 0
    named = not isinstance(model, nn.Module)
    with (
        open_run(
            request.output.out if is_first else None,
            run_info({**_facts(request, opened, named=named), FILES: stamps}, []),
            command=command,
            overwrite=request.output.overwrite,
            resumable=repeatable,
        ) as run,
        _memory_explained(),
    ):
        unfinished = Partial(_partial_folder(request.output.out, ranks) if repeatable else None)
        if ranks.agree(run.info["complete"]):
            unfinished.drop()  # the process may have been killed between the last record and this
            return _shared(run, ranks)
        measurement = _Measurement(request, opened, run, unfinished, ranks, callbacks)
        measurement.expected = None if batches is not None else expected_tokens(request)
        if batches is not None or request.source() is not None:
            measurement.data(batches if batches is not None else read_data(opened, request, ranks))
        if request.sites.weights and is_first:
            measurement.weights()
        if request.sites.generate is not None and not measurement.interrupted:
            measurement.generated(batches if batches is not None else read_data(opened, request, ranks))
        measurement.finish()
        return _shared(run, ranks)


@dataclass
class _Measurement:
    """One measurement while it is written into its run: data, weights, generated tokens."""

    request: Request
    opened: Opened
    run: Run
    partial: Partial
    ranks: Ranks
    callbacks: Callbacks
    expected: int | None = None  # tokens, by which blocks are sized
    layout: Layout | None = None
    announced: bool = False  # scratch files
    shown: bool = False  # provisional numbers
    interrupted: bool = False
    removed: list[dict[str, Any]] = field(default_factory=list)
    seen: SeenTokens | None = None

    @property
    def module(self) -> nn.Module:
        return self.opened.model

    def data(self, batches: Iterable[Any]) -> None:
        """Run the model over the data, then evaluate every site under both token policies."""
        statistics, run = self.request.statistics, self.run
        first, batches = peek(batches)
        self.layout = layout = find_layout(self.module, first_item(first, device_of(self.module)))
        with_norm = self.request.sites.weights and layout.stacks[-1].final is not None
        sites = [*self.request.sites.sites, *(["final.in"] if with_norm else [])]
        split = self.request.model.tensor_parallel
        engine = Engine(
            self.module,
            layout,
            self.request.having(sites=sites),
            expected=self.expected,
            share=Share(self.ranks.rank, self.ranks.world, forward_all=split),
            ranks=self.ranks,
            scratch=self.partial.scratch,
        )
        resumed = self.partial.load(engine)
        if resumed and self.callbacks.progress is not None:
            self.callbacks.progress(engine.tokens)
        if resumed or not run.is_empty:
            run.rewind(0)  # these are numbers of fewer tokens, or some of those that are about to come
        self.seen = seen = SeenTokens(batches)
        self.interrupted = engine.run(seen, statistics.tokens, self.callbacks.progress, partial(self._keep, engine))
        if resumed:
            seen.catch_up(engine.batches)
        self.partial.keep(engine, now=self.interrupted)
        self.callbacks.status("evaluating")
        run.update_info(**run_info({"unit": engine.unit}, engine.metrics), data={"tokens": engine.tokens})
        if engine.full_batches is not None:
            run.update_info(full_batches=engine.full_batches)
        total = engine.collected_sites
        self.callbacks.evaluated(0, total)
        results = engine.results(EvaluationOptions(run=run.name, errors=statistics.errors))
        for done, result in enumerate(results, 1):
            self._save(result, total)
            self.callbacks.evaluated(min(done, total), total)
            self.removed += result.removed
            if with_norm and str(result.site) == "final.in":
                self._save_norm_effect(result, layout, engine.unit)

    def _keep(self, engine: Engine) -> None:
        """After each batch: write what was counted, if it is time. After the first, announce scratch files."""
        if not self.announced:
            self.announced = True
            note = scratch_note(engine, self.request, self.expected, self.partial.scratch)
            if note is not None:
                self.callbacks.note(note)
        self.partial.keep(engine)
        total = self.expected or self.request.statistics.tokens or math.inf
        if self.callbacks.provisional is not None and not self.shown and engine.tokens >= PROVISIONAL_TOKENS:
            self.shown = True
            if total >= 2 * PROVISIONAL_TOKENS:
                with suppress(AnisoscopeError):  # what is wrong with these tokens is reported at the end
                    self.callbacks.provisional(engine.tokens, engine.provisional(PROVISIONAL))
        return_freed_memory()

    def _save_norm_effect(self, result: SiteResult, layout: Layout, unit: str) -> None:
        """What the final norm does to the rows before it."""
        rows = result.clouds["all"].get(Sample).rows
        labels = {"run": self.run.name, "site": "final", "unit": unit, "tokens": "all"}
        statistics, norm = self.request.statistics, final_norm(self.module, layout)
        measured = norm_effect(norm, rows, seed=statistics.seed, errors=statistics.errors, **labels)
        self.run.append(*records_and_replicates(measured))

    def weights(self) -> None:
        """Measure the vocabulary matrices and the final norm."""
        self.callbacks.status("weights")
        self.run.update_info(**run_info({}, weight_metrics()))
        processor = self.opened.processor
        for measured in measure_weights(
            self.module,
            self.request.statistics.metrics,
            vocabulary=len(processor) if isinstance(processor, Sized) else None,
            sample=self.request.statistics.sample or MODEL_SAMPLE,
            run=self.run.name,
            errors=self.request.statistics.errors,
            layout=self.layout,
        ):
            self.run.append(*records_and_replicates(measured))

    def generated(self, batches: Iterable[Any]) -> None:
        """Measure the states of tokens that the model itself adds to the beginning of each window."""
        statistics, new = self.request.statistics, self.request.sites.generate
        if self.layout is None or new is None:
            raise InputError("generate needs text for its prompts")
        self.callbacks.status("generated tokens")
        limit = GENERATED if statistics.tokens is None else min(statistics.tokens, GENERATED)
        request, scratch = self.request.having(batch_tokens=None), self.partial.scratch
        engine = Engine(self.module, self.layout, request, expected=limit, scratch=scratch)
        continued = generated_batches(self.opened, batches, new, seed=statistics.seed)
        self.interrupted = engine.run(continued, limit, self.callbacks.progress)
        options = EvaluationOptions(
            run=self.run.name, errors=statistics.errors, policies=("generated", "generated no-sink")
        )
        total = engine.collected_sites
        for result in engine.results(options):
            self._save(result, total)

    def finish(self) -> None:
        self.run.update_info(
            removed=removed_tokens(self.removed, self.opened, self.seen),
            interrupted=self.interrupted,
            complete=not self.interrupted,
        )
        if not self.interrupted:
            self.partial.drop()

    def _save(self, result: SiteResult, sites: int) -> None:
        """Write the records of one of `sites` sites, its statistics, and a note about rows that are not numbers."""
        self.callbacks.status(f"{result.site} evaluated")
        self.callbacks.site(result)
        self.run.append(*records_and_replicates(result.measured))
        for policy, cloud in result.clouds.items():
            if result.site.kind not in SUMMED_KINDS:
                self._save_statistics(cloud, str(result.site), policy, sites)
            return_freed_memory()
            bad = int(cloud.get(Directions).bad) if cloud.has(Directions) else 0
            if bad and "not_finite" not in self.run.info:
                self.run.update_info(not_finite={"site": str(result.site), "rows": bad})

    def _save_statistics(self, cloud: Cloud, site: str, policy: str, sites: int) -> None:
        """Keep a cloud for `recompute`: all of it on request, else the statistics that fit into its share."""
        output = self.request.output
        if not output.keep_statistics:
            cloud = Cloud({} if output.out is None else small_statistics(cloud, KEPT // (2 * sites)))
        if cloud.stats:
            save_cloud(self.run, cloud, site=site, tokens=policy)


def _with_processor(request: Request, processor: Any) -> Request:
    if processor is None:
        return request
    if request.model.tokenizer is not None:
        raise InputError("tokenizer and processor are two names for one thing; give one of them")
    return request.having(tokenizer=processor)


def _facts(request: Request, opened: Opened, *, named: bool) -> dict[str, Any]:
    """What the run reports about its request; a model that was opened by name is compared by it."""
    source = request.data_name()
    name = [opened.info[key] for key in ("source", "revision", "digest")] if named else None
    return {
        "kind": "model",
        "model": opened.info,
        "data": {"source": source, "window": request.data.window},
        "rows": request.statistics.rows,
        "token_policy": _token_policy(request),
        "seed": request.statistics.seed,
        "sample": request.statistics.sample or MODEL_SAMPLE,
        "complete": False,
        "settings": {"model": name, "data": source, **request.settings()},
    }


def _token_policy(request: Request) -> dict[str, Any]:
    """What the token policy `no-sink` means for these rows."""
    rows, special = request.statistics.rows, request.statistics.special
    if rows in ("last", "cls"):
        return {"special": special, "no-sink": "not applicable: a row is one token of its sequence"}
    median = "medians" if rows == "tokens" else "medians of its sequence; left out of the mean"
    return {"special": special, "first token": "position 0 of its window", "massive": f"> {MASSIVE} {median}"}


def _partial_folder(out: str | Path | None, ranks: Ranks) -> Path | None:
    """Where an unfinished pass is kept: in the run's folder, one folder per rank, since each has its own share."""
    if out is None:
        return None
    return Path(out) if ranks.world == 1 else Path(out) / f"rank-{ranks.rank}-of-{ranks.world}"


def _shared(run: Run, ranks: Ranks) -> Run:
    """The run of rank 0; on the other ranks a temporary one that holds the same records."""
    if ranks.world == 1:
        return run
    records, info = ranks.agree((list(run.records()), run.info))
    if ranks.rank:
        run.append(records)
        run.update_info(**info)
    return run


@contextmanager
def _memory_explained() -> Iterator[None]:
    """Report a lack of memory in one line with the remedy."""
    remedy = "use a smaller batch, window or sample, fewer sites, or a smaller dtype"
    try:
        yield
    except (MemoryError, RuntimeError) as why:
        if not is_out_of_memory(why):
            raise
        raise InputError(f"out of memory; {remedy}") from why
