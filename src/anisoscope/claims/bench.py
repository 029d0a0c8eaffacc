"""What claims are run on: trainings of the lab, shared between claims and kept, and models that were given."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from anisoscope.claims.claim import FEWEST, Estimate
from anisoscope.claims.readings import Missing, Reading, Units, by_documents
from anisoscope.claims.sizes import SHOWN, Size, cells
from anisoscope.errors import InputError
from anisoscope.lab.data import Data, open_data
from anisoscope.lab.experiment import Experiment, changed
from anisoscope.lab.losses import read_losses
from anisoscope.lab.train import Trained
from anisoscope.lab.twins import train_cell
from anisoscope.models import Batch, Checkpoint, Opened, checkpoints, model_batches, open_model
from anisoscope.offline import measure
from anisoscope.offline.splits import split_batches
from anisoscope.offline.weights import vocabulary_matrices
from anisoscope.schedule import at
from anisoscope.store import Run

STREAM = ("embed", "resid", "final")
_BATCH = 16  # windows a forward pass
GROUPS = 4  # of documents of a model given
_FEW = 2  # windows a forward pass of it: a short text makes enough batches for all groups
_ROWS, _SPARE = 1024, 64  # rows of a group, and beyond the two a dimension that a shape needs
Say = Callable[[str], None]


@dataclass(frozen=True)
class Kind:
    """A kind of look at a model: which metrics, where."""

    name: str
    metrics: tuple[str, ...]
    sites: tuple[str, ...] = STREAM
    weights: bool = False
    spread: bool = False  # whether the spread over batches, as papers report it, is wanted of a text
    grouped: bool = False  # too slow to leave out block after block of a model given: it is read group by group


SHAPE = Kind(
    "shape",
    (
        *("mean_cosine", "mean_cosine_centred", "mean_cosine_across_documents", "drift_norm", "relative_drift"),
        *("spectral_anisotropy", "isoscore"),
    ),
    spread=True,
)
TYLER = Kind("tyler", ("tyler_share",), grouped=True)
DIMENSION = Kind("dimension", ("two_nn", "two_nn_paper", "gride"))
LOCAL = Kind("local", ("local_isotropy", "isoscore"), grouped=True)
HEADS = Kind("heads", ("attention_entropy", "q_drift", "k_drift", "qk_cosine", "logit_budget"), ("pattern",))
REMOVAL = Kind("removal", ("removal_curve",), ("resid",))
BELL = Kind("bell", ("spectral_anisotropy", *REMOVAL.metrics), spread=True)  # both in one pass
WEIGHTS = Kind("weights", ("mean_cosine", "partition_isotropy"), weights=True)


def kept(folder: Path, make: Callable[[Path], Run]) -> Run:
    """The run in a folder if it was made to its end; else what is there goes and it is made."""
    if (folder / "run.json").is_file():
        run = Run.open(folder)
        if run.info.get("whole"):
            return run
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    made = make(folder)
    made.close()
    with Run.create(folder, resume=True) as run:
        run.update_info(whole=True)
    return Run.open(folder)


# --- the lab ------------------------------------------------------------------------------------------------------


@dataclass
class Lab:
    """Trainings by cell and seed, each made when it is first asked for and never again, and looks at them."""

    folder: Path
    size: Size
    seeds: int
    say: Say
    text: str | None = None  # another one than the lab's own
    _readings: dict[Path, Reading] = field(default_factory=dict)
    _trained: dict[Path, Trained] = field(default_factory=dict)

    def trained(self, cell: str, seed: int) -> Trained:
        """One training, at its end."""
        name = f"{cell}-seed-{seed}"
        if self.folder / name not in self._trained:
            self.say(f"training {cell}, seed {seed}")
            self._trained[self.folder / name] = self._train(cell, seed, name)
        return self._trained[self.folder / name]

    def _train(self, cell: str, seed: int, name: str) -> Trained:
        switches = {**self.size.switches, **cells(self.size)[cell], "seed": seed}
        experiment = changed(Experiment(), switches if self.text is None else {**switches, "text": self.text})
        done = train_cell(experiment, self.folder, name, resume=True, checkpoints=at(*self.size.looks))
        if done.stopped == "interrupted":
            raise KeyboardInterrupt
        if done.stopped is not None:
            raise Missing(f"the training of {cell} with seed {seed} {done.stopped} at step {done.step}")
        return done

    def seeds_of(self, cell: str) -> range:
        """The seeds of a cell's trainings: all, or the fewest that make an interval where nothing is judged by it."""
        return range(min(self.seeds, FEWEST) if cell in SHOWN else self.seeds)

    def opened(self, cell: str, seed: int, step: int) -> Opened:
        """The model of a training at one of its looks."""
        return open_model(self.trained(cell, seed).folder / "checkpoints" / f"step-{step}", head=True)

    def model(self, cell: str, seed: int, step: int) -> nn.Module:
        return self.opened(cell, seed, step).model

    def data(self, cell: str, seed: int = 0) -> Data:
        folder = self.trained(cell, seed).folder
        return open_data(folder / Run.open(folder).info["data"]["folder"])

    def held_out(self, cell: str) -> Tensor:
        """Held-out windows (windows, context), the same for every seed."""
        return self.data(cell).held_out(self.size.windows, int(self.size.switches["context"]))

    def batches(self, cell: str, half: int | None = None) -> list[dict[str, Tensor]]:
        """Held-out windows in batches, each a document of its own; `half` takes the first or the second half of them.

        Windows come in the order of the text, so that the halves share no document but the one they meet in.
        """
        ids = self.held_out(cell)
        parts = [ids] if half is None else ids.tensor_split(2)
        return [{"input_ids": part} for part in parts[half or 0].split(_BATCH)]

    def look(self, cell: str, step: int, kind: Kind, half: int | None = None) -> Units:
        """A look at every seed of a cell at one step."""
        return Units(tuple(self.reading(cell, seed, step, kind, half) for seed in self.seeds_of(cell)))

    def last(self, cell: str, kind: Kind) -> Units:
        return self.look(cell, self.size.steps, kind)

    def series(self, cell: str, kind: Kind, half: int | None = None) -> list[Units]:
        return [self.look(cell, step, kind, half) for step in self.size.looks]

    def reading(self, cell: str, seed: int, step: int, kind: Kind, half: int | None = None) -> Reading:
        """A look at one seed."""
        name = kind.name if half is None else f"{kind.name}-half-{half}"

        def make(folder: Path) -> Run:
            self.say(f"{kind.name} of {cell}, seed {seed}, step {step}")
            options: dict[str, Any] = {"metrics": kind.metrics, "sites": kind.sites, "errors": False}
            model = self.model(cell, seed, step)
            return measure(model, self.batches(cell, half), sample=self.size.sample, out=folder, **options)

        return self.kept_reading(cell, seed, step, name, make)

    def kept_reading(self, cell: str, seed: int, step: int, name: str, make: Callable[[Path], Run]) -> Reading:
        """The reading of a run that is made once."""
        folder = self.folder / "looks" / f"{cell}-seed-{seed}" / f"step-{step}" / name
        if folder not in self._readings:
            self._readings[folder] = Reading.of(kept(folder, make).records())
        return self._readings[folder]

    def over_seeds(self, value: Callable[[int], float]) -> Estimate:
        """A number a seed, with its error."""
        return Estimate.over([value(seed) for seed in range(self.seeds)])

    def loss(self, cell: str, seed: int, step: int | None = None) -> float:
        """The validation loss at a look, or at the end."""
        rows = read_losses(self.trained(cell, seed).folder)
        wanted = self.size.steps if step is None else step
        return float(min(rows, key=lambda row: abs(row["step"] - wanted))["validation"])


