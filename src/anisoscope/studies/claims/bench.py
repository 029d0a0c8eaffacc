"""What claims are run on: trainings of the lab, shared between claims and kept, and models that were given."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from anisoscope.measurement.measure_model import measure
from anisoscope.models.open import Opened, open_model
from anisoscope.schedule import at
from anisoscope.store.run import Run
from anisoscope.studies.claims.ahead import Ahead
from anisoscope.studies.claims.claim import FEWEST, Estimate
from anisoscope.studies.claims.given import Given
from anisoscope.studies.claims.looks import Kind, Say, kept
from anisoscope.studies.claims.readings import Missing, RunView, Units
from anisoscope.studies.claims.sizes import SHOWN, Size, cells
from anisoscope.studies.lab.data import Data, open_data
from anisoscope.studies.lab.experiment import Experiment, changed
from anisoscope.studies.lab.losses import read_losses
from anisoscope.studies.lab.train import Trained
from anisoscope.studies.lab.twins import prepare_cell, train_cell

_BATCH = 16  # windows a forward pass


@dataclass
class Lab:
    """Trainings by cell and seed, each made when it is first asked for and never again, and looks at them."""

    folder: Path
    size: Size
    seeds: int
    say: Say
    text: str | None = None  # another one than the lab's own
    ahead: Ahead = field(default_factory=Ahead)
    _readings: dict[Path, RunView] = field(default_factory=dict)
    _trained: dict[Path, Trained] = field(default_factory=dict)

    def trained(self, cell: str, seed: int) -> Trained:
        """One training, at its end."""
        place = self.folder / f"{cell}-seed-{seed}"
        if place not in self._trained:
            self.say(f"training {cell}, seed {seed}")
            done = self.ahead.taken((cell, seed)) or self.train(cell, seed)
            if done.stopped == "interrupted":
                raise KeyboardInterrupt
            if done.stopped is not None:
                raise Missing(f"the training of {cell} with seed {seed} {done.stopped} at step {done.step}")
            self._trained[place] = done
        return self._trained[place]

    def train(self, cell: str, seed: int) -> Trained:
        """Train here, or go on with what is there."""
        return _trained(self.folder, self.size, self.text, cell, seed)

    @contextmanager
    def training_ahead(self, cells: Sequence[str], processes: int) -> Iterator[None]:
        """Other processes train what some cells lack, while this one looks at those that are done."""
        lacking = self.untrained(cells) if processes else []
        plans = [_plan(self.size, self.text, cell, seed) for cell, seed in lacking]
        for text in {(plan.recipe.tokens, plan.recipe.symbols): plan for plan in plans}.values():
            prepare_cell(text, self.folder)  # once, here: two at a time would write the same files
        work = partial(_trained, self.folder, self.size, self.text)
        with self.ahead.begun(work, lacking, processes=processes):
            yield

    def untrained(self, cells: Sequence[str]) -> list[tuple[str, int]]:
        """The trainings of some cells that are not there yet, in the order in which they are asked for."""
        wanted = ((cell, seed) for cell in cells for seed in self.seeds_of(cell))
        return [(cell, seed) for cell, seed in wanted if not (self.folder / f"{cell}-seed-{seed}").is_dir()]

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

    def reading(self, cell: str, seed: int, step: int, kind: Kind, half: int | None = None) -> RunView:
        """A look at one seed."""
        name = kind.name if half is None else f"{kind.name}-half-{half}"

        def make(folder: Path) -> Run:
            self.say(f"{kind.name} of {cell}, seed {seed}, step {step}")
            options: dict[str, Any] = {"metrics": kind.metrics, "sites": kind.sites, "errors": False}
            model = self.model(cell, seed, step)
            return measure(model, self.batches(cell, half), sample=self.size.sample, out=folder, **options)

        return self.kept_reading(cell, seed, step, name, make)

    def kept_reading(self, cell: str, seed: int, step: int, name: str, make: Callable[[Path], Run]) -> RunView:
        """The reading of a run that is made once."""
        folder = self.folder / "looks" / f"{cell}-seed-{seed}" / f"step-{step}" / name
        if folder not in self._readings:
            self._readings[folder] = RunView.of(kept(folder, make).records())
        return self._readings[folder]

    def over_seeds(self, value: Callable[[int], float]) -> Estimate:
        """A number a seed, with its error."""
        return Estimate.over([value(seed) for seed in range(self.seeds)])

    def loss(self, cell: str, seed: int, step: int | None = None) -> float:
        """The validation loss at a look, or at the end."""
        rows = read_losses(self.trained(cell, seed).folder)
        wanted = self.size.steps if step is None else step
        return float(min(rows, key=lambda row: abs(row["step"] - wanted))["validation"])


def _plan(size: Size, text: str | None, cell: str, seed: int) -> Experiment:
    """The switches of one training."""
    switches = {**size.switches, **cells(size)[cell], "seed": seed}
    return changed(Experiment(), switches if text is None else {**switches, "text": text})


def _trained(folder: Path, size: Size, text: str | None, cell: str, seed: int) -> Trained:
    """One training of the lab, made or gone on with: all that another process needs to know of it."""
    plan, name = _plan(size, text, cell, seed), f"{cell}-seed-{seed}"
    return train_cell(plan, folder, name, resume=True, checkpoints=at(*size.looks))


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
