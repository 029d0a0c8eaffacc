"""Models that were given: looks at them with documents, or groups of documents, as units."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from torch import nn

from anisoscope.capture import expand, find_layout
from anisoscope.data.batches import model_batches
from anisoscope.data.inputs import device_of, first_item
from anisoscope.data.token_table import Batch
from anisoscope.errors import InputError
from anisoscope.measurement.measure_model import measure
from anisoscope.measurement.measure_weights import vocabulary_matrices
from anisoscope.models.checkpoints import Checkpoint, checkpoints
from anisoscope.models.open import Opened, open_model
from anisoscope.records import Site
from anisoscope.store.files import replacing
from anisoscope.store.run import Run
from anisoscope.studies.claims.looks import Kind, Say, kept
from anisoscope.studies.claims.readings import Missing, RunView, Units, by_documents
from anisoscope.studies.claims.sizes import Size
from anisoscope.studies.lab.corpora import EMBEDDED, open_text
from anisoscope.tangent.splits import split_batches

GROUPS = 4  # of documents of a model given
_FEW = 2  # windows a forward pass of it: a short text makes enough batches for all groups
_DEPTHS = 7  # of a deep model at which slow shapes are read
_EMBEDDED_SAID = "Python's help topics"
_ROWS = 10  # a dimension: Tyler's matrix breaks where more than one row in d lies in one direction


@dataclass(frozen=True)
class Given:
    """A model of the user's at one step, and the folder in which looks at it are kept."""

    checkpoint: Checkpoint
    folder: Path
    size: Size
    text: str | None
    say: Say
    images: Path | None = None
    audio: Path | None = None

    @property
    def name(self) -> str:
        """A hub id with its revision, or the end of a path."""
        source, revision = self.checkpoint.source, self.checkpoint.revision
        name = "/".join(Path(source).parts[-3:]) if Path(source).exists() else source
        return name if revision is None else f"{name} at {revision}"

    @property
    def step(self) -> int:
        return self.checkpoint.step

    def open(self, *, head: bool = True) -> Opened:
        """The model; without its head where only states are looked at: logits of a large vocabulary cost most of it."""
        if self.checkpoint.problem is not None:
            raise InputError(f"{self.checkpoint.source} cannot be opened: {self.checkpoint.problem}")
        return open_model(self.checkpoint.source, revision=self.checkpoint.revision, head=head)

    def text_file(self) -> str:
        """The text given; without one, what the lab trains on, as a file of documents beside the looks."""
        if self.text is not None:
            return self.text
        path = self.folder.parents[1] / f"{EMBEDDED}.jsonl"
        if not path.is_file():
            path.parent.mkdir(parents=True, exist_ok=True)
            with replacing(path) as temporary:
                temporary.write_text("".join(json.dumps({"text": each}) + "\n" for each in open_text(EMBEDDED)))
        return str(path)

    def look(self, kind: Kind, half: int | None = None) -> Units:
        """A look whose units are blocks of documents; `half` 0 or 1 takes one half of the documents.

        A kind that is read group by group has the groups as its units.
        """
        if kind.grouped:
            return Units(tuple(RunView.of(run.records()) for run in self._by_group(kind)), "groups of documents")
        units = by_documents(self.run(kind, half))
        return replace(units, unit="blocks of rows") if kind.weights else units

    def run(self, kind: Kind, half: int | None = None) -> Run:
        """The run of a look."""
        name = kind.name if half is None else f"{kind.name}-half-{half}"
        return kept(self.folder / name, lambda folder: self._measured(kind, folder, half))

    def _by_group(self, kind: Kind) -> list[Run]:
        opened = self.open(head=False)
        batches = self.batches(opened)
        rows = _ROWS * width_of(opened.model)
        groups = groups_of(batches)
        fewest = min(sum(int(batch.counts.sum()) for batch in group) for group in groups)
        if fewest < rows:
            needed = f"{rows:,} are needed, {_ROWS} a dimension: give more text"
            raise Missing(f"{kind.name} of {self.name}: a group of documents has {fewest:,} tokens; {needed}")
        layout = find_layout(opened.model, first_item(batches[0], device_of(opened.model)))
        sites = [str(site) for site in thinned(expand(layout, list(kind.sites)))]

        def make(number: int, group: list[Batch], folder: Path) -> Run:
            self.say(f"{kind.name} of {self.name}, group {number + 1} of {GROUPS}")
            options: dict[str, Any] = {"metrics": kind.metrics, "sites": sites, "errors": False}
            return measure(opened, group, sample=rows, out=folder, **options)

        places = [self.folder / f"{kind.name}-{number}" for number in range(GROUPS)]
        return [kept(place, partial(make, number, groups[number])) for number, place in enumerate(places)]

    def batches(self, opened: Opened) -> list[Batch]:
        """The text as the model takes it."""
        return list(model_batches(opened, self.text_file(), tokens=self.size.tokens, batch=_FEW))

    def halves(self, opened: Opened) -> tuple[list[Batch], list[Batch]]:
        """The text in two halves that share no document."""
        return split_batches(self.batches(opened))

    def _measured(self, kind: Kind, folder: Path, half: int | None) -> Run:
        self.say(f"{kind.name} of {self.name}")
        opened = self.open(head=kind.weights)
        options: dict[str, Any] = {"metrics": kind.metrics, "sites": kind.sites, "out": folder}
        if kind.weights:
            return measure(opened, weights=True, **options)
        if half is not None:
            return measure(opened, self.halves(opened)[half], **options)
        if kind.spread and opened.modality == "text":
            options["batch_tokens"] = self.size.batch_tokens
        return measure(opened, tokens=self.size.tokens, **self.data(opened), **options)

    def data(self, opened: Opened) -> dict[str, Any]:
        """What the model is measured on, by the name that `measure` has for it."""
        if opened.modality == "text":
            return {"text": self.text_file()}
        name, given = ("audio", self.audio) if opened.modality == "audio" else ("images", self.images)
        if given is None:
            raise Missing(f"{self.name} takes {opened.modality}: give --{name}")
        return {name: given}

    @cached_property
    def info(self) -> dict[str, Any]:
        """What is known of the model besides its weights."""
        return self.open().info

    @property
    def decoder(self) -> bool:
        """Whether the model predicts what comes next; an encoder sees both sides."""
        if "lab" in self.info:
            return bool(self.info["lab"]["causal"])
        return any(sign in str(self.info["architecture"]) for sign in ("CausalLM", "LMHead"))


