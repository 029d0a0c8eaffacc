"""Evidence for A6 and A7: kinds of attention compared, and what raises the cosine of states."""

from __future__ import annotations

from functools import partial
from statistics import fmean

from anisoscope.studies.claims.claim import Evidence
from anisoscope.studies.claims.estimate import Estimate
from anisoscope.studies.claims.gates import learnt, matched
from anisoscope.studies.claims.measurements import HEADS, SHAPE
from anisoscope.studies.claims.run_sizes import (
    EXPONENTS,
    MASKED,
    NEXT,
    NO_ATTENTION,
    SHORT_DECODER,
    UNIFORM,
    cause_cells,
)
from anisoscope.studies.claims.run_view import RunView, estimate, estimate_record, estimates, figure_records
from anisoscope.studies.claims.subjects import Lab, Subjects, matched_steps

VARIANTS = ("mean-free-queries", "mean-free-keys", "sigmoid", "off-by-one", "cosine")
CAUSES = tuple(cause_cells())
_SHOWN = ("attention_entropy", "q_drift", "k_drift")


# --- A6: sharp without drift --------------------------------------------------------------------------------------


def head_drift(view: RunView) -> float:
    """Return the length of mean query and mean key, relative to the typical length, as a mean over heads."""
    return (view.mean("q_drift", **{"in": "rms"}) + view.mean("k_drift", **{"in": "rms"})) / 2


def _relative(quantity: str, cell: str, variant: RunView, softmax: RunView) -> float:
    """Entropy relative to softmax's, minus 1; or drift relative to softmax's.

    If a variant removes the mean of the queries or of the keys, only the drift of that side counts: with one mean at
    zero, the logits have no part that all tokens share through both means.
    """
    if quantity == "drift":
        side = {"mean-free-queries": "q_drift", "mean-free-keys": "k_drift"}.get(cell)
        if side is None:
            return head_drift(variant) / head_drift(softmax)
        return variant.mean(side, **{"in": "rms"}) / softmax.mean(side, **{"in": "rms"})
    return variant.mean("attention_entropy") / softmax.mean("attention_entropy") - 1


def _at_equal_loss(lab: Lab, cell: str, quantity: str, seed: int) -> float:
    """The comparison at the first saved steps at which both reach the final loss of the worse one."""
    steps = matched_steps(lab, cell, SHORT_DECODER, seed)
    views = (lab.view(name, seed, step, HEADS) for name, step in zip((cell, SHORT_DECODER), steps, strict=True))
    return _relative(quantity, cell, *views)


def _loss_apart(lab: Lab, cell: str, seed: int) -> float:
    a, b = matched_steps(lab, cell, SHORT_DECODER, seed)
    return abs(lab.loss(cell, seed, a) - lab.loss(SHORT_DECODER, seed, b))


def variants_evidence(subjects: Subjects) -> Evidence:
    """Gather entropy and drift of every kind of attention relative to softmax, at the end and at equal loss (A6)."""
    lab = subjects.lab
    softmax = lab.last(SHORT_DECODER).measure(HEADS)
    seeds = lab.seeds_of(SHORT_DECODER)
    entropy = estimate(lambda view: view.mean("attention_entropy"), softmax)
    quantities: dict[str, Estimate] = {"softmax_entropy": entropy}
    records = figure_records(softmax, _SHOWN, of="softmax")
    for cell in VARIANTS:
        units = lab.last(cell).measure(HEADS)
        for quantity in ("entropy", "drift"):
            quantities |= estimates(
                {
                    f"{quantity}_{cell}": partial(estimate, partial(_relative, quantity, cell), units, softmax),
                    f"{quantity}_{cell}_matched": partial(lab.over_seeds, partial(_at_equal_loss, lab, cell, quantity)),
                }
            )
        quantities[learnt(cell).name] = Estimate.exact(min(lab.margin(cell, seed) for seed in seeds))
        quantities[matched(cell).name] = Estimate.exact(max(_loss_apart(lab, cell, seed) for seed in seeds))
        records += figure_records(units, _SHOWN, of=cell)
    return subjects.evidence([lab.last(SHORT_DECODER)], quantities, records)


# --- A7: attention, objective, tokens -----------------------------------------------------------------------------


def _cosine(view: RunView, tokens: str = "all") -> float:
    return fmean(view.profile("mean_cosine", tokens))


def causes_evidence(subjects: Subjects) -> Evidence:
    """Gather the effect of attention, objective and token distribution on the mean cosine, seed by seed (A7)."""
    lab = subjects.lab
    values: dict[str, list[float]] = {}
    for seed in range(lab.seeds):
        for tokens, end in (("all", ""), ("no-sink", "_no_sink")):
            cosine = {cell: _cosine(lab.view(cell, seed, lab.steps_of(cell), SHAPE), tokens) for cell in CAUSES}
            for name, value in _effects(cosine).items():
                values.setdefault(f"{name}{end}", []).append(value)
        values.setdefault("attention_matched", []).append(fmean(_matched_effect(lab, e, seed) for e in EXPONENTS))
    quantities = {name: Estimate.over(each) for name, each in values.items()}
    margins = [
        lab.trained(cell, seed).baselines["unigram"] - lab.loss(cell, seed)
        for cell in CAUSES
        for seed in lab.seeds_of(cell)
    ]
    quantities["learnt_causes"] = Estimate.exact(min(margins))
    records = [
        estimate_record(estimate(_cosine, lab.last(cell).measure(SHAPE)), "cosine_by_cause", of=words)
        for cell, words in cause_cells().items()
    ]
    return subjects.evidence([lab.last(CAUSES[0])], quantities, records)


def _effects(cosine: dict[str, float]) -> dict[str, float]:
    """The effect of attention, and what is left of it beyond the effects of objective and token distribution."""
    low, high = EXPONENTS
    attention = fmean(cosine[f"{NEXT}-{e:g}"] - cosine[f"{NO_ATTENTION}-{e:g}"] for e in EXPONENTS)
    objective = fmean(cosine[f"{NEXT}-{e:g}"] - cosine[f"{MASKED}-{e:g}"] for e in EXPONENTS)
    tokens = fmean(cosine[f"{cell}-{high:g}"] - cosine[f"{cell}-{low:g}"] for cell in (NEXT, MASKED, UNIFORM))
    return {
        "attention": attention,
        "over_objective": attention - abs(objective),
        "over_tokens": attention - abs(tokens),
    }


def _matched_effect(lab: Lab, exponent: float, seed: int) -> float:
    """Cosine with softmax attention minus without attention, at equal loss, without flagged tokens."""
    names = f"{NEXT}-{exponent:g}", f"{NO_ATTENTION}-{exponent:g}"
    steps = matched_steps(lab, *names, seed)
    with_, without = (
        _cosine(lab.view(name, seed, step, SHAPE), "no-sink") for name, step in zip(names, steps, strict=True)
    )
    return with_ - without
