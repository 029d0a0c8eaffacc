"""The numbers at the end of a training: its validation loss, and metrics of the last measured step."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import fmean

from anisoscope.records import Record, Site, headline_variant
from anisoscope.store.run import Run
from anisoscope.studies.lab.effects import CellValue, Effect, effects
from anisoscope.studies.lab.experiment import Experiment
from anisoscope.studies.lab.factorial import Factorial
from anisoscope.studies.lab.train import Trained

LOSS = "validation loss"
METRICS = ("mean_cosine", "spectral_anisotropy", "two_nn")


def final_effects(
    design: Factorial, trainings: Iterable[tuple[Experiment, Trained]], metrics: Sequence[str] = METRICS
) -> dict[str, list[Effect]]:
    """Return the effects of the switches of a design on the validation loss and on some metrics.

    Args:
        design: The design.
        trainings: Its experiments, each with its training. One that stopped early has no value: it has seen less text.
        metrics: Metrics by name; those that were not measured in training have no values.
    """
    rows: dict[str, list[CellValue]] = {name: [] for name in (LOSS, *metrics)}
    for experiment, done in trainings:
        switches, seed = design.levels_of(experiment), experiment.recipe.seed
        values = final_values(done, metrics) if done.stopped is None else {}
        for name, listed in rows.items():
            listed.append(CellValue(switches, seed, values.get(name)))
    return {name: effects(listed, design.values) for name, listed in rows.items()}


def final_values(done: Trained, metrics: Sequence[str] = METRICS) -> dict[str, float | None]:
    """Return the validation loss of a training, and metrics of its last measured step averaged over layers.

    A metric is that of the residual stream without sinks, if the tracker measured it there; else it is averaged over
    the sites of layers where it was measured.
    """
    run = Run.open(done.folder)
    records = [record for record in run.records() if record.metric in metrics and record.value is not None]
    last = max((record.step for record in records), default=0)
    cards = run.metrics()
    values: dict[str, float | None] = {LOSS: done.validation}
    for name in metrics:
        variant = headline_variant(cards.get(name, {}))
        chosen = [r for r in records if r.metric == name and r.step == last and variant.items() <= r.variant.items()]
        values[name] = _over_layers(chosen)
    return values


def _over_layers(records: Sequence[Record]) -> float | None:
    """The mean over layers of a metric: one number per site, of the stream and without sinks if possible."""
    of_layers = [record for record in records if Site.parse(record.site).layer is not None]
    stream = [record for record in of_layers if Site.parse(record.site).kind == "resid"] or of_layers
    without = [record for record in stream if record.tokens == "no-sink"] or stream
    by_site: dict[str, float] = {}
    for record in without:
        if record.value is not None:
            by_site.setdefault(record.site, record.value)  # of several variants the one that was recorded first
    return fmean(by_site.values()) if by_site else None
