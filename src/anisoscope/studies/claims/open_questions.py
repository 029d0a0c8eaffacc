"""P: questions that the four papers leave open: does isotropy help or hurt, and does sharp attention help?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from statistics import fmean

from anisoscope.records import Record
from anisoscope.stats.inference import spearman
from anisoscope.studies.claims.attention_variants import head_drift
from anisoscope.studies.claims.claim import Claim, Evidence
from anisoscope.studies.claims.conditions import Rule, above, below, either, every, gate
from anisoscope.studies.claims.curve_shapes import partial_slope, slope
from anisoscope.studies.claims.downstream_tasks import (
    judged_note,
    judged_tasks,
    mean_score,
    shown_tasks,
    task_scores,
)
from anisoscope.studies.claims.estimate import CORRELATION, Estimate
from anisoscope.studies.claims.gates import learnt
from anisoscope.studies.claims.measurements import HEADS, SHAPE
from anisoscope.studies.claims.run_sizes import CENTRING, ISOSCORE, SHORT_DECODER, TEMPERATURE
from anisoscope.studies.claims.run_view import RunView, estimate, estimate_record
from anisoscope.studies.claims.subjects import Lab, Subjects
from anisoscope.studies.claims.task_files import TextTask

PAPER = "open questions"
# Doses in rising order. The decoder is the middle one of the temperatures and the first one of the others.
_DOSES = {
    "isoscore": (SHORT_DECODER, *(f"isoscore-{weight:g}" for weight in ISOSCORE)),
    "centring": (SHORT_DECODER, *(f"centring-{share:g}" for share in CENTRING)),
}
# What each dose is meant to move: the regulariser evens the covariance out, centring removes the mean.
_REACHED: dict[str, Callable[[RunView], float]] = {
    "isoscore": lambda view: fmean(view.profile("isoscore")),
    "centring": lambda view: -fmean(view.profile("mean_cosine")),
}
_METRICS = ("validation_loss", "task_score", "reached_isotropy")  # the effects of a dose, in this order
_VARIANTS = ("sigmoid", "off-by-one", "cosine")
_TEMPERATURES = (f"temperature-{TEMPERATURE[0]:g}", SHORT_DECODER, f"temperature-{TEMPERATURE[1]:g}")


def _responses(name: str, values: Sequence[Sequence[float]]) -> dict[str, Estimate]:
    """Slope on the rank of the dose, and rank correlation with it, of values by seed and dose."""
    ranks = range(len(values[0]))
    return {
        f"{name}_slope": Estimate.over([slope(ranks, seed) for seed in values]),
        f"{name}_order": Estimate.over([spearman(ranks, seed) for seed in values]),
    }


# --- P1 -----------------------------------------------------------------------------------------------------------


def _isotropy_doses(subjects: Subjects) -> Evidence:
    lab = subjects.lab
    quantities: dict[str, Estimate] = {}
    records: list[Record] = []
    judged, shown = judged_tasks(subjects.tasks), shown_tasks(subjects.tasks)
    for dose, cells in _DOSES.items():
        seeds = range(lab.seeds)
        losses = [[lab.loss(cell, seed) for cell in cells] for seed in seeds]
        lab.on_status(f"tasks of {dose}")
        by_task = [[_task_scores(lab, cell, seed, (*judged, *shown)) for cell in cells] for seed in seeds]
        scores = [[mean_score(each, judged) for each in cells_of_seed] for cells_of_seed in by_task]
        units = [lab.last(cell).measure(SHAPE) for cell in cells]
        reached = [[_REACHED[dose](each.parts[seed]) for each in units] for seed in seeds]
        kinds = {"loss": losses, "task": scores, "reached": reached}
        for kind, values in kinds.items():
            quantities |= _responses(f"{dose}_{kind}", values)
        worst = min(lab.margin(cell, seed) for cell in cells for seed in seeds)
        quantities[learnt(dose).name] = Estimate.exact(worst)
        for metric, values in zip(_METRICS, kinds.values(), strict=True):
            for rank, cell in enumerate(cells):
                value = Estimate.over([seed[rank] for seed in values])
                records.append(estimate_record(value, metric, of=f"{dose}: {cell}"))
        for task in (*judged, *shown) if shown else ():  # one by one, next to those of the package
            for rank, cell in enumerate(cells):
                score = Estimate.over([seed[rank][task.name] for seed in by_task])
                if f"score: {task.name}, {cell}" not in quantities:  # doses share the decoder
                    quantities[f"score: {task.name}, {cell}"] = score
                    records.append(estimate_record(score, "score_by_task", of=f"{cell}: {task.name}"))
    note = judged_note(subjects.tasks)
    return subjects.evidence([lab.last(SHORT_DECODER)], quantities, records, note=note)


def _task_scores(lab: Lab, cell: str, seed: int, tasks: Sequence[TextTask]) -> dict[str, float]:
    context = int(lab.size.switches["context"])
    return task_scores(lab.model(cell, seed, lab.steps_of(cell)), lab.data(cell, seed), context, tasks)


def _moves(dose: str, up: bool, words: str) -> Rule:
    """Loss and task agree: more isotropy is worse (`up`: the loss rises, the score falls), or better."""
    risen, fallen = (above, below) if up else (below, above)
    sign = 1.0 if up else -1.0
    moved = f"{words}: slope on the dose of what it is meant to move"
    words = f"{words}, {'hurts' if up else 'helps'}"
    return every(
        gate(f"{dose}_reached_slope", 0.0, moved),
        learnt(dose),
        risen(
            f"{dose}_loss_slope", 0.0, f"{words}: slope of the loss on the dose", holds=0.05 * sign, fails=-0.02 * sign
        ),
        risen(
            f"{dose}_loss_order",
            0.5 * sign,
            f"{words}: rank correlation of loss and dose",
            CORRELATION,
            holds=0.95 * sign,
            fails=-0.2 * sign,
        ),
        fallen(
            f"{dose}_task_slope",
            0.0,
            f"{words}: slope of the score of downstream tasks on the dose",
            holds=-0.02 * sign,
            fails=0.01 * sign,
        ),
    )


# --- P2 -----------------------------------------------------------------------------------------------------------


def _sharpness_doses(subjects: Subjects) -> Evidence:
    lab = subjects.lab
    cells = (*_TEMPERATURES, *_VARIANTS)
    units = {cell: lab.last(cell).measure(HEADS) for cell in cells}
    slopes, orders = [], []
    for seed in range(lab.seeds):
        losses = [lab.loss(cell, seed) for cell in cells]
        entropy = [units[cell].parts[seed].mean("attention_entropy") for cell in cells]
        slopes.append(partial_slope(losses, entropy, [head_drift(units[cell].parts[seed]) for cell in cells]))
        orders.append(spearman(entropy[: len(_TEMPERATURES)], losses[: len(_TEMPERATURES)]))
    quantities = {"slope": Estimate.over(slopes), "order": Estimate.over(orders)}
    quantities[learnt("sharpness").name] = Estimate.exact(
        min(lab.margin(c, s) for c in cells for s in range(lab.seeds))
    )
    records = [
        estimate_record(value, metric, of=cell)
        for cell in cells
        for metric, value in (
            ("validation_loss", lab.over_seeds(partial(lab.loss, cell))),
            ("mean_entropy", estimate(lambda view: view.mean("attention_entropy"), units[cell])),
            ("mean_drift", estimate(head_drift, units[cell])),
        )
    ]
    return subjects.evidence([lab.last(SHORT_DECODER)], quantities, records)


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
        settle="more seeds, or a longer training of the lab (--size paper)",
        figure=(*_METRICS, "score_by_task"),
        cells=(*_DOSES["isoscore"], *_DOSES["centring"][1:]),
        seconds=30,
        plain="Forcing states to spread evenly helps, or hurts",
        found="not asked by the papers",
    ),
    Claim(
        "P2",
        PAPER,
        "Sharper attention consistently helps or consistently hurts a model.",
        {"lab": _sharpness_doses},
        published=(),
        control=either(
            every(
                learnt("sharpness"),
                above(
                    "slope",
                    0.0,
                    "sharper is better: slope of the loss on entropy at equal drift",
                    holds=0.3,
                    fails=-0.1,
                ),
                above(
                    "order",
                    0.5,
                    "rank correlation of loss and entropy over temperatures",
                    CORRELATION,
                    holds=0.95,
                    fails=-0.2,
                ),
            ),
            every(
                learnt("sharpness"),
                below(
                    "slope", 0.0, "sharper is worse: slope of the loss on entropy at equal drift", holds=-0.3, fails=0.1
                ),
                below(
                    "order",
                    -0.5,
                    "rank correlation of loss and entropy over temperatures",
                    CORRELATION,
                    holds=-0.95,
                    fails=0.2,
                ),
            ),
        ),
        settle="more seeds, or a longer training of the lab (--size paper)",
        figure=("validation_loss", "mean_entropy", "mean_drift"),
        cells=(*_TEMPERATURES, *_VARIANTS),
        seconds=4,
        plain="Sharper attention helps, or hurts",
        found="not asked by the papers",
    ),
)
