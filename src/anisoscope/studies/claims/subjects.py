"""What claims are tested on: lab trainings, which claims share and the disk keeps, and models of the user.

Both have the same interface, `Subject`: a model at one step that is measured in independent units. Evidence functions
take the subjects from a `SubjectSource` and need not know where they come from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor, nn

from anisoscope.measurement.measure_model import measure
from anisoscope.models.open import Opened, open_model
from anisoscope.records import Record
from anisoscope.schedule import at
from anisoscope.store.run import Run
from anisoscope.studies.claims.background_training import BackgroundTraining
from anisoscope.studies.claims.claim import LAB, MODEL, Evidence
from anisoscope.studies.claims.estimate import FEWEST, Estimate
from anisoscope.studies.claims.given_models import GivenModel, describe_models
from anisoscope.studies.claims.hidden_states import Batches
from anisoscope.studies.claims.measurements import SUBLAYERS, MeasurementKind, OnStatus, load_or_make
from anisoscope.studies.claims.run_sizes import SHOWN, Size, cells
from anisoscope.studies.claims.run_view import Missing, RunView, Units
from anisoscope.studies.claims.sublayer_states import sublayer_records
from anisoscope.studies.claims.task_files import TextTask
from anisoscope.studies.claims.vocabulary_matrix import matrix_view
from anisoscope.studies.lab.experiment import Experiment, changed
from anisoscope.studies.lab.losses import read_losses
from anisoscope.studies.lab.masked_baseline import masked_ngram_loss
from anisoscope.studies.lab.token_data import Data, open_data
from anisoscope.studies.lab.train import Trained, validation_batches
from anisoscope.studies.lab.training_run import is_complete
from anisoscope.studies.lab.twins import prepare_cell, train_cell

_BATCH = 16  # windows per forward pass
_TRAINING_BATCHES = 6  # of 64 windows of the training text
T = TypeVar("T")


class Subject(Protocol):
    """A model at one step of its training, measured in independent units: seeds, or documents of a text."""

    @property
    def name(self) -> str: ...
    @property
    def step(self) -> int: ...
    @property
    def decoder(self) -> bool:
        """Whether the model is causal; an encoder sees both sides."""

    @property
    def window(self) -> int:
        """Tokens per block where rows are permuted in blocks."""

    def measure(self, kind: MeasurementKind, half: int | None = None) -> Units:
        """Measure every unit; `half` 0 or 1 takes one half of the text, which share no document."""

    def per_unit(self, compute: Callable[[nn.Module, Batches, int], T]) -> list[T]:
        """Call compute(model, batches, number) for every unit: every seed, or every group of documents."""

    def example(self) -> tuple[nn.Module, Batches, int]:
        """Return a model, batches of text, and the number of rows that a measurement samples."""

    def output_matrix(self) -> Tensor:
        """Return the output vocabulary matrix (tokens, d)."""


class SubjectSource(Protocol):
    """Where an evidence function takes its subjects from; `cells` name the lab trainings that stand for a model."""

    def models(self, *cells: str) -> Sequence[Subject]:
        """Return models at their last step."""

    def checkpoints(self, cell: str, *, settled: bool = False) -> Sequence[Subject]:
        """Return one model at several steps of its training; `settled` leaves the first transient out in the lab."""

    def evidence(
        self,
        subjects: Sequence[Subject],
        quantities: Mapping[str, Estimate],
        records: Sequence[Record],
        *,
        left_out: Mapping[str, str] | None = None,
        note: str = "",
    ) -> Evidence:
        """Return the evidence of these subjects; `note` is added to the description of the run."""


# --- the lab ------------------------------------------------------------------------------------------------------


@dataclass
class Lab:
    """Lab trainings by cell and seed, and measurements of them. Each is made on first use and kept on disk."""

    folder: Path
    size: Size
    seeds: int
    on_status: OnStatus
    text: str | None = None  # None: the text that the lab uses by default
    background: BackgroundTraining = field(default_factory=BackgroundTraining)
    _views: dict[Path, RunView] = field(default_factory=dict)
    _trained: dict[Path, Trained] = field(default_factory=dict)

    def trained(self, cell: str, seed: int) -> Trained:
        """Return one training at its end."""
        folder = self.folder / f"{cell}-seed-{seed}"
        if folder not in self._trained:
            self._announce(cell, seed)
            done = self.background.result((cell, seed), meanwhile=self.train)
            done = done or _train(self.folder, self.size, self.text, cell, seed)
            if done.stopped is not None:
                raise Missing(f"The training of {cell} with seed {seed} stopped at step {done.step}: {done.stopped}.")
            self._trained[folder] = done
        return self._trained[folder]

    def train(self, cell: str, seed: int) -> Trained:
        """Train in this process, or resume a training."""
        self._announce(cell, seed)
        return _train(self.folder, self.size, self.text, cell, seed)

    def _announce(self, cell: str, seed: int) -> None:
        if not is_complete(self.folder / f"{cell}-seed-{seed}"):
            self.on_status(f"training {cell}, seed {seed}")

    @contextmanager
    def training_in_background(self, cells: Sequence[str], processes: int) -> Iterator[None]:
        """Train the missing seeds of some cells in other processes, while this one measures those that are complete."""
        missing = self.untrained(cells) if processes else []
        plans = [_plan(self.size, self.text, cell, seed) for cell, seed in missing]
        texts = {(plan.recipe.text, plan.recipe.tokens, plan.recipe.symbols): plan for plan in plans}
        for plan in texts.values():
            prepare_cell(plan, self.folder)  # once, in this process: two processes would write the same files
        work = partial(_train, self.folder, self.size, self.text)
        with self.background.running(work, missing, processes=processes):
            yield

    def untrained(self, cells: Sequence[str]) -> list[tuple[str, int]]:
        """Return the missing trainings of some cells, in the order in which they are used."""
        wanted = ((cell, seed) for cell in cells for seed in self.seeds_of(cell))
        return [(cell, seed) for cell, seed in wanted if not is_complete(self.folder / f"{cell}-seed-{seed}")]

    def seeds_of(self, cell: str) -> range:
        """Return the seeds of a cell: all, or the fewest that give an interval if no rule uses the cell."""
        return range(min(self.seeds, FEWEST) if cell in SHOWN else self.seeds)

    def opened(self, cell: str, seed: int, step: int) -> Opened:
        """Open the model of a training at one of its measured steps."""
        return open_model(self.trained(cell, seed).folder / "checkpoints" / f"step-{step}", head=True)

    def model(self, cell: str, seed: int, step: int) -> nn.Module:
        """Load the model of a training at one of its measured steps."""
        return self.opened(cell, seed, step).model

    def data(self, cell: str, seed: int = 0) -> Data:
        """Open the tokens of a training."""
        folder = self.trained(cell, seed).folder
        return open_data(folder / Run.open(folder).info["data"]["folder"])

    def held_out(self, cell: str) -> Tensor:
        """Return held-out windows (windows, context), the same for every seed."""
        return self.data(cell).held_out(self.size.windows, int(self.size.switches["context"]))

    def batches(self, cell: str, half: int | None = None) -> list[dict[str, Tensor]]:
        """Return held-out windows in batches, each window its own document; `half` 0 or 1 takes one half of them.

        Windows are in the order of the text, so the halves share at most the document at their border.
        """
        ids = self.held_out(cell)
        parts = [ids] if half is None else ids.tensor_split(2)
        return [{"input_ids": part} for part in parts[half or 0].split(_BATCH)]

    def at_step(self, cell: str, step: int) -> LabModel:
        """Return the trainings of a cell at one step."""
        return LabModel(self, cell, step)

    def last(self, cell: str) -> LabModel:
        """Return the trainings of a cell at their last step."""
        return LabModel(self, cell, self.steps_of(cell))

    def steps_of(self, cell: str) -> int:
        """Return the number of steps of a cell."""
        return int(cells(self.size)[cell].get("steps", self.size.steps))

    def series(self, cell: str) -> list[LabModel]:
        """Return the trainings of a cell at every measured step that they reach."""
        return [LabModel(self, cell, step) for step in self.size.measured_steps if step <= self.steps_of(cell)]

    def view(self, cell: str, seed: int, step: int, kind: MeasurementKind, half: int | None = None) -> RunView:
        """Measure one seed of a cell at one step."""
        name = kind.name if half is None else f"{kind.name}-half-{half}"

        def make(folder: Path) -> Run:
            self.on_status(f"{kind.name} of {cell}, seed {seed}, step {step}")
            if kind is SUBLAYERS:
                window = int(self.size.switches["context"])
                run = Run.create(folder, {"kind": "sublayers"})
                run.append(sublayer_records(self.model(cell, seed, step), self.batches(cell), window))
                return run
            options: dict[str, Any] = {"metrics": kind.metrics, "sites": kind.sites, "errors": False}
            model = self.model(cell, seed, step)
            return measure(model, self.batches(cell, half), sample=self.size.sample, out=folder, **options)

        return self.stored_view(cell, seed, step, name, make)

    def stored_view(self, cell: str, seed: int, step: int, name: str, make: Callable[[Path], Run]) -> RunView:
        """Return the view of a run that is made once."""
        folder = self.folder / "measurements" / f"{cell}-seed-{seed}" / f"step-{step}" / name
        if folder not in self._views:
            self._views[folder] = RunView.of(load_or_make(folder, make).records())
        return self._views[folder]

    def used_rows(self, cell: str, seed: int, step: int) -> Tensor:
        """Return the rows of the output matrix whose tokens occur in the text, (tokens, d)."""
        model: Any = self.model(cell, seed, step)
        used = torch.from_numpy(self.data(cell, seed).train.astype("int64")).unique()
        rows: Tensor = model.head.weight.detach()[used]
        return rows

    def over_seeds(self, value: Callable[[int], float]) -> Estimate:
        """Return the mean of one number per seed, with its error."""
        return Estimate.over([value(seed) for seed in range(self.seeds)])

    def loss(self, cell: str, seed: int, step: int | None = None) -> float:
        """Return the validation loss nearest to a step, or at the end."""
        rows = read_losses(self.trained(cell, seed).folder)
        wanted = self.steps_of(cell) if step is None else step
        return float(min(rows, key=lambda row: abs(row["step"] - wanted))["validation"])

    def margin(self, cell: str, seed: int) -> float:
        """Return by how much the last loss beats counts of neighbours: pairs, or both neighbours of a masked token."""
        trained = self.trained(cell, seed)
        if trained.experiment.model.objective == "next":
            return trained.baselines["bigram"] - self.loss(cell, seed)
        return self._masked_baseline(cell, seed) - self.loss(cell, seed)

    def _masked_baseline(self, cell: str, seed: int) -> float:
        experiment, data = self.trained(cell, seed).experiment, self.data(cell, seed)
        return masked_ngram_loss(data, validation_batches(experiment, data), causal=experiment.model.causal)

    def change_at_end(self, cell: str, seed: int) -> float:
        """Return the change of the loss over the last quarter of training, as a share of the last loss."""
        last = self.loss(cell, seed)
        return abs(self.loss(cell, seed, round(0.75 * self.steps_of(cell))) - last) / last

    def settled_steps(self, cell: str) -> tuple[int, ...]:
        """Return the measured steps after the transient: those at which every seed beats token frequencies.

        In the first steps a network learns how frequent each token is, and all states collapse onto one direction.
        Without any such step, all measured steps are returned, and the gate SETTLED is not met.
        """
        steps = [step for step in self.size.measured_steps if step <= self.steps_of(cell)]
        late = [step for step in steps if self._below_frequencies(cell, step) > 0]
        return tuple(step for step in steps if late and step >= late[0]) or tuple(steps)

    def settled_margin(self, cell: str) -> float:
        """Return by how much the worst seed beats token frequencies at the first step that counts."""
        return self._below_frequencies(cell, self.settled_steps(cell)[0])

    def _below_frequencies(self, cell: str, step: int) -> float:
        seeds = self.seeds_of(cell)
        return min(self.trained(cell, s).baselines["unigram"] - self.loss(cell, s, step) for s in seeds)

    def step_at_loss(self, cell: str, seed: int, level: float) -> int:
        """Return the first saved step at which the loss is at most `level`; the last step if it never is."""
        steps = [step for step in self.size.saved_steps if step < self.steps_of(cell)]
        return next((step for step in steps if self.loss(cell, seed, step) <= level), self.steps_of(cell))


def matched_steps(lab: Lab, one: str, other: str, seed: int) -> tuple[int, int]:
    """Return the saved steps at which two trainings first reach the final loss of the worse one."""
    level = max(lab.loss(one, seed), lab.loss(other, seed))
    return lab.step_at_loss(one, seed, level), lab.step_at_loss(other, seed, level)


def _plan(size: Size, text: str | None, cell: str, seed: int) -> Experiment:
    given = {} if text is None else {"text": text}
    return changed(Experiment(), {**size.switches, **given, **cells(size)[cell], "seed": seed})  # some have their own


def _train(folder: Path, size: Size, text: str | None, cell: str, seed: int) -> Trained:
    """Train one cell, or resume it. A plain function, because other processes call it."""
    plan, name = _plan(size, text, cell, seed), f"{cell}-seed-{seed}"
    done = train_cell(plan, folder, name, checkpoints=at(*size.saved_steps))
    if done.stopped == "interrupted":
        raise KeyboardInterrupt
    return done


@dataclass(frozen=True)
class LabModel:
    """A `Subject`: the trainings of one cell at one step, with seeds as units."""

    lab: Lab
    name: str  # of the cell
    step: int

    @property
    def decoder(self) -> bool:
        return _plan(self.lab.size, None, self.name, 0).model.causal

    @property
    def window(self) -> int:
        return int(self.lab.size.switches["context"])

    def measure(self, kind: MeasurementKind, half: int | None = None) -> Units:
        seeds = self.lab.seeds_of(self.name)
        if kind.weights:
            return Units(tuple(matrix_view(self.lab.used_rows(self.name, seed, self.step)) for seed in seeds))
        return Units(tuple(self.lab.view(self.name, seed, self.step, kind, half) for seed in seeds))

    def per_unit(self, compute: Callable[[nn.Module, Batches, int], T]) -> list[T]:
        batches = self.lab.batches(self.name)
        seeds = self.lab.seeds_of(self.name)
        return [compute(self.lab.model(self.name, seed, self.step), batches, seed) for seed in seeds]

    def over_training_text(self, compute: Callable[[nn.Module, Batches, int], T]) -> list[T]:
        """Call compute as `per_unit` does, on windows of the training text: it has far more types of tokens."""
        data = self.lab.data(self.name)
        batches = [{"input_ids": data.windows(64, self.window, number)} for number in range(_TRAINING_BATCHES)]
        seeds = self.lab.seeds_of(self.name)
        return [compute(self.lab.model(self.name, seed, self.step), batches, seed) for seed in seeds]

    def example(self) -> tuple[nn.Module, Batches, int]:
        return self.lab.model(self.name, 0, self.step), self.lab.batches(self.name), self.lab.size.sample

    def output_matrix(self) -> Tensor:
        return self.lab.used_rows(self.name, 0, self.step)


# --- everything that a claim may use ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Subjects:
    """A `SubjectSource`: lab trainings, or the models of the user if the evidence is gathered from them."""

    size: Size
    lab: Lab
    given: tuple[tuple[GivenModel, ...], ...] = ()  # the checkpoints of each model
    way: str = "lab"  # how evidence is gathered: a key of `Claim.ways`
    tasks: tuple[TextTask, ...] = ()  # downstream tasks of the user

    @property
    def given_models(self) -> list[GivenModel]:
        """Every model of the user at its last step."""
        return [series[-1] for series in self.given]

    @property
    def given_checkpoints(self) -> tuple[GivenModel, ...]:
        """The checkpoints of the first model of the user that has several."""
        return next((series for series in self.given if len(series) > 1), ())

    def ways(self) -> tuple[str, ...]:
        """Return the sources of evidence that are available, best first."""
        if self.given_checkpoints:
            return ("checkpoints", "model", "nothing", "lab")
        return ("model", "nothing", "lab") if self.given else ("nothing", "lab")

    def models(self, *cells: str) -> Sequence[Subject]:
        return [self.lab.last(cell) for cell in cells] if self.way == "lab" else self.given_models

    def checkpoints(self, cell: str, *, settled: bool = False) -> Sequence[Subject]:
        if self.way == "lab":
            if not settled:
                return self.lab.series(cell)
            return [self.lab.at_step(cell, step) for step in self.lab.settled_steps(cell)]
        return self.given_checkpoints

    def evidence(
        self,
        subjects: Sequence[Subject],
        quantities: Mapping[str, Estimate],
        records: Sequence[Record],
        *,
        left_out: Mapping[str, str] | None = None,
        note: str = "",
    ) -> Evidence:
        given = [subject for subject in subjects if isinstance(subject, GivenModel)]
        ran = describe_models(given) if given else self.description()
        ran = f"{ran}; {note}" if note else ran
        return Evidence(ran, MODEL if given else LAB, quantities, left_out or {}, tuple(records))

    def description(self) -> str:
        """Describe the lab trainings."""
        s = self.size.switches
        shown = f" ({FEWEST} for models that only figures show)" if self.lab.seeds > FEWEST else ""
        seeds = f"{self.lab.seeds} seeds{shown}"
        return (
            f"lab, size {self.size.name}: {seeds}, {s['layers']} layers of width {s['width']}, "
            f"{s['steps']} steps of {s['batch']} windows of {s['context']} tokens"
        )
