"""The demo: three small transformers trained under the tracker, their curves as a table, and verdicts on claims."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, TypeVar

from torch import Tensor, nn

from anisoscope.models.open import open_model
from anisoscope.records import Record, Site
from anisoscope.schedule import any_of, at, log_spaced
from anisoscope.store.run import Run
from anisoscope.studies.claims.claim import LAB, Claim, Evidence, Verdict, judge
from anisoscope.studies.claims.estimate import Estimate
from anisoscope.studies.claims.godey2024 import heads_evidence
from anisoscope.studies.claims.hidden_states import Batches
from anisoscope.studies.claims.measurements import SHAPE, MeasurementKind
from anisoscope.studies.claims.modality_evidence import absent_modalities, cosine_quantities
from anisoscope.studies.claims.modality_panel import CHARACTER, PanelMember
from anisoscope.studies.claims.razzhigaev2023 import bell_evidence, growth_evidence, mask_evidence
from anisoscope.studies.claims.run_view import Missing, RunView, Units
from anisoscope.studies.claims.runner import find_claims
from anisoscope.studies.claims.subjects import Subject, SubjectSource
from anisoscope.studies.lab.experiment import Experiment, cells, changed
from anisoscope.studies.lab.token_data import open_data
from anisoscope.studies.lab.tracking import tracked
from anisoscope.studies.lab.train import HELD_OUT, OnStep, Trained
from anisoscope.studies.lab.twins import discard_cells, require_same_cells, train_cell
from anisoscope.tracker.probe import METRICS

# Two cores train this three times in a few minutes. A network this narrow learns faster from larger initial weights,
# and a masked model from more masks.
SWITCHES = {
    "layers": 6,
    "width": 64,
    "context": 64,
    "steps": 250,
    "learning_rate": 0.003,
    "init_scale": 2.0,
    "masking": 0.3,
}
_MORE_METRICS = ("logit_budget",)  # for A5, in addition to the metrics of the tracker
T = TypeVar("T")
Curve = list[tuple[int, float]]  # values by step


@dataclass(frozen=True)
class TrackedTraining:
    """One training with the tracker's records.

    Attributes:
        trained: How the training ended.
        records: The records by metric.
        views: The records by step, as claims read them.
    """

    trained: Trained
    records: Mapping[str, Sequence[Record]]
    views: Mapping[int, RunView]

    @classmethod
    def of(cls, trained: Trained, records: Sequence[Record]) -> TrackedTraining:
        """Group records by metric and by step."""
        by_metric: dict[str, list[Record]] = {}
        by_step: dict[int, list[Record]] = {}
        for record in records:
            by_metric.setdefault(record.metric, []).append(record)
            by_step.setdefault(record.step, []).append(record)
        return cls(trained, by_metric, {step: RunView.of(by_step[step]) for step in sorted(by_step)})

    @property
    def layers(self) -> range:
        """The layers of the model."""
        return range(self.trained.experiment.model.layers)

    @property
    def middle(self) -> int:
        """The layer that the table shows: the last one of the first half."""
        return (len(self.layers) - 1) // 2

    def curve(
        self, metric: str, layer: int | None, *, tokens: str = "all", magnitude: bool = False, **variant: Any
    ) -> Curve:
        """Return values by step, of one layer or (None) of all, as a mean if there are several values."""
        by_step: dict[int, list[float]] = {}
        for record in self.records.get(metric, ()):
            site = Site.parse(record.site)
            wanted = site.kind in ("resid", "pattern") and layer in (None, site.layer) and record.tokens == tokens
            if wanted and record.value is not None and variant.items() <= {"grad": site.grad, **record.variant}.items():
                by_step.setdefault(record.step, []).append(abs(record.value) if magnitude else record.value)
        return [(step, fmean(values)) for step, values in sorted(by_step.items())]


def train_models(
    out: Path,
    progress: Callable[[str, int], AbstractContextManager[OnStep]],
    switches: Mapping[str, Any] = SWITCHES,
    *,
    overwrite: bool = False,
) -> dict[str, TrackedTraining]:
    """Train the three models of the demo; resume them or read them if `out` holds them.

    Args:
        out: Folder of the runs.
        progress: `progress(name, steps)` is a context that returns the callback for the steps of one training.
        switches: Switches of all three models.
        overwrite: Discard the runs in `out` and start again.

    Raises:
        StoreError: The folder holds trainings with other switches.
    """
    base = changed(Experiment(), switches)
    wanted = cells(base, [])
    if overwrite:
        discard_cells(wanted, out)
    require_same_cells(wanted, out, track=True)
    steps = base.recipe.steps
    due = any_of(log_spaced(until=steps // 2), at(steps - 1))
    probes = sum(map(due, range(steps))) + 1
    trainings: dict[str, TrackedTraining] = {}
    for name, cell in wanted.items():
        # error bars only at the first and the last probe, which the table shows
        observe = tracked(steps, due, bars_every=probes - 1, metrics=(*METRICS, *_MORE_METRICS))
        with progress(name, steps) as on_step:
            done = train_cell(cell, out, name, observe=observe, checkpoints=at(0), on_step=on_step)
        trainings[name] = TrackedTraining.of(done, list(Run.open(done.folder).records()))
        if done.stopped is not None:
            break
    return trainings


# --- the table ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DemoRow:
    """One row of the table: a curve over training for each model, and the value that chance gives."""

    label: str
    curves: dict[str, Curve]
    null: float | None = None


def table_rows(trainings: Mapping[str, TrackedTraining]) -> list[DemoRow]:
    """Return loss, anisotropy, dimension, attention and gradients of every model from the first to the last step."""
    chance = next((r.null for t in trainings.values() for r in t.records.get("gradient_energy", ())), None)
    return [
        DemoRow("loss", {name: _losses(training) for name, training in trainings.items()}),
        DemoRow("anisotropy λ1/Σλ", _middle(trainings, "spectral_anisotropy", grad=False)),
        DemoRow("  without sinks", _middle(trainings, "spectral_anisotropy", tokens="no-sink", grad=False)),
        DemoRow("mean cosine", _middle(trainings, "mean_cosine")),
        DemoRow("intrinsic dimension", _middle(trainings, "two_nn", tokens="no-sink", neighbours="all")),
        DemoRow("attention entropy", _all_heads(trainings, "attention_entropy")),
        DemoRow("query drift", _all_heads(trainings, "q_drift", **{"in": "rms"})),
        DemoRow("key drift", _all_heads(trainings, "k_drift", **{"in": "rms"})),
        DemoRow("|cos(q̄, k̄)|", _all_heads(trainings, "qk_cosine", magnitude=True)),
        DemoRow("gradient in proxy", _middle(trainings, "gradient_energy"), chance),
    ]


def _middle(trainings: Mapping[str, TrackedTraining], metric: str, **which: Any) -> dict[str, Curve]:
    return {name: training.curve(metric, training.middle, **which) for name, training in trainings.items()}


def _all_heads(trainings: Mapping[str, TrackedTraining], metric: str, **which: Any) -> dict[str, Curve]:
    return {name: training.curve(metric, None, **which) for name, training in trainings.items()}


def _losses(training: TrackedTraining) -> Curve:
    return [(row["step"], row["validation"]) for row in training.trained.losses]


# --- verdicts -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TrackedModel:
    """A `Subject` of claims: one tracked training at one step, with one seed as its only unit."""

    training: TrackedTraining
    name: str
    step: int

    @property
    def decoder(self) -> bool:
        return self.training.trained.experiment.model.causal

    @property
    def window(self) -> int:
        return self.training.trained.experiment.model.context

    def measure(self, kind: MeasurementKind, half: int | None = None) -> Units:
        """Return the tracker's records of the step, or nothing for what the tracker does not measure."""
        if half is not None or kind.weights:
            return Units((RunView.of(()),))
        return Units((self.training.views[self.step],))

    def per_unit(self, compute: Callable[[nn.Module, Batches, int], T]) -> list[T]:
        return [compute(*self.example()[:2], 0)]

    def example(self) -> tuple[nn.Module, Batches, int]:
        folder = self.training.trained.folder
        data = open_data(folder / Run.open(folder).info["data"]["folder"])
        ids = data.held_out(HELD_OUT, self.window)  # (windows, context)
        model = open_model(folder / "checkpoints" / f"step-{self.step}", head=True).model
        return model, [{"input_ids": ids}], ids.numel()

    def output_matrix(self) -> Tensor:
        raise Missing("The demo does not measure vocabulary matrices.")


