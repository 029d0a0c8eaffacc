"""Evidence for N6: isotropy of the final states and the downstream score over training."""

from __future__ import annotations

from statistics import fmean

import numpy as np

from anisoscope.studies.claims.claim import Evidence
from anisoscope.studies.claims.downstream_tasks import (
    judged_note,
    judged_tasks,
    mean_score,
    shown_tasks,
    task_scores,
)
from anisoscope.studies.claims.estimate import Estimate
from anisoscope.studies.claims.hidden_states import mean_cosine, states
from anisoscope.studies.claims.modality_evidence import pearson
from anisoscope.studies.claims.run_view import estimate_record
from anisoscope.studies.claims.subjects import Subjects


def follows_score_evidence(subjects: Subjects) -> Evidence:
    """Gather the correlation over training of 1 − mean cosine of the final states with the downstream score (N6).

    The score is the mean of the tasks of the user, or of both tasks of `downstream_tasks` if there are none.
    """
    lab, cell = subjects.lab, "decoder"
    steps = lab.settled_steps(cell)
    context = int(subjects.size.switches["context"])
    isotropy: list[list[float]] = []
    judged, shown = judged_tasks(subjects.tasks), shown_tasks(subjects.tasks)
    by_task: list[list[dict[str, float]]] = []
    losses: list[list[float]] = []
    for seed in lab.seeds_of(cell):
        lab.on_status(f"downstream tasks of {cell}, seed {seed}")
        models = [lab.model(cell, seed, step) for step in steps]
        final = [states(model, lab.batches(cell), ["final"])["final"] for model in models]
        isotropy.append([1 - mean_cosine(rows) for rows in final])
        by_task.append([task_scores(model, lab.data(cell, seed), context, (*judged, *shown)) for model in models])
        losses.append([lab.loss(cell, seed, step) for step in steps])
    score = [[mean_score(each, judged) for each in steps_of_seed] for steps_of_seed in by_task]
    quantities = {
        "follows": Estimate.over([pearson(a, b) for a, b in zip(isotropy, score, strict=True)]),
        "follows_given_loss": Estimate.over(
            [partial_correlation(a, b, c) for a, b, c in zip(isotropy, score, losses, strict=True)]
        ),
    }
    curves = [
        ("downstream_score", "mean of the given tasks" if shown else "package of a docstring and its signature", score),
        ("final_isotropy", "1 − mean cosine", isotropy),
    ]
    for task in (*judged, *shown) if shown else ():  # one by one, next to those of the package
        values = [[each[task.name] for each in steps_of_seed] for steps_of_seed in by_task]
        curves.append(("downstream_score", task.name, values))
        quantities[f"score: {task.name}"] = Estimate.over([seed[-1] for seed in values])
    records = [
        estimate_record(Estimate.over([seed[number] for seed in values]), metric, of=of, step=step)
        for metric, of, values in curves
        for number, step in enumerate(steps)
    ]
    notes = [f"steps {', '.join(map(str, steps))}", judged_note(subjects.tasks)]
    return subjects.evidence([lab.last(cell)], quantities, records, note="; ".join(filter(None, notes)))


def partial_correlation(a: list[float], b: list[float], held: list[float]) -> float:
    """Return Pearson's correlation of a and b after what `held` predicts of each linearly is removed.

    >>> round(partial_correlation([1.0, 2.0, 3.0, 5.0], [2.0, 1.0, 4.0, 4.0], [1.0, 2.0, 3.0, 4.0]), 3)
    -0.111
    """
    design = np.column_stack([np.ones(len(held)), held])
    rest = [np.asarray(each) - design @ np.linalg.lstsq(design, np.asarray(each), rcond=None)[0] for each in (a, b)]
    if min(float(np.abs(each).max()) for each in rest) < 1e-12 * max(1.0, fmean(map(abs, held))):
        return 0.0
    return pearson(rest[0].tolist(), rest[1].tolist())
