"""Measuring a model: one pass over its inputs, every layer at once, with and without the tokens that draw the curve."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from anisoscope.capture import Layout, find_layout
from anisoscope.data.batches import WINDOW, model_batches
from anisoscope.data.inputs import device_of, first_item, peek
from anisoscope.data.text_sources import text_size
from anisoscope.data.token_table import Batch
from anisoscope.distributed import Ranks, host_ranks
from anisoscope.errors import InputError, StoreError
from anisoscope.measurement.document_shares import Share
from anisoscope.measurement.engine import Engine
from anisoscope.measurement.final_norm import final_norm, norm_effect
from anisoscope.measurement.generation import generated_batches
from anisoscope.measurement.measure_weights import measure_weights, weight_metrics
from anisoscope.measurement.resume import Partial
from anisoscope.measurement.run_output import create_run, run_info, save_cloud, save_measured
from anisoscope.measurement.site_result import SiteResult
from anisoscope.metrics.outliers import MASSIVE
from anisoscope.models.open import Opened, open_model
from anisoscope.stats.directions import Directions
from anisoscope.stats.sample import Sample
from anisoscope.store.run import Run

TOKENS = 65_536
GENERATED = 16_384  # tokens that are generated at most: each costs a forward pass
SITES = ("embed", "resid", "final")
SAMPLE = 4096
_BYTES = 3  # of text a token, or a few more: fewer blocks than hoped are worse than joining some
Progress = Callable[[int], None]  # told how many more tokens have gone by
Saying = Callable[[str], None]  # told what is being done
Seeing = Callable[[SiteResult], None]  # shown every site's clouds and numbers before they are let go


def measure(
    model: nn.Module | str | Path | Opened,
    batches: Iterable[Any] | None = None,
    *,
    text: Any = None,
    images: Any = None,
    audio: Any = None,
    weights: bool = False,
    generate: int | None = None,
    metrics: Sequence[str] | None = None,
    sites: Sequence[str] = SITES,
    tokens: int | None = TOKENS,
    batch_tokens: int | None = None,
    window: int | None = None,
    batch: int = 8,
    special: bool = True,
    sample: int = SAMPLE,
    seed: int = 0,
    errors: bool = True,
    out: str | Path | None = None,
    keep_statistics: bool = False,
    command: str | None = None,
    progress: Progress | None = None,
    saying: Saying | None = None,
    seeing: Seeing | None = None,
    opening: Mapping[str, Any] | None = None,
    reading: Mapping[str, Any] | None = None,
    distributed: bool = False,
) -> Run:
    """The geometry of a model, layer by layer: records under `all` tokens and without sinks, as a run.

    `model` is a module, a folder, a hub id, or what `open_model` gave; its inputs are `batches` (anything the module
    is called with: dicts of tensors, tensors, or `Batch`), or `text`, `images`, `audio` for a model that comes with
    its processor. `special=False` leaves special tokens out; padding never counts. `weights` measures the vocabulary
    matrices and the final norm, with data or without; `generate` so many tokens that the model itself adds to each
    window's beginning, under the policies `generated` and `generated no-sink`; `batch_tokens` also gives the mean and
    deviation of every number over batches of that size. Without `out` the run lives in a temporary folder as long as
    the returned object. With it, a measurement of a model by name that was killed or interrupted goes on when it is
    asked for again, and one that is whole is returned as it is. `opening` goes to `open_model`, `reading` to
    `model_batches`. `distributed`: all ranks of `torch.distributed` call this with the same arguments, each measures
    its share of the documents, and their statistics add; rank 0 writes, every rank gets the records.
    """
    sources = {"text": text, "image": images, "audio": audio}
    given = {kind: source for kind, source in sources.items() if source is not None}
    if batches is None and not given and not weights:
        raise InputError("nothing to measure: give text, images, audio or batches, or ask for the weights")
    if batch_tokens is not None and tokens is not None and tokens < 2 * batch_tokens:
        raise InputError(f"{tokens} tokens hold no two batches of {batch_tokens}; measure at least {2 * batch_tokens}")
    ranks = host_ranks() if distributed else Ranks()
    split = bool(opening and opening.get("tensor_parallel"))
    _require_shareable(ranks, split, sites, weights, generate, batch_tokens)
    opened = open_for(model, sources, head=weights or generate is not None, opening=opening or {})
    module = opened.model if opened is not None else model
    assert isinstance(module, nn.Module)
    asked = Asked(metrics, list(sites), tokens, batch_tokens, sample, seed, special, errors, weights, generate)
    info = {
        "kind": "model",
        "model": opened.info if opened is not None else {"architecture": type(module).__name__},
        "data": {"source": _source_name(given), "window": window},
        "token_policy": {
            "special": special,
            "first token": "position 0 of its window",
            "massive": f"> {MASSIVE} medians",
        },
        "seed": seed,
        "sample": sample,
        "complete": False,
        "settings": {
            "model": None if opened is None else [opened.info[key] for key in ("source", "revision", "digest")],
            "data": _source_name(given),
            "reading": {"window": window, "batch": batch, **_plain(reading or {})},
            "asked": json.loads(json.dumps(asdict(asked))),
        },
    }
    resumable = opened is not None and batches is None
    if batch_tokens is not None:
        batch = max(1, min(batch, batch_tokens // (window or WINDOW)))  # a forward pass must not hold two batches

    def read() -> Iterable[Any]:
        if batches is not None:
            return batches
        size = batch if split else batch * ranks.world
        return read_data(opened, given, tokens, window, size, dict(reading or {}))

    first = ranks.rank == 0
    with _start(out if first else None, info, command, resumable=resumable) as run, _memory_explained():
        partial = Partial(_partial_folder(out, ranks) if out is not None and resumable else None)
        if ranks.agree(run.info["complete"]):
            partial.drop()  # a kill may have come between the last record and this
            return _shared(run, ranks)
        telling = (progress, saying or (lambda _: None), seeing or (lambda _: None))
        share = Share(ranks.rank, ranks.world, forward_all=split)
        expected = tokens if batches is None else None  # nobody knows how many bare batches hold
        if text is not None:  # a short text has as many blocks as a long one; one of unknown length joins small ones
            size = text_size(text)
            expected = None if size is None else min(expected or size, max(1, size // _BYTES))
        measuring = _Measuring(asked, module, opened, run, partial, keep_statistics, ranks, share, *telling, expected)
        if batches is not None or given:
            measuring.data(read())
        if weights and first:
            measuring.weights()
        if generate is not None and not measuring.interrupted:
            measuring.generated(read())
        measuring.finish()
        return _shared(run, ranks)


@dataclass(frozen=True)
class Asked:
    """What is to be measured, whatever the model and the data."""

    metrics: Sequence[str] | None
    sites: Sequence[str]
    tokens: int | None
    batch_tokens: int | None
    sample: int
    seed: int
    special: bool
    errors: bool
    weights: bool
    generate: int | None

    def survey(self, module: nn.Module, layout: Layout, *, tokens: int | None, **more: Any) -> Engine:
        options: dict[str, Any] = {"special": self.special, "sample": self.sample, "seed": self.seed, **more}
        sites = options.pop("sites", self.sites)
        return Engine(module, layout, sites, self.metrics, tokens=tokens, **options)


@dataclass
class _Measuring:
    """A measurement on its way into its run: data, weights, generated tokens."""

    asked: Asked
    module: nn.Module
    opened: Opened | None
    run: Run
    partial: Partial
    keep_statistics: bool
    ranks: Ranks
    share: Share
    progress: Progress | None
    saying: Saying
    seeing: Seeing
    expected: int | None  # tokens, by which blocks are sized
    layout: Layout | None = None
    interrupted: bool = False
    removed: list[dict[str, Any]] = field(default_factory=list)

    def data(self, batches: Iterable[Any]) -> None:
        """One pass over the data, then every site under both token policies."""
        asked, run = self.asked, self.run
        first, batches = peek(batches)
        self.layout = layout = find_layout(self.module, first_item(first, device_of(self.module)))
        norm = asked.weights and layout.stacks[-1].final is not None
        survey = asked.survey(
            self.module,
            layout,
            sites=(*asked.sites, *(("final.in",) if norm else ())),
            tokens=self.expected,
            batch_tokens=asked.batch_tokens,
            ranks=self.ranks,
            share=self.share,
        )
        goes_on = self.partial.load(survey)
        if goes_on and self.progress is not None:
            self.progress(survey.counted)
        if goes_on or not run.is_empty:
            run.rewind(0)  # the numbers of fewer tokens, or some of those that are about to come
        self.interrupted = survey.run(batches, asked.tokens, self.progress, lambda: self.partial.keep(survey))
        self.partial.keep(survey, now=self.interrupted)
        self.saying("evaluating")
        run.update_info(**run_info({"unit": survey.unit}, survey.chosen), data={"tokens": survey.counted})
        if survey.full_batches is not None:
            run.update_info(full_batches=survey.full_batches)
        for done in survey.evaluated(run=run.name, errors=asked.errors):
            self._save(done)
            self.removed += done.removed
            if norm and str(done.site) == "final.in":
                rows = done.clouds["all"].get(Sample).rows
                where = {"run": run.name, "site": "final", "unit": survey.unit, "tokens": "all"}
                effect = norm_effect(
                    final_norm(self.module, layout), rows, seed=asked.seed, errors=asked.errors, **where
                )
                save_measured(run, effect)

    def weights(self) -> None:
        """The vocabulary matrices and the final norm."""
        self.saying("weights")
        self.run.update_info(**run_info({}, weight_metrics()))
        processor = self.opened.processor if self.opened is not None else None
        for measured in measure_weights(
            self.module,
            self.asked.metrics,
            vocabulary=len(processor) if isinstance(processor, Sized) else None,
            sample=self.asked.sample,
            run=self.run.name,
            errors=self.asked.errors,
            layout=self.layout,
        ):
            save_measured(self.run, measured)

    def generated(self, batches: Iterable[Any]) -> None:
        """The states of tokens that the model itself adds to the beginning of each window."""
        asked = self.asked
        if self.opened is None or self.layout is None or asked.generate is None:
            raise InputError("generate needs a language model by name and text for its prompts")
        self.saying("generated tokens")
        most = GENERATED if asked.tokens is None else min(asked.tokens, GENERATED)
        survey = asked.survey(self.module, self.layout, tokens=most)
        own = generated_batches(self.opened, batches, asked.generate, seed=asked.seed)
        self.interrupted = survey.run(own, most, self.progress)
        policies = ("generated", "generated no-sink")
        for done in survey.evaluated(run=self.run.name, errors=asked.errors, policies=policies):
            self._save(done)

    def finish(self) -> None:
        self.run.update_info(
            removed={"count": len(self.removed), "tokens": in_words(self.removed[:256], self.opened)},
            interrupted=self.interrupted,
            complete=not self.interrupted,
        )
        if not self.interrupted:
            self.partial.drop()

    def _save(self, done: SiteResult) -> None:
        """Records, statistics where wanted, and a word about rows that are not numbers."""
        self.saying(f"{done.site} evaluated")
        self.seeing(done)
        save_measured(self.run, done.measured)
        for policy, cloud in done.clouds.items():
            if self.keep_statistics and done.site.kind != "pattern":
                save_cloud(self.run, cloud, site=str(done.site), tokens=policy)
            bad = int(cloud.get(Directions).bad) if cloud.has(Directions) else 0
            if bad and "not_finite" not in self.run.info:
                self.run.update_info(not_finite={"site": str(done.site), "rows": bad})


def open_for(
    model: nn.Module | str | Path | Opened, sources: dict[str, Any], *, head: bool, opening: Mapping[str, Any]
) -> Opened | None:
    if not isinstance(model, str | Path):
        return model if isinstance(model, Opened) else None
    modality = next((name for name, source in sources.items() if source is not None and name != "text"), None)
    return open_model(model, modality=modality, head=head, **opening)


def _start(out: str | Path | None, info: dict[str, Any], command: str | None, *, resumable: bool) -> Run:
    """A new run, or one that the same request began: whole, or to be gone on with."""
    if out is None:
        return create_run(None, run_info(info, []), command)
    if not resumable or not (Path(out) / "run.json").is_file():
        return Run.create(out, run_info(info, []), command=command)
    before = Run.open(out).info.get("settings")
    if before != info["settings"]:
        differs = ", ".join(_differences(before, info["settings"])) if isinstance(before, dict) else "all of it"
        raise StoreError(f"{out} holds another measurement (different: {differs}); choose another --out, or delete it")
    return Run.create(out, run_info(info, []), command=command, resume=True)


def _require_shareable(
    ranks: Ranks, split: bool, sites: Sequence[str], weights: bool, generate: int | None, batch_tokens: int | None
) -> None:
    """What several processes cannot measure together is refused before anything is opened."""
    if split and ranks.world == 1:
        raise InputError("tensor parallel needs several processes: start them with torchrun")
    if ranks.world > 1 and (generate is not None or batch_tokens is not None):
        raise InputError("generated tokens and batches of tokens are measured by one process; leave torchrun out")
    heads = [site for site in sites if site.split(".")[0] in ("q", "k", "pattern")]
    if split and (weights or heads):
        what = heads[0] if heads else "a weight"
        raise InputError(
            f"{what} lies in pieces where layers are split over processes; leave it out, or use device_map"
        )


def _partial_folder(out: str | Path, ranks: Ranks) -> Path:
    """Where a half-done pass waits: in the run's folder, one place a rank, since each has its own share."""
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


