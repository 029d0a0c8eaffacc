"""Measuring a model: one pass over its inputs, every layer at once, with and without the tokens that draw the curve."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from anisoscope.capture import Layout, capture, expand, find_layout
from anisoscope.errors import CaptureError, InputError
from anisoscope.metrics import Metric
from anisoscope.metrics.evaluate import Measured, evaluate
from anisoscope.metrics.outliers import MASSIVE
from anisoscope.models import Batch, Opened, Table, model_batches, open_model, table_at
from anisoscope.models.tables import item_table, with_inputs
from anisoscope.offline.runs import choose_metrics, run_info, save_cloud, save_measured
from anisoscope.records import Site
from anisoscope.stats.arith import plain
from anisoscope.stats.attention import Attention, Heads
from anisoscope.stats.blocks import SECOND_LOOK, Block, BlockNumbers, Cloud, Collector, Stats, join
from anisoscope.stats.cloud import BLOCKS, second_look_at_sample
from anisoscope.stats.heads import HeadSums
from anisoscope.stats.norms import Norms
from anisoscope.stats.rows import Rows, Tokens, token_table
from anisoscope.stats.sample import Extremes
from anisoscope.store import Run

TOKENS = 65_536
SITES = ("embed", "resid", "final")
_STREAM = ("embed", "resid", "final.in", "final")  # where a massive token is flagged
_UNIT = 256  # tokens of the smallest block where the total is not known
_UNITS = 64  # smallest blocks where it is: a text of a quarter of that length still has enough
_ASKED = 16  # query positions whose largest weight and logit spread are computed: they need the whole row
Progress = Callable[[int], None]


def measure(
    model: nn.Module | str | Path | Opened,
    batches: Iterable[Any] | None = None,
    *,
    text: Any = None,
    images: Any = None,
    audio: Any = None,
    metrics: Sequence[str] | None = None,
    sites: Sequence[str] = SITES,
    tokens: int | None = TOKENS,
    window: int | None = None,
    batch: int = 8,
    special: bool = True,
    sample: int = 8192,
    seed: int = 0,
    errors: bool = True,
    out: str | Path | None = None,
    keep_statistics: bool = False,
    command: str | None = None,
    progress: Progress | None = None,
    opening: Mapping[str, Any] | None = None,
    reading: Mapping[str, Any] | None = None,
) -> Run:
    """The geometry of a model, layer by layer: records under `all` tokens and without sinks, as a run.

    `model` is a module, a folder, a hub id, or what `open_model` gave; its inputs are `batches` (anything the module
    is called with: dicts of tensors, tensors, or `Batch`), or `text`, `images`, `audio` for a model that comes with
    its processor. `special=False` leaves special tokens out; padding never counts. Without `out` the run lives in a
    temporary folder as long as the returned object. `opening` goes to `open_model`, `reading` to `model_batches`.
    """
    opened = model if isinstance(model, Opened) else None
    if isinstance(model, str | Path):
        given = {"image": images, "audio": audio}
        modality = next((name for name, source in given.items() if source is not None), None)
        opened = open_model(model, modality=modality, **(opening or {}))
    if batches is None:
        batches = _read(opened, text, images, audio, tokens, window, batch, special, dict(reading or {}))
    module = opened.model if opened is not None else model
    assert isinstance(module, nn.Module)
    total = tokens if opened is not None else None  # of bare batches nobody knows how many there are
    first, batches = _peek(batches)
    layout = find_layout(module, _first_item(first, _device(module)))
    survey = _Survey(module, layout, sites, metrics, special=special, sample=sample, seed=seed, tokens=total)
    interrupted = survey.run(batches, tokens, progress)
    info = {
        "kind": "model",
        "model": opened.info if opened is not None else {"architecture": type(module).__name__},
        "data": {"source": _source_name(text, images, audio), "tokens": survey.counted, "window": window},
        "token_policy": {
            "special": special,
            "first token": "position 0 of its window",
            "massive": f"> {MASSIVE} medians",
        },
        "unit": survey.unit,
        "seed": seed,
        "sample": sample,
        "interrupted": interrupted,
    }
    run = _create_run(out, run_info(info, survey.chosen), command)
    survey.write(run, errors=errors, keep_statistics=keep_statistics, processor=opened.processor if opened else None)
    return run


class _Survey:
    """One pass of a model over its batches, collected site by site."""

    def __init__(
        self,
        model: nn.Module,
        layout: Layout,
        sites: Sequence[str],
        metrics: Sequence[str] | None,
        *,
        special: bool,
        sample: int,
        seed: int,
        tokens: int | None,
    ) -> None:
        self.model = model
        self.layout = layout
        self.sites = expand(self.layout, sites)
        if not self.sites:
            raise CaptureError(f"none of {', '.join(sites)} exists in {type(model).__name__}")
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
        self._options: dict[str, Any] = {"sample": sample, "sinks": not self.layout.grid}
        self._names = set().union(*(m.sources for m in self.metrics)) | {"Moments", "Directions", "Norms", "Documents"}
        self._names |= {"Sample"}
        self._collectors: dict[Site, Collector] = {}
        self._heads: dict[Site, tuple[int, dict[int, Stats]]] = {}
        self._numbers: dict[tuple[str, int], BlockNumbers] = {}

    def run(self, batches: Iterable[Any], tokens: int | None, progress: Progress | None) -> bool:
        """Feeds the batches; True if the user stopped it, in which case what was seen counts."""
        first_document = 0
        try:
            with torch.inference_mode(), capture(self.model, self.sites, self._sink, layout=self.layout) as seen:
                for given in batches:
                    batch = _as_batch(given, first_document)
                    first_document += len(batch.document)
                    self._batch = _Current(batch, self._special, self._seed, self._unit_rows, self._numbers)
                    self.unit = batch.documents_are
                    _call(self.model, batch, given)
                    seen.require(self.sites)
                    more = int(self._batch.counts("", batch.counts.shape[1]).sum())
                    self.counted += more
                    if progress is not None:
                        progress(more)
                    if tokens is not None and self.counted >= tokens:
                        break
        except KeyboardInterrupt:
            if not self.counted:
                raise
            return True
        if not self.counted:
            raise InputError("the data gave no tokens to measure; give a longer text, more images or longer clips")
        return False

    def _sink(self, site: Site, x: Any) -> None:
        if site.kind == "pattern":
            self._pattern(site, x)
        elif site.kind in ("q", "k", "q.pre", "k.pre"):
            for head in range(x.shape[1]):
                self._count(Site(site.kind, site.layer, head, stack=site.stack), x[:, head])
        else:
            self._count(site, x)

    def _count(self, site: Site, x: Tensor) -> None:
        place, tokens = self._batch.tokens(site.stack, x.shape[1])
        flat = x.reshape(-1, x.shape[-1])  # (b · T, d)
        rows = Rows(flat if place is None else flat[place.to(flat.device)], tokens)
        if site not in self._collectors:
            self._collectors[site] = Collector(self._names - set(SECOND_LOOK), **self._options)
        self._collectors[site].add(rows, self._batch.priority(site, rows.x))

    def _pattern(self, site: Site, heads: Any) -> None:
        length = (heads.q if isinstance(heads, Heads) else heads.logits).shape[2]
        counts = self._batch.counts(site.stack, length)
        number = int(self._batch.tokens(site.stack, length)[1].block[0])
        asked = torch.linspace(1, max(1, length - 1), min(_ASKED, length)).long().unique()
        found: Stats = {"Attention": Attention.of(heads, counts, asked)}
        if isinstance(heads, Heads):
            found["HeadSums"] = HeadSums.of(heads, counts)
        level, blocks = self._heads.get(site, (0, {}))
        while number >> level >= 2 * BLOCKS:
            level += 1
            halved: dict[int, Stats] = {}
            for each, stats in blocks.items():
                halved[each >> 1] = join(halved.get(each >> 1, {}), stats, ())
            blocks = halved
        blocks[number >> level] = join(blocks.get(number >> level, {}), found, ())
        self._heads[site] = level, blocks

    def write(self, run: Run, *, errors: bool, keep_statistics: bool, processor: Any) -> None:
        """Evaluates every site under both policies and appends the records site by site."""
        flagged: dict[str, Tensor] = {}
        removed: list[dict[str, Any]] = []
        for site in sorted(self._collectors):
            cloud = self._collectors.pop(site).finish()
            known = flagged.get(site.stack, torch.zeros(0, dtype=torch.int64))
            new = _massive(cloud, known) if site.kind in _STREAM else known[:0]
            removed += _in_words(cloud, new, site, processor)
            flagged[site.stack] = known = torch.cat((known, new))
            self._write_cloud(run, cloud, site, known, errors, keep_statistics)
        for site, (_, parts) in sorted(self._heads.items()):
            total = reduce(lambda a, b: join(a, b, ()), parts.values())
            heads = Cloud(total, tuple(Block(number, stats) for number, stats in parts.items()))
            metrics = [m for m in self.head_metrics if m.sources <= set(total)]
            save_measured(run, evaluate(heads, metrics, site=str(site), run=run.name, unit=self.unit, errors=errors))
        run.update_info(removed={"count": len(removed), "tokens": removed[:256]})

    def _write_cloud(
        self, run: Run, cloud: Cloud, site: Site, flagged: Tensor, errors: bool, keep_statistics: bool
    ) -> None:
        second = [name for name in SECOND_LOOK if any(name in m.sources for m in self.metrics)]
        measured: list[Measured] = []
        views = [("all", cloud, self.metrics)]
        if not self.layout.grid:
            streaming = [m for m in self.metrics if not m.sources & {"Norms", "Documents", "Extremes"}]
            views.append(("no-sink", cloud.without_tokens(flagged, first=True), streaming))
        for tokens, view, metrics in views:
            whole = second_look_at_sample(view, second) if second else view
            measured += evaluate(
                whole, metrics, site=str(site), run=run.name, tokens=tokens, unit=self.unit, errors=errors
            )
            if keep_statistics:
                save_cloud(run, whole, site=str(site), tokens=tokens)
        save_measured(run, measured)


@dataclass
class _Current:
    """The batch that is going through the model: its token tables at each length, and the flags raised so far."""

    batch: Batch
    special: bool
    seed: int
    unit: int
    numbers: dict[tuple[str, int], BlockNumbers]
    _tokens: dict[tuple[str, int], tuple[Tensor | None, Tokens]] = field(default_factory=dict)
    _raised: dict[tuple[str, int], Tensor] = field(default_factory=dict)

    def table(self, stack: str, length: int) -> Table:
        whole: Table = self.batch.decoder if stack == "dec" and self.batch.decoder is not None else self.batch
        return table_at(whole, length)

    def counts(self, stack: str, length: int) -> Tensor:
        """Which tokens count, (b, T) bool."""
        table = self.table(stack, length)
        return table.counts if self.special else table.counts & ~table.special

    def tokens(self, stack: str, length: int) -> tuple[Tensor | None, Tokens]:
        """The flat places of the tokens that count (None: all of them), and their table."""
        at = (stack, length)
        if at not in self._tokens:
            table, counts = self.table(stack, length), self.counts(stack, length)
            document = table.document[counts]
            numbers = self.numbers.setdefault(at, BlockNumbers(self.unit))
            made = token_table(
                document,
                table.position[counts],
                offset=table.offset[counts],
                token=table.token[counts],
                block=numbers.of(document),
                seed=self.seed,
            )
            place = None if bool(counts.all()) else counts.flatten().nonzero()[:, 0]
            self._tokens[at] = place, made
        return self._tokens[at]

    def priority(self, site: Site, x: Tensor) -> Tensor:
        """How outsized a row is, here or at any earlier point of the stream: its norm over the batch's median."""
        norm = torch.linalg.vector_norm(plain(x), dim=1)
        ratio = (norm / norm.median().clamp(min=1e-30)).nan_to_num(torch.inf)
        at = (site.stack, len(x))
        if at in self._raised and len(self._raised[at]) == len(ratio):
            ratio = torch.maximum(ratio, self._raised[at].to(ratio.device))
        if site.kind in _STREAM:
            self._raised[at] = ratio
        return ratio


