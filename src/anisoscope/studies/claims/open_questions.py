"""P: questions that the four papers leave open: does isotropy help or hurt, and does sharp attention help?"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from statistics import fmean

from anisoscope.records import Record
from anisoscope.stats.inference import spearman
from anisoscope.studies.claims.claim import Claim, Evidence, Rule, above, below, either, every, gate
from anisoscope.studies.claims.curve_shapes import partial_slope, slope
from anisoscope.studies.claims.estimate import CORRELATION, Estimate
from anisoscope.studies.claims.godey2024 import VARIANTS, head_drift
from anisoscope.studies.claims.linear_probe import probe_accuracy
from anisoscope.studies.claims.measurements import HEADS, SHAPE
from anisoscope.studies.claims.run_sizes import CENTRING, ISOSCORE, TEMPERATURE
from anisoscope.studies.claims.run_view import estimate, estimate_record
from anisoscope.studies.claims.subjects import Subjects

PAPER = "open questions"
# Doses in rising order. The decoder is the middle one of the temperatures and the first one of the others.
_DOSES = {
    "isoscore": ("decoder", *(f"isoscore-{weight:g}" for weight in ISOSCORE)),
    "centring": ("decoder", *(f"centring-{share:g}" for share in CENTRING)),
}
_METRICS = ("validation_loss", "probe_accuracy", "reached_isoscore")  # the effects of a dose, in this order
_TEMPERATURES = (f"temperature-{TEMPERATURE[0]:g}", "decoder", f"temperature-{TEMPERATURE[1]:g}")


def _responses(name: str, values: Sequence[Sequence[float]]) -> dict[str, Estimate]:
    """Slope on the rank of the dose, and rank correlation with it, of values by seed and dose."""
    ranks = range(len(values[0]))
    return {
        f"{name}_slope": Estimate.over([slope(ranks, seed) for seed in values]),
        f"{name}_order": Estimate.over([spearman(ranks, seed) for seed in values]),
    }


# --- P1 -----------------------------------------------------------------------------------------------------------


def _isotropy_doses(subjects: Subjects) -> Evidence:
    lab, last = subjects.lab, subjects.size.steps
    quantities: dict[str, Estimate] = {}
    records: list[Record] = []
    for dose, cells in _DOSES.items():
        losses = [[lab.loss(cell, seed) for cell in cells] for seed in range(lab.seeds)]
        lab.on_status(f"probes of {dose}")
        probes = [
            [probe_accuracy(lab.model(cell, seed, last), lab.data(cell, seed), subjects.size) for cell in cells]
            for seed in range(lab.seeds)
        ]
        units = [lab.last(cell).measure(SHAPE) for cell in cells]
        reached = [[fmean(each.parts[seed].profile("isoscore")) for each in units] for seed in range(lab.seeds)]
        kinds = {"loss": losses, "probe": probes, "reached": reached}
        for kind, values in kinds.items():
            quantities |= _responses(f"{dose}_{kind}", values)
        for metric, values in zip(_METRICS, kinds.values(), strict=True):
            for rank, cell in enumerate(cells):
                value = Estimate.over([seed[rank] for seed in values])
                records.append(estimate_record(value, metric, of=f"{dose}: {cell}"))
    return subjects.evidence([lab.last("decoder")], quantities, records)


def _moves(dose: str, up: bool, words: str) -> Rule:
    """Loss and probe agree: more isotropy is worse (`up`: the loss rises, the probe falls), or better."""
    risen, fallen = (above, below) if up else (below, above)
    half = 0.5 if up else -0.5
    moved = f"{words}: slope of the IsoScore reached on the dose"
    words = f"{words}, {'hurts' if up else 'helps'}"
    return every(
        gate(f"{dose}_reached_slope", 0.0, moved),
        risen(f"{dose}_loss_slope", 0.0, f"{words}: slope of the loss on the dose"),
        risen(f"{dose}_loss_order", half, f"{words}: rank correlation of loss and dose", CORRELATION),
        fallen(f"{dose}_probe_slope", 0.0, f"{words}: slope of the probe's accuracy on the dose"),
    )


# --- P2 -----------------------------------------------------------------------------------------------------------


def _sharpness_doses(subjects: Subjects) -> Evidence:
    lab = subjects.lab
    cells = (*_TEMPERATURES, *VARIANTS)
    units = {cell: lab.last(cell).measure(HEADS) for cell in cells}
    slopes, orders = [], []
    for seed in range(lab.seeds):
        losses = [lab.loss(cell, seed) for cell in cells]
        entropy = [units[cell].parts[seed].mean("attention_entropy") for cell in cells]
        slopes.append(partial_slope(losses, entropy, [head_drift(units[cell].parts[seed]) for cell in cells]))
        orders.append(spearman(entropy[: len(_TEMPERATURES)], losses[: len(_TEMPERATURES)]))
    quantities = {"slope": Estimate.over(slopes), "order": Estimate.over(orders)}
    records = [
        estimate_record(value, metric, of=cell)
        for cell in cells
        for metric, value in (
            ("validation_loss", lab.over_seeds(partial(lab.loss, cell))),
            ("mean_entropy", estimate(lambda view: view.mean("attention_entropy"), units[cell])),
            ("mean_drift", estimate(head_drift, units[cell])),
        )
    ]
    return subjects.evidence([lab.last("decoder")], quantities, records)


# --- the claims ---------------------------------------------------------------------------------------------------

CLAIMS = (
    Claim(
        "P1",
        PAPER,
        "Pushing states towards isotropy consistently hurts or consistently helps a model.",
        {"lab": _isotropy_doses},
        published=(),
        control=either(
            *(
                _moves(dose, up, words)
                for dose, words in (("isoscore", "IsoScore* regulariser"), ("centring", "centring"))
                for up in (True, False)
            )
        ),
        settle="more seeds, a longer training of the lab (--size paper), or your own tasks",
        figure=("validation_loss", "probe_accuracy", "reached_isoscore"),
        cells=(*_DOSES["isoscore"], *_DOSES["centring"][1:]),
        seconds=15,
    ),
    Claim(
        "P2",
        PAPER,
        "Sharper attention consistently helps or consistently hurts a model.",
        {"lab": _sharpness_doses},
        published=(),
        control=either(
            every(
                above("slope", 0.0, "sharper is better: slope of the loss on entropy at equal drift"),
                above("order", 0.5, "rank correlation of loss and entropy over temperatures", CORRELATION),
            ),
            every(
                below("slope", 0.0, "sharper is worse: slope of the loss on entropy at equal drift"),
                below("order", -0.5, "rank correlation of loss and entropy over temperatures", CORRELATION),
            ),
        ),
        settle="more seeds, or a longer training of the lab (--size paper)",
        figure=("validation_loss", "mean_entropy", "mean_drift"),
        cells=(*_TEMPERATURES, *VARIANTS),
        seconds=4,
    ),
)