def _differences(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[str]:
    """Which settings differ, by name; groups are looked into."""
    out: list[str] = []
    for name in {**a, **b}:
        if a.get(name) != b.get(name):
            old, new = a.get(name), b.get(name)
            out += (_differences(old, new) if isinstance(old, dict) and isinstance(new, dict) else []) or [name]
    return out


def read_data(
    opened: Opened | None,
    given: Mapping[str, Any],
    tokens: int | None,
    window: int | None,
    batch: int,
    reading: dict[str, Any],
) -> Iterable[Batch]:
    """The batches of the one source given, which must be of the model's modality."""
    if opened is None:
        raise InputError("a bare module needs batches: measure(model, batches)")
    if list(given) != [opened.modality]:
        raise InputError(f"{opened.info['source']} takes {opened.modality} and nothing else; got {', '.join(given)}")
    if opened.modality == "text":
        reading = {"window": window, "tokens": tokens, **reading}
    return model_batches(opened, given[opened.modality], batch=batch, **reading)


def in_words(removed: list[dict[str, Any]], opened: Opened | None) -> list[dict[str, Any]]:
    """The removed tokens as a person would name them."""
    if opened is None or opened.modality != "text" or opened.processor is None:
        return [{**each, "text": None} for each in removed]
    return [{**each, "text": opened.processor.decode([each["token"]])} for each in removed]


@contextmanager
def _memory_explained() -> Iterator[None]:
    """Out of memory as one line with the remedy."""
    remedy = "give a smaller batch, window or sample, fewer sites, or a smaller dtype"
    try:
        yield
    except (MemoryError, torch.OutOfMemoryError) as why:
        raise InputError(f"out of memory ({type(why).__name__}); {remedy}") from why
    except RuntimeError as why:
        if "allocate memory" not in str(why):
            raise
        raise InputError(f"out of memory; {remedy}") from why


def _source_name(given: Mapping[str, Any]) -> str | None:
    source = next(iter(given.values()), None)
    return str(source) if isinstance(source, str | Path) else None if source is None else type(source).__name__


def _plain(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options as run.json can hold them."""
    return {name: x if isinstance(x, str | int | float | None) else str(x) for name, x in options.items()}