def _massive(cloud: Cloud, known: Tensor) -> Tensor:
    """Keys of the tokens that are massive here and were not before; more than can be held is an error."""
    extremes = cloud.get(Extremes)
    outsized = extremes.x.double().norm(dim=1).cpu() > MASSIVE * cloud.get(Norms).median
    keys = extremes.table[:, 0].cpu()
    if len(keys) == extremes.size and bool(outsized.all()):
        raise InputError(
            f"more than {extremes.size} tokens have over {MASSIVE:g} times the median norm, too many to be outliers; "
            "measure fewer tokens, or look at the norms first"
        )
    return keys[outsized & ~torch.isin(keys, known)]


def _in_words(cloud: Cloud, keys: Tensor, site: Site, processor: Any) -> list[dict[str, Any]]:
    """The removed tokens as a person would name them."""
    extremes = cloud.get(Extremes)
    median = cloud.get(Norms).median or 1.0
    out = []
    for place in torch.isin(extremes.table[:, 0].cpu(), keys).nonzero()[:, 0].tolist():
        tokens = extremes.rows.tokens
        token = int(tokens.token[place])
        out.append(
            {
                "site": str(site),
                "document": int(tokens.document[place]),
                "position": int(tokens.position[place]),
                "token": token,
                "text": processor.decode([token]) if processor is not None and token >= 0 else None,
                "norm over median": round(float(extremes.x[place].double().norm()) / median, 1),
            }
        )
    return out


