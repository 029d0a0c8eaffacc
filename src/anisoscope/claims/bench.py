"""What claims are run on: trainings of the lab, shared between claims and kept, and models that were given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from anisoscope.claims.claim import FEWEST, Estimate
from anisoscope.claims.given import Given
from anisoscope.claims.looks import Kind, Say, kept
from anisoscope.claims.readings import Missing, Reading, Units
from anisoscope.claims.sizes import SHOWN, Size, cells
from anisoscope.lab.data import Data, open_data
from anisoscope.lab.experiment import Experiment, changed
from anisoscope.lab.losses import read_losses
from anisoscope.lab.train import Trained
from anisoscope.lab.twins import train_cell
from anisoscope.models import Opened, open_model
from anisoscope.offline import measure
from anisoscope.schedule import at
from anisoscope.store import Run

_BATCH = 16  # windows a forward pass


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
