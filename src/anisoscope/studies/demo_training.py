"""The demo: a decoder and an encoder trained side by side, three curves as they grow, and verdicts on three claims."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from anisoscope.errors import AnisoscopeError
from anisoscope.records import Record
from anisoscope.schedule import at
from anisoscope.store.run import Run
from anisoscope.studies.claims.bell_evidence import NO_TYLER, TOP_SHARE, distance_from_middle, published_profiles
from anisoscope.studies.claims.claim import LAB, Claim, Evidence
from anisoscope.studies.claims.curve_shapes import bell, rise_and_fall, slope, span
from anisoscope.studies.claims.estimate import Estimate
from anisoscope.studies.claims.gates import ENDED, LEARNT, SETTLED, STATES
from anisoscope.studies.claims.judging import judge
from anisoscope.studies.claims.run_view import estimate_record
from anisoscope.studies.claims.runner import code_versions, find_claims, keep_evidence, publish
from anisoscope.studies.demo_curves import (
    RANK,
    DemoMeasurement,
    add_measurement,
    demo_measurement,
    gradient_energies,
    log_enrichment,
    log_ratio,
    read_measurements,
)
from anisoscope.studies.lab.experiment import Experiment, changed
from anisoscope.studies.lab.folders import load_lab_model
from anisoscope.studies.lab.interventions import principal_directions
from anisoscope.studies.lab.losses import read_losses
from anisoscope.studies.lab.masked_baseline import masked_ngram_loss
from anisoscope.studies.lab.token_data import Data, open_data
from anisoscope.studies.lab.tracking import tracked
from anisoscope.studies.lab.train import Observe, Observer, validation_batches
from anisoscope.studies.lab.training_run import experiment_of
from anisoscope.studies.lab.transformer import Transformer
from anisoscope.studies.lab.twins import discard_cells, prepare_cell, require_same_cells, train_cell

# The network of size small of the claims, for two thirds of its steps. The learning rate is low in the last quarter, so
# that the loss has settled at the end.
SWITCHES: Mapping[str, Any] = {
    "layers": 6,
    "width": 64,
    "heads": 4,
    "context": 64,
    "batch": 8,
    "steps": 2000,
    "learning_rate": 0.005,
    "decay": 0.75,
    "floor": 0.02,
    "masking": 0.3,
}
MODELS = ("decoder", "encoder")
_EARLY = 0.3  # of training, whose end freezes the published basis
_WINDOWS = 64  # held-out windows per measurement
_SHARES = (0, 1 / 250, 1 / 125, 1 / 60, 1 / 32, 1 / 16, 1 / 8, 0.2, _EARLY, 0.4, 0.5, 0.625, 0.75, 0.875, 1)


def measured_steps(steps: int) -> tuple[int, ...]:
    """Return the steps at which the demo measures: close together early, when most changes."""
    return tuple(sorted({round(share * steps) for share in _SHARES}))


@dataclass(frozen=True)
class DemoTraining:
    """One training of the demo: how it went, and what was measured so far."""

    name: str
    folder: Path
    losses: Sequence[Mapping[str, Any]]
    measurements: Sequence[DemoMeasurement]

    @property
    def loss(self) -> float | None:
        """The last validation loss."""
        return None if not self.losses else float(self.losses[-1]["validation"])


# --- training -----------------------------------------------------------------------------------------------------


class _Measured:
    """An observer of a training: the tracker, and the three curves at their own steps."""

    def __init__(self, tracker: Observer, model: Transformer, ids: Tensor, steps: Sequence[int], path: Path) -> None:
        self.tracker, self.model, self.ids, self.steps, self.path = tracker, model, ids, frozenset(steps), path

    @property
    def should_stop(self) -> bool:
        return self.tracker.should_stop

    def probe(self, step: int) -> None:
        if step in self.steps:
            add_measurement(self.path, demo_measurement(self.model, self.ids, step))
        self.tracker.probe(step)

    def watch(self, step: int, *, loss: Tensor | None = None, optimizer: Optimizer | None = None) -> None:
        self.tracker.watch(step, loss=loss, optimizer=optimizer)

    def log(self, step: int, **values: Tensor | float) -> None:
        self.tracker.log(step, **values)

    def flush(self) -> None:
        self.tracker.flush()

    def close(self) -> None:
        self.tracker.close()


def curves_file(out: Path, name: str) -> Path:
    """Return the file of a training's measurements."""
    return out / f"{name}-curves.jsonl"


def _observed(out: Path, name: str, steps: int) -> Observe:
    looks = measured_steps(steps)
    tracker = tracked(steps, at(0, *looks[-6::2]))

    def observe(model: Transformer, held_out: dict[str, Tensor], folder: Path, start: int) -> Observer:
        ids = _data_of(folder).held_out(_WINDOWS, model.config.context)
        return _Measured(tracker(model, held_out, folder, start), model, ids, looks, curves_file(out, name))

    return observe