def _read(
    opened: Opened | None,
    text: Any,
    images: Any,
    audio: Any,
    tokens: int | None,
    window: int | None,
    batch: int,
    special: bool,
    reading: dict[str, Any],
) -> Iterable[Batch]:
    sources = [source for source in (text, images, audio) if source is not None]
    if opened is None:
        raise InputError("a bare module needs batches: measure(model, batches)")
    if len(sources) != 1:
        raise InputError(f"{opened.info['source']} takes {opened.modality}; give one of text, images, audio")
    if opened.modality == "text":
        reading = {"window": window, "tokens": tokens, **reading}
    return model_batches(opened, sources[0], batch=batch, **reading)


def _as_batch(given: Any, first_document: int) -> Batch:
    """A batch with its table: as it came, or made for bare inputs, each sequence a document of its own."""
    if isinstance(given, Batch):
        return given
    inputs = dict(given) if isinstance(given, Mapping) else {}
    tensors = [x for x in (inputs.values() if inputs else [given]) if isinstance(x, Tensor)]
    if not tensors:
        raise InputError(f"a batch is a dict of tensors, a tensor or a Batch; got {type(given).__name__}")
    ids = inputs.get("input_ids", given if isinstance(given, Tensor) and not given.is_floating_point() else None)
    mask = inputs.get("attention_mask")
    b = len(tensors[0])
    if mask is not None and mask.ndim == 2:
        counts = mask.bool().cpu()
    else:
        counts = torch.ones(b, 1 if ids is None else ids.shape[1], dtype=torch.bool)
    document = torch.arange(first_document, first_document + b)
    table = item_table(document, counts)
    offset = (counts.long().cumsum(1) - 1).clamp(min=0)  # the first unmasked token is the sink, also with left padding
    token = table.token if ids is None else ids.cpu().long().masked_fill(~counts, -1)
    table = replace(table, position=offset, offset=offset, token=token)
    return with_inputs(table, inputs, documents_are="sequences")


