"""One pass of a model over its batches, collected site by site, then evaluated under each token policy."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from anisoscope.capture import Layout, capture, expand
from anisoscope.errors import CaptureError, InputError
from anisoscope.metrics import Metric
from anisoscope.metrics.evaluate import Measured, evaluate
from anisoscope.metrics.outliers import MASSIVE
from anisoscope.models import Batch, Table, table_at
from anisoscope.records import Site
from anisoscope.stats.arith import plain
from anisoscope.stats.attention import Attention, Heads
from anisoscope.stats.blocks import SECOND_LOOK, Block, Cloud, Stats, from_arrays, join, on_device, to_arrays
from anisoscope.stats.cloud import BLOCKS, second_look_at_sample
from anisoscope.stats.collector import BlockNumbers, Collector
from anisoscope.stats.heads import HeadSums
from anisoscope.stats.norms import Norms
from anisoscope.stats.rows import Rows, Tokens, token_table
from anisoscope.stats.sample import Extremes
from anisoscope.survey.evaluated import Evaluated
from anisoscope.survey.inputs import as_batch, call, device_of
from anisoscope.survey.runs import choose_metrics
from anisoscope.survey.spread import Spread

_STREAM = ("embed", "resid", "final.in", "final")  # where a massive token is flagged
_UNIT = 256  # tokens of the smallest block where the total is not known
_UNITS = 64  # smallest blocks where it is: a text of a quarter of that length still has enough
_ASKED = 16  # query positions whose largest weight and logit spread are computed: they need the whole row
Progress = Callable[[int], None]


class Survey:
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
    ) -> None:
        """Without `blocks`, which error bars and what is compared across documents need, all rows are one block."""
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
        if not blocks:
            self._unit_rows = sys.maxsize
        self._options: dict[str, Any] = {"sample": sample, "sinks": not self.layout.grid}
        self._names = set().union(*(m.sources for m in self.metrics)) | {"Moments", "Directions", "Norms", "Documents"}
        self._names |= {"Sample"}
        self._collectors: dict[Site, Collector] = {}
        self._heads: dict[Site, tuple[int, dict[int, Stats]]] = {}
        self._numbers: dict[tuple[str, int], BlockNumbers] = {}
        self._batches = 0
        self._first_document = 0
        self._spread = None if batch_tokens is None else Spread(batch_tokens, self._empty)

    @property
    def full_batches(self) -> int | None:
        """How many batches of `batch_tokens` there were; None where no spread was asked for."""
        return None if self._spread is None else self._spread.batches

    def _empty(self) -> Survey:
        """A survey of the same sites and metrics that has seen nothing."""
        names = [metric.name for metric in self.chosen]
        return Survey(
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
            if not self.counted:
                raise
            return True
        if not self.counted:
            raise InputError("the data gave no tokens to measure; give a longer text, more images or longer clips")
        return False

    def _feed(self, given: Any) -> int:
        """One batch through the model; how many tokens it added."""
        batch = as_batch(given, self._first_document)
        self._batch = _Current(batch, self._special, self._seed, self._unit_rows, self._numbers)
        self.unit = batch.documents_are
        # only this forward is watched: making the batches may run the model too, as generation does
        # no_grad, not inference_mode: what a model caches in there could not take part in training afterwards
        with torch.no_grad(), capture(self.model, self.sites, self._sink, layout=self.layout) as seen:
            call(self.model, batch, given)
        seen.require(self.sites)
        self._first_document += len(batch.document)
        more = int(self._batch.counts("", batch.counts.shape[1]).sum())
        self.counted += more
        self._batches += 1
        if self._spread is not None:
            self._spread.fed(more)
        return more

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
        flat = x.reshape(-1, x.shape[-1])  # (b · T, d)
        rows = Rows(flat if place is None else flat[place.to(flat.device)], tokens)
        self._collector(site).add(rows, self._batch.priority(site, rows.x))

    def _collector(self, site: Site) -> Collector:
        if site not in self._collectors:
            self._collectors[site] = Collector(self._names - set(SECOND_LOOK), **self._options)
        return self._collectors[site]

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

    def evaluated(
        self,
        *,
        run: str = "",
        step: int = 0,
        errors: bool = True,
        slow_errors: bool = True,
        policies: tuple[str, str] = ("all", "no-sink"),
    ) -> Iterator[Evaluated]:
        """Every site under both policies, one after another; what has been evaluated is let go."""
        flagged: dict[str, Tensor] = {}
        options: dict[str, Any] = {
            "run": run,
            "step": step,
            "unit": self.unit,
            "errors": errors,
            "slow_errors": slow_errors,
        }
        for site in sorted(self._collectors):
            cloud = self._collectors.pop(site).finish()
            known = flagged.get(site.stack, torch.zeros(0, dtype=torch.int64))
            new = _massive(cloud, known) if site.kind in _STREAM else known[:0]
            flagged[site.stack] = known = torch.cat((known, new))
            removed = _removed(cloud, new, site)
            yield self._evaluate_cloud(cloud, site, known, removed, policies, options)
        for site, (_, parts) in sorted(self._heads.items()):
            total = reduce(lambda a, b: join(a, b, ()), parts.values())
            heads = Cloud(total, tuple(Block(number, stats) for number, stats in parts.items()))
            metrics = [m for m in self.head_metrics if m.sources <= set(total)]
            found = evaluate(heads, metrics, site=str(site), tokens=policies[0], **options)
            yield Evaluated(site, {policies[0]: heads}, found)
        if self._spread is not None:
            yield from self._spread.evaluated(run=run, step=step, policies=policies)

    def _evaluate_cloud(
        self,
        cloud: Cloud,
        site: Site,
        flagged: Tensor,
        removed: list[dict[str, Any]],
        policies: tuple[str, str],
        options: dict[str, Any],
    ) -> Evaluated:
        second = [name for name in SECOND_LOOK if any(name in m.sources for m in self.metrics)]
        views = [(policies[0], cloud, self.metrics)]
        if not self.layout.grid:
            streaming = [m for m in self.metrics if not m.sources & {"Norms", "Extremes"}]
            views.append((policies[1], cloud.without_tokens(flagged, first=True), streaming))
        clouds: dict[str, Cloud] = {}
        measured: list[Measured] = []
        for tokens, view, metrics in views:
            clouds[tokens] = second_look_at_sample(view, second) if second else view
            measured += evaluate(clouds[tokens], metrics, site=str(site), tokens=tokens, **options)
        return Evaluated(site, clouds, measured, removed)

    def save(self, folder: Path) -> None:
        """Writes all that has been counted; `load` on a survey made alike goes on from there."""
        folder.mkdir(parents=True)
        for site, collector in self._collectors.items():
            collector.save(folder / str(site))
        for site, (level, blocks) in self._heads.items():
            arrays = {f"{number}/{name}": x for number, stats in blocks.items() for name, x in to_arrays(stats).items()}
            save_file(arrays, folder / f"{site}.{level}.heads.safetensors")
        numbers = [[stack, length, each.state()] for (stack, length), each in self._numbers.items()]
        state = {
            "batches": self._batches,
            "counted": self.counted,
            "first_document": self._first_document,
            "unit": self.unit,
            "collectors": [str(site) for site in self._collectors],
            "heads": [[str(site), level] for site, (level, _) in self._heads.items()],
            "numbers": numbers,
            "spread": None if self._spread is None else self._spread.values(),
        }
        if self._spread is not None:
            self._spread.part.save(folder / "part")
        (folder / "state.json").write_text(json.dumps(state))

    def load(self, folder: Path) -> None:
        """Goes on from what `save` wrote."""
        state = json.loads((folder / "state.json").read_text())
        device = device_of(self.model)
        self._batches, self.counted = state["batches"], state["counted"]
        self._first_document, self.unit = state["first_document"], state["unit"]
        for name in state["collectors"]:
            collector = self._collector(Site.parse(name))
            collector.load(folder / name, device)
        for name, level in state["heads"]:
            arrays = load_file(folder / f"{name}.{level}.heads.safetensors")
            blocks: dict[int, dict[str, Tensor]] = {}
            for path, x in arrays.items():
                number, rest = path.split("/", 1)
                blocks.setdefault(int(number), {})[rest] = x
            heads = {number: on_device(from_arrays(found), device) for number, found in blocks.items()}
            self._heads[Site.parse(name)] = level, heads
        for stack, length, numbers in state["numbers"]:
            self._numbers[stack, length] = BlockNumbers(*numbers)
        if self._spread is not None:
            self._spread.restore(state["spread"])
            self._spread.part.load(folder / "part")


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


def _removed(cloud: Cloud, keys: Tensor, site: Site) -> list[dict[str, Any]]:
    """Where the tokens of these keys stand, and how long they are."""
    extremes = cloud.get(Extremes)
    median = cloud.get(Norms).median or 1.0
    tokens = extremes.rows.tokens
    return [
        {
            "site": str(site),
            "document": int(tokens.document[place]),
            "position": int(tokens.position[place]),
            "token": int(tokens.token[place]),
            "norm over median": round(float(extremes.x[place].double().norm()) / median, 1),
        }
        for place in torch.isin(extremes.table[:, 0].cpu(), keys).nonzero()[:, 0].tolist()
    ]