def _data_of(folder: Path) -> Data:
    return open_data(folder / Run.open(folder).info["data"]["folder"])


def _train(out: str, name: str, switches: Mapping[str, Any]) -> None:
    """Train one model of the demo in its own process, with one thread."""
    torch.set_num_threads(1)
    cell = changed(Experiment(), {**switches, "kind": name})
    observe = _observed(Path(out), name, cell.recipe.steps)
    train_cell(cell, out, name, observe=observe, checkpoints=at(*measured_steps(cell.recipe.steps)))


OnChange = Callable[[Mapping[str, DemoTraining]], None]


def train_side_by_side(
    out: Path, switches: Mapping[str, Any] = SWITCHES, *, on_change: OnChange, overwrite: bool = False
) -> dict[str, DemoTraining]:
    """Train decoder and encoder at the same time, one process each; resume them or read them if `out` holds them.

    Args:
        out: Folder of the runs.
        switches: Switches of both models.
        on_change: Called several times per second with the trainings so far.
        overwrite: Discard the runs in `out` and start again.

    Raises:
        StoreError: The folder holds trainings with other switches.
        AnisoscopeError: A training failed.
    """
    wanted = {name: changed(Experiment(), {**switches, "kind": name}) for name in MODELS}
    if overwrite:
        discard_cells(wanted, out)
        for name in MODELS:
            curves_file(out, name).unlink(missing_ok=True)
    require_same_cells(wanted, out, track=True)
    prepare_cell(wanted["decoder"], out)  # once, before two processes would write the same files
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=_train, args=(str(out), name, dict(switches)), daemon=True) for name in MODELS]
    for worker in workers:
        worker.start()
    try:
        while any(worker.is_alive() for worker in workers):
            for worker in workers:
                worker.join(0.25)
            on_change(read_trainings(out))
    except KeyboardInterrupt:
        for worker in workers:
            worker.join()  # the same signal has reached them: each saves its state
        raise
    failed = [name for name, worker in zip(MODELS, workers, strict=True) if worker.exitcode]
    if failed:
        raise AnisoscopeError(f"The training of the {' and the '.join(failed)} failed; its error is printed above.")
    trainings = read_trainings(out)
    on_change(trainings)
    return trainings


def read_trainings(out: Path) -> dict[str, DemoTraining]:
    """Read what the trainings of a folder have reached."""
    trainings = {}
    for name in MODELS:
        folder = out / name
        losses = read_losses(folder) if (folder / "losses.jsonl").is_file() else []
        trainings[name] = DemoTraining(name, folder, losses, read_measurements(curves_file(out, name)))
    return trainings


# --- verdicts -----------------------------------------------------------------------------------------------------


def demo_evidence(trainings: Mapping[str, DemoTraining]) -> list[tuple[Claim, Evidence]]:
    """Return the evidence for the claims about the bell (S1), the dimension (S2) and the tangent energy (T4).

    The units are groups of held-out windows, so the verdicts are about these two trainings: other seeds may differ.
    `anisoscope claims run` has several seeds.
    """
    gates = _gates(trainings)
    evidence = {"S1": _bell(trainings), "S2": _dimension(trainings["decoder"]), "T4": _fading(trainings["decoder"])}
    return [
        (claim, replace(each, estimates={**each.estimates, **gates}))
        for claim in find_claims(list(evidence))
        for each in (evidence[claim.id],)
    ]


def keep_demo_evidence(out: Path, evidence: Sequence[tuple[Claim, Evidence]]) -> Run:
    """Store evidence and verdicts as a run of claims; those of an earlier demo are replaced."""
    info = {"kind": "claims", "settings": {"demo": "one training each"}, "versions": code_versions()}
    with Run.create(out, info, name="claims", resume=out.exists()) as run:
        for claim, each in evidence:
            keep_evidence(out, claim, each)
            publish(run, claim, judge(claim, each))
    return Run.open(out)


def _gates(trainings: Mapping[str, DemoTraining]) -> dict[str, Estimate]:
    margins, changes, settled = [], [], []
    for training in trainings.values():
        experiment, data = experiment_of(training.folder), _data_of(training.folder)
        decoder = experiment.model.objective == "next"
        counts = data.baselines["bigram"]
        if not decoder:
            counts = masked_ngram_loss(data, validation_batches(experiment, data), causal=experiment.model.causal)
        last = float(training.losses[-1]["validation"])
        margins.append(counts - last)
        changes.append(abs(_loss_at(training, 0.75 * experiment.recipe.steps) - last) / last)
        if decoder:
            settled.append(data.baselines["unigram"] - _loss_at(training, _settled(training)[0].step))
    return {
        LEARNT.name: Estimate.exact(min(margins)),
        ENDED.name: Estimate.exact(max(changes)),
        SETTLED.name: Estimate.exact(min(settled)),
    }