def _peek(batches: Iterable[Any]) -> tuple[Any, Iterable[Any]]:
    """The first batch, and all of them."""
    rest = iter(batches)
    first = next(rest, None)
    if first is None:
        raise InputError("the data gave no tokens to measure; give a longer text, more images or longer clips")
    return first, chain([first], rest)


def _first_item(given: Any, device: torch.device) -> dict[str, Any] | None:
    """The first sequence of a batch as keyword arguments: enough for a model to show its layout."""
    inputs = given.inputs if isinstance(given, Batch) else given
    if not isinstance(inputs, Mapping):
        return None
    return {name: x[:1].to(device) if isinstance(x, Tensor) and x.ndim else x for name, x in inputs.items()}


def _call(model: nn.Module, batch: Batch, given: Any) -> None:
    device = _device(model)
    if isinstance(given, Tensor):
        model(given.to(device))
    else:
        model(**{name: x.to(device) if isinstance(x, Tensor) else x for name, x in batch.inputs.items()})


def _device(model: nn.Module) -> torch.device:
    return next((p.device for p in model.parameters()), torch.device("cpu"))


def _create_run(out: str | Path | None, info: dict[str, Any], command: str | None) -> Run:
    """A run in the folder asked for, or in one that goes with the object."""
    if out is not None:
        return Run.create(out, info, command=command)
    folder = tempfile.mkdtemp(prefix="anisoscope-run-")
    run = Run.create(Path(folder) / "run", info, command=command)
    weakref.finalize(run, shutil.rmtree, folder, ignore_errors=True)
    return run


def _source_name(*sources: Any) -> str | None:
    given = next((source for source in sources if source is not None), None)
    return str(given) if isinstance(given, str | Path) else None if given is None else type(given).__name__