# --- models that were given ---------------------------------------------------------------------------------------


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

    def open(self) -> Opened:
        if self.checkpoint.problem is not None:
            raise InputError(f"{self.checkpoint.source} cannot be opened: {self.checkpoint.problem}")
        return open_model(self.checkpoint.source, revision=self.checkpoint.revision, head=True)

    def needs_text(self) -> str:
        if self.text is None:
            raise Missing(f"{self.name} needs text to be measured on: give --text")
        return self.text

    def look(self, kind: Kind, half: int | None = None) -> Units:
        """A look whose units are blocks of documents; `half` 0 or 1 takes one half of the documents.

        A kind that is read group by group has the groups as its units.
        """
        if kind.grouped:
            return Units(tuple(Reading.of(run.records()) for run in self._by_group(kind)), "groups of documents")
        units = by_documents(self.run(kind, half))
        return replace(units, unit="blocks of rows") if kind.weights else units

    def run(self, kind: Kind, half: int | None = None) -> Run:
        """The run of a look."""
        name = kind.name if half is None else f"{kind.name}-half-{half}"
        return kept(self.folder / name, lambda folder: self._measured(kind, folder, half))

    def _by_group(self, kind: Kind) -> list[Run]:
        opened = self.open()
        rows = max(_ROWS, 2 * width_of(opened.model) + _SPARE)

        def make(number: int, group: list[Batch], folder: Path) -> Run:
            self.say(f"{kind.name} of {self.name}, group {number + 1} of {GROUPS}")
            options: dict[str, Any] = {"metrics": kind.metrics, "sites": kind.sites, "errors": False}
            return measure(opened, group, sample=rows, out=folder, **options)

        groups = enumerate(groups_of(self.batches(opened)))
        return [kept(self.folder / f"{kind.name}-{n}", partial(make, n, group)) for n, group in groups]

    def batches(self, opened: Opened) -> list[Batch]:
        """The text as the model takes it."""
        return list(model_batches(opened, self.needs_text(), tokens=self.size.tokens, batch=_FEW))

    def halves(self, opened: Opened) -> tuple[list[Batch], list[Batch]]:
        """The text in two halves that share no document."""
        return split_batches(self.batches(opened))

    def _measured(self, kind: Kind, folder: Path, half: int | None) -> Run:
        self.say(f"{kind.name} of {self.name}")
        opened = self.open()
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
            return {"text": self.needs_text()}
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
    return f"{names} on {models[0].text or 'their weights'}, {models[0].size.tokens:,} tokens at most"


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


# --- both ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Bench:
    """Everything that a claim may be run on."""

    size: Size
    lab: Lab
    given: tuple[tuple[Given, ...], ...] = ()  # each model's checkpoints

    @property
    def models(self) -> list[Given]:
        """Every model at its last step."""
        return [series[-1] for series in self.given]

    @property
    def series(self) -> tuple[Given, ...]:
        """The checkpoints of the first model that has several."""
        return next((series for series in self.given if len(series) > 1), ())

    def ways(self) -> tuple[str, ...]:
        """What evidence can be had from, best first."""
        if self.series:
            return ("checkpoints", "model", "nothing", "lab")
        return ("model", "nothing", "lab") if self.given else ("nothing", "lab")

    def said(self) -> str:
        """What the lab's part of a verdict rests on."""
        s = self.size.switches
        seeds = f"{self.lab.seeds} seeds ({FEWEST} of what is only shown)"
        return (
            f"lab, size {self.size.name}: {seeds}, {s['layers']} layers of width {s['width']}, "
            f"{s['steps']} steps of {s['batch']} windows of {s['context']} tokens"
        )