def _loss_at(training: DemoTraining, step: float) -> float:
    return float(min(training.losses, key=lambda row: abs(row["step"] - step))["validation"])


def _settled(training: DemoTraining) -> list[DemoMeasurement]:
    """The measurements after the transient, in which only token frequencies are learnt."""
    limit = _data_of(training.folder).baselines["unigram"]
    late = [each for each in training.measurements if each.step and _loss_at(training, each.step) < limit]
    return late or list(training.measurements[1:])


def _evidence(
    quantities: Mapping[str, Estimate], left_out: Mapping[str, str], records: Sequence[Record] = ()
) -> Evidence:
    ran = "demo: one training each; units are groups of held-out windows"
    return Evidence(ran, LAB, quantities, left_out, tuple(records))


def _over(values: Sequence[float]) -> Estimate:
    return Estimate.over(values, "groups of windows")


def _bell(trainings: Mapping[str, DemoTraining]) -> Evidence:
    last = {name: trainings[name].measurements[-1] for name in MODELS}
    quantities = {STATES.name: Estimate.exact(len(last["decoder"].profile))}
    for end in ("", "_no_sink"):
        decoder, encoder = (each.profiles_no_sink if end else each.profiles for each in last.values())
        quantities |= {
            f"bell{end}": _over([bell(profile) for profile in decoder]),
            f"below_end{end}": _over([distance_from_middle(profile) for profile in decoder]),
            f"range{end}": _over([span(profile) for profile in encoder]),
        }
    records = [
        estimate_record(_over(values), TOP_SHARE, of=name, site="embed" if index == 0 else f"resid.{index - 1}")
        for name, each in last.items()
        for index, values in enumerate(zip(*each.profiles, strict=True))
    ]
    left_out = {f"{name}_tyler": NO_TYLER for name in ("bell", "below_end", "range")}
    return _evidence(quantities, left_out, [*records, *published_profiles(len(last["decoder"].profile))])


def _dimension(training: DemoTraining) -> Evidence:
    settled = _settled(training)
    quantities = {}
    records = []
    for name, words in (("paper", "published estimator"), ("two_nn", "duplicates removed")):
        by_step = {
            each.step: each.dimension_paper if name == "paper" else each.dimension for each in training.measurements
        }
        moves = rise_and_fall([list(group) for group in zip(*(by_step[each.step] for each in settled), strict=True)])
        quantities[f"rise_{name}"] = _over([up for up, _ in moves])
        quantities[f"fall_{name}"] = _over([down for _, down in moves])
        records += [
            estimate_record(_over(values), "intrinsic_dimension", of=words, step=step)
            for step, values in by_step.items()
        ]
    reason = "the demo has one estimator next to the published one"
    left_out = {f"{move}_{name}": reason for move in ("rise", "fall") for name in ("gride", "other_documents")}
    return _evidence(quantities, left_out, records)


def _fading(training: DemoTraining) -> Evidence:
    settled = _settled(training)
    width, steps = settled[-1].width, [torch.tensor(float(each.step)).log().item() for each in settled]
    curves = [[log_enrichment(group, width) for group in each.energy] for each in settled]
    trends = [slope(steps, list(group)) for group in zip(*curves, strict=True)]
    frozen = _frozen(training, settled, width)
    quantities = {"refreshed": _over(trends), "frozen": _over(frozen)}
    of = "basis fitted at each step"
    records = [
        estimate_record(
            _over([log_enrichment(group, width) for group in each.energy]), "log_enrichment", of=of, step=each.step
        )
        for each in training.measurements
    ]
    return _evidence(quantities, {"refreshed_unit": "the demo does not rescale gradients"}, records)


def _frozen(training: DemoTraining, settled: Sequence[DemoMeasurement], width: int) -> list[float]:
    """Early minus late log ratio with the basis of the first 30 %, for each group of windows."""
    last = settled[-1].step
    limit = round(_EARLY * last)
    data = _data_of(training.folder)
    fit, test = data.held_out(_WINDOWS, experiment_of(training.folder).model.context).tensor_split(2)

    def model(step: int) -> Transformer:
        return load_lab_model(training.folder / "checkpoints" / f"step-{step}", None, torch.device("cpu"))

    reference = max((each.step for each in settled if each.step <= limit), default=settled[0].step)
    bases = principal_directions(model(reference), fit, RANK)
    ratios = {
        each.step: [log_ratio(group, width) for group in gradient_energies(model(each.step), test, bases)]
        for each in settled
    }
    early = [ratios[step] for step in ratios if step <= limit] or [ratios[settled[0].step]]
    late = [ratios[step] for step in ratios if step > last / 2]
    groups = range(len(early[0]))
    return [fmean(each[g] for each in early) - fmean(each[g] for each in late) for g in groups]
