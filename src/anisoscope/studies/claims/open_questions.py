"""P: what the four papers leave open: does isotropy help or hurt, and does sharp attention help?"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from statistics import fmean

from anisoscope.records import Record
from anisoscope.studies.claims.bench import Bench
from anisoscope.studies.claims.claim import LAB, Claim, Estimate, Evidence, Rule, above, below, either, every, gate
from anisoscope.studies.claims.downstream import probe_accuracy
from anisoscope.studies.claims.godey2024 import VARIANTS, drift
from anisoscope.studies.claims.looks import HEADS, SHAPE
from anisoscope.studies.claims.readings import drawn, estimate
from anisoscope.studies.claims.sizes import CENTRING, ISOSCORE, TEMPERATURE
from anisoscope.studies.claims.statistics import partial_slope, slope, spearman

PAPER = "open"
# Doses in rising order; the decoder is the middle of the temperatures and the beginning of the others.
_DOSES = {
    "isoscore": ("decoder", *(f"isoscore-{weight:g}" for weight in ISOSCORE)),
    "centring": ("decoder", *(f"centring-{share:g}" for share in CENTRING)),
}
_METRICS = ("validation_loss", "probe_accuracy", "reached_isoscore")  # what a dose brings about, in this order
_TEMPERATURES = (f"temperature-{TEMPERATURE[0]:g}", "decoder", f"temperature-{TEMPERATURE[1]:g}")


def _responses(name: str, values: Sequence[Sequence[float]]) -> dict[str, Estimate]:
    """Slope on the place of the dose, and rank correlation with it, of values by seed and dose."""
    places = range(len(values[0]))
    return {
        f"{name}_slope": Estimate.over([slope(places, seed) for seed in values]),
        f"{name}_order": Estimate.over([spearman(places, seed) for seed in values]),
    }


# --- P1 -----------------------------------------------------------------------------------------------------------


def _isotropy_doses(bench: Bench) -> Evidence:
    lab, last = bench.lab, bench.size.steps
    found: dict[str, Estimate] = {}
    records: list[Record] = []
    for dose, cells in _DOSES.items():
        losses = [[lab.loss(cell, seed) for cell in cells] for seed in range(lab.seeds)]
        bench.lab.say(f"probes of {dose}")
        probes = [
            [probe_accuracy(lab.model(cell, seed, last), lab.data(cell, seed), bench.size) for cell in cells]
            for seed in range(lab.seeds)
        ]
        looks = [lab.last(cell, SHAPE) for cell in cells]
        reached = [[fmean(look.parts[seed].profile("isoscore")) for look in looks] for seed in range(lab.seeds)]
        kinds = {"loss": losses, "probe": probes, "reached": reached}
        for kind, values in kinds.items():
            found |= _responses(f"{dose}_{kind}", values)
        for metric, values in zip(_METRICS, kinds.values(), strict=True):
            for place, cell in enumerate(cells):
                records.append(drawn(Estimate.over([seed[place] for seed in values]), metric, of=f"{dose}: {cell}"))
    return Evidence(bench.said(), LAB, found, records=tuple(records))


def _moves(dose: str, up: bool, words: str) -> Rule:
    """Loss and probe agree: more isotropy is worse (`up`: the loss rises, the probe falls), or better."""
    risen, fallen = (above, below) if up else (below, above)
    half = 0.5 if up else -0.5
    moved = f"{words}: slope of the IsoScore reached on the dose"
    words = f"{words}, {'hurts' if up else 'helps'}"
    return every(
        gate(f"{dose}_reached_slope", 0.0, moved),
        risen(f"{dose}_loss_slope", 0.0, f"{words}: slope of the loss on the dose"),
        risen(f"{dose}_loss_order", half, f"{words}: rank correlation of loss and dose"),
        fallen(f"{dose}_probe_slope", 0.0, f"{words}: slope of the probe's accuracy on the dose"),
    )


# --- P2 -----------------------------------------------------------------------------------------------------------


def _sharpness_doses(bench: Bench) -> Evidence:
    lab = bench.lab
    cells = (*_TEMPERATURES, *VARIANTS)
    looks = {cell: lab.last(cell, HEADS) for cell in cells}
    slopes, orders = [], []
    for seed in range(lab.seeds):
        losses = [lab.loss(cell, seed) for cell in cells]
        entropy = [looks[cell].parts[seed].mean("attention_entropy") for cell in cells]
        slopes.append(partial_slope(losses, entropy, [drift(looks[cell].parts[seed]) for cell in cells]))
        orders.append(spearman(entropy[: len(_TEMPERATURES)], losses[: len(_TEMPERATURES)]))
    found = {"slope": Estimate.over(slopes), "order": Estimate.over(orders)}
    records = [
        drawn(value, metric, of=cell)
        for cell in cells
        for metric, value in (
            ("validation_loss", lab.over_seeds(partial(lab.loss, cell))),
            ("mean_entropy", estimate(lambda reading: reading.mean("attention_entropy"), looks[cell])),
            ("mean_drift", estimate(drift, looks[cell])),
        )
    ]
    return Evidence(bench.said(), LAB, found, records=tuple(records))


# --- the claims ---------------------------------------------------------------------------------------------------

CLAIMS = (
    Claim(
        "P1",
        PAPER,
        "Pushing states towards isotropy changes what a model is worth, in one direction.",
        {"lab": _isotropy_doses},
        published=(),
        control=either(
            *(
                _moves(dose, up, words)
                for dose, words in (("isoscore", "IsoScore* regulariser"), ("centring", "centring"))
                for up in (True, False)
            )
        ),
        settle="more seeds, a longer training of the lab (--size paper), or tasks of yours",
        figure=("validation_loss", "probe_accuracy", "reached_isoscore"),
        cells=(*_DOSES["isoscore"], *_DOSES["centring"][1:]),
        seconds=15,
    ),
    Claim(
        "P2",
        PAPER,
        "Sharper attention changes what a model is worth, in one direction.",
        {"lab": _sharpness_doses},
        published=(),
        control=either(
            every(
                above("slope", 0.0, "sharper is better: slope of the loss on entropy at equal drift"),
                above("order", 0.5, "rank correlation of loss and entropy over temperatures"),
            ),
            every(
                below("slope", 0.0, "sharper is worse: slope of the loss on entropy at equal drift"),
                below("order", -0.5, "rank correlation of loss and entropy over temperatures"),
            ),
        ),
        settle="more seeds, or a longer training of the lab (--size paper)",
        figure=("validation_loss", "mean_entropy", "mean_drift"),
        cells=(*_TEMPERATURES, *VARIANTS),
        seconds=4,
    ),
)