@dataclass(frozen=True)
class TrackedSource:
    """A `SubjectSource` of claims: the trainings of the demo."""

    trainings: Mapping[str, TrackedTraining]

    def models(self, *cells: str) -> Sequence[Subject]:
        return [self.checkpoints(cell)[-1] for cell in cells if cell in self.trainings]

    def checkpoints(self, cell: str) -> Sequence[Subject]:
        training = self.trainings[cell]
        return [TrackedModel(training, cell, step) for step in training.views]

    def evidence(
        self,
        subjects: Sequence[Subject],
        quantities: Mapping[str, Estimate],
        records: Sequence[Record],
        *,
        left_out: Mapping[str, str] | None = None,
        note: str = "",
    ) -> Evidence:
        names = ", ".join(dict.fromkeys(subject.name for subject in subjects))
        ran = f"demo, one training each: {names}" + (f"; {note}" if note else "")
        return Evidence(ran, LAB, quantities, left_out or {}, tuple(records))


def demo_verdicts(trainings: Mapping[str, TrackedTraining]) -> list[tuple[Claim, tuple[Verdict, Verdict]]]:
    """Judge the claims that the tracker's records of the demo have evidence for.

    The rules are those of `anisoscope claims run`. One training per model gives no interval, so a verdict lists the
    measured values and stays inconclusive.
    """
    source = TrackedSource(trainings)
    gather: dict[str, Callable[[SubjectSource], Evidence]] = {
        "S1": bell_evidence,
        "S5": growth_evidence,
        "S6": mask_evidence,
        "A1": _cosine_evidence,
        "A5": heads_evidence,
    }
    return [(claim, judge(claim, gather[claim.id](source))) for claim in find_claims(list(gather))]


def _cosine_evidence(source: SubjectSource) -> Evidence:
    """A1 for characters, the only modality of the demo."""
    models = source.models("decoder")
    panel = [PanelMember(model.name, CHARACTER, model.measure(SHAPE)) for model in models]
    return source.evidence(models, cosine_quantities(panel), [], left_out=absent_modalities(panel))