def thinned(sites: Sequence[Site]) -> list[Site]:
    """At most seven depths of a deep model, evenly spaced, the ends among them.

    The state before the final norm stays where it was there: profiles leave it out in favour of the one after.
    """
    states = sorted(sites)
    before = states[-2:-1] if states[-1].kind == "final" else []
    depths = [site for site in states if site not in before]
    if len(depths) <= _DEPTHS:
        return states
    places = [round(place * (len(depths) - 1) / (_DEPTHS - 1)) for place in range(_DEPTHS)]
    return sorted([*(depths[place] for place in places), *before])


def width_of(model: nn.Module) -> int:
    """d, from the rows of the vocabulary matrices."""
    return next(iter(vocabulary_matrices(model).values())).shape[1]


def groups_of(batches: Sequence[Batch]) -> list[list[Batch]]:
    """Batches in four runs, the units of what has no jackknife: they share no document but those they meet in."""
    if len(batches) < GROUPS:
        raise Missing(f"the text fills {len(batches)} batches; {GROUPS} are needed: give more")
    ends = [len(batches) * place // GROUPS for place in range(GROUPS + 1)]
    return [list(batches[start:end]) for start, end in pairwise(ends)]


def ran_on(models: Sequence[Given]) -> str:
    """What a verdict on models given rests on."""
    names = ", ".join(model.name for model in models)
    return f"{names} on {models[0].text or _EMBEDDED_SAID}, {models[0].size.tokens:,} tokens at most"


def given_models(
    sources: Sequence[str], revisions: str | None, folder: Path, template: dict[str, Any]
) -> tuple[tuple[Given, ...], ...]:
    """The models given, each with its checkpoints in the order of training."""
    found = []
    for source in sources:
        place = folder / _plain(source)
        series = checkpoints(source, revisions)
        found.append(tuple(Given(c, place / f"{c.step}-{_plain(c.label)}", **template) for c in series))
    return tuple(found)


def _plain(label: str) -> str:
    return "".join(sign if sign.isalnum() or sign in "-_." else "-" for sign in label)[-60:]
