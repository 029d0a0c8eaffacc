"""Evidence for T1 to T4 and T7: gradients inside bases of activations, over layers, models and training."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import fmean

from anisoscope.records import Record
from anisoscope.studies.claims.claim import Evidence
from anisoscope.studies.claims.curve_shapes import slope
from anisoscope.studies.claims.estimate import Estimate
from anisoscope.studies.claims.gates import learnt, matched
from anisoscope.studies.claims.gradient_evidence import (
    change_in_basis,
    enriched,
    gains_of,
    gradients_of,
    lab_gradients,
    log_enrichment,
    log_ratio,
    mean_of,
    objects_table,
    removal_wins,
)
from anisoscope.studies.claims.measurements import SHAPE
from anisoscope.studies.claims.run_view import (
    RunView,
    Units,
    difference,
    estimate,
    estimate_record,
    estimate_share,
    estimates,
    figure_records,
    least_favourable,
)
from anisoscope.studies.claims.subjects import LabModel, Subject, Subjects, matched_steps

KINDS_OF_MODEL = ("decoder", "causal-masked", "encoder")
PROJECTED = ("tangent-only", "random-only")
_PARTS = {"tangent-only": "tangent part of the gradients only", "random-only": "random part of the gradients only"}
_ENERGIES = ("gradient_energy", "gradient_enrichment")
_EARLY = 0.3  # share of training that counts as early, for checkpoints of the user


# --- T1 to T3: energy and anisotropy ------------------------------------------------------------------------------


def _energy(tests: Sequence[Units]) -> dict[str, Estimate]:
    """The published share, and the energy beyond the nulls of the control, over layers and steps."""
    means: Mapping[str, Callable[[RunView], float]] = {
        "local": partial(mean_of, metric="local_excess", rows="plain"),
        "slope": partial(mean_of, metric="transfer_slope", rows="plain"),
        "beyond_haar": partial(mean_of, metric="gradient_excess", null="orientation", rows="plain", proxy="pca"),
        "beyond_coordinates": partial(mean_of, metric="gradient_excess", null="coordinates", rows="plain", proxy="pca"),
    }
    makers: dict[str, Callable[[], Estimate]] = {"enriched": partial(estimate_share, enriched, *tests)}
    for name, value in means.items():
        makers[name] = partial(estimate, partial(_mean_over_views, value), *tests)
    return estimates(makers)


def _mean_over_views(value: Callable[[RunView], float], *views: RunView) -> float:
    return fmean(value(view) for view in views)


def _early(subjects: Subjects, cell: str) -> list[LabModel]:
    """A training in its first 30 %, after the transient."""
    steps = [step for step in subjects.lab.settled_steps(cell) if 0 < step <= subjects.size.frozen]
    return [subjects.lab.at_step(cell, step) for step in steps or subjects.size.early]


def energy_on_lab(subjects: Subjects) -> Evidence:
    """Gather the gradient energy of early training, also with untied embeddings and before training (T1)."""
    lab, size = subjects.lab, subjects.size
    models = _early(subjects, "decoder")
    tests = [gradients_of(model) for model in models]
    untied = _energy([gradients_of(model) for model in _early(subjects, "untied")])
    first = gradients_of(lab.at_step("decoder", 0))
    quantities = _energy(tests) | {f"{name}_untied": value for name, value in untied.items()}
    quantities["beyond_start"] = estimate(
        lambda start, *views: fmean(map(log_enrichment, views)) - log_enrichment(start), first, *tests
    )
    records: list[Record] = []
    for step in (size.frozen, size.steps):
        model = lab.at_step("decoder", step)
        units = lab_gradients(model, kind="objects")
        records += objects_table(units, step)
        records += figure_records(units, ("transfer_slope", "local_excess"), of="decoder", step=step)
    return subjects.evidence(models, quantities, records, note=_steps([model.step for model in models]))


def _steps(steps: Sequence[int]) -> str:
    return f"steps {', '.join(map(str, steps))}"


def _early_models(subjects: Subjects) -> Sequence[Subject]:
    """The first model of the user in the first 30 % of its training, or at its last step if there is no such step."""
    series = subjects.given[0]
    return [model for model in series if 0 < model.step <= _EARLY * series[-1].step] or series[-1:]


def energy_on_model(subjects: Subjects) -> Evidence:
    """Gather the gradient energy of early checkpoints of a model of the user (T1)."""
    models = _early_models(subjects)
    tests = [gradients_of(model) for model in models]
    records = [
        record
        for model, units in zip(models, tests, strict=True)
        for record in figure_records(units, _ENERGIES, of=model.name, step=model.step)
    ]
    reasons = {"beyond_start": "no step 0 was given", "local_untied": "only the lab has twins with untied embeddings"}
    return subjects.evidence(models, _energy(tests), records, left_out=reasons)


def anisotropy_evidence(subjects: Subjects) -> Evidence:
    """Gather what removing the basis does to the isotropy of gradients (T2)."""
    lab = subjects.way == "lab"
    model = subjects.lab.at_step("decoder", subjects.size.frozen) if lab else _early_models(subjects)[-1]
    units, gains = gradients_of(model), gains_of(model)
    quantities = {
        "removed": estimate_share(removal_wins, units),
        "achieved": Estimate.over([gain.basis for gain in gains], units.unit),
        "beyond_other_layer": Estimate.over([gain.basis - gain.other for gain in gains], units.unit),
    }
    records = figure_records(units, ("anisotropy_share",), of=model.name)
    other = Estimate.over([gain.other for gain in gains], units.unit)
    for of, value in (("basis of the layer", quantities["achieved"]), ("basis of another layer", other)):
        records.append(estimate_record(value, "achieved_gain", of=of))
    return subjects.evidence([model], quantities, records, note=f"step {model.step}")


def families_on_lab(subjects: Subjects) -> Evidence:
    """Gather the gradient energy of decoders, encoders and causal models of masked tokens (T3)."""
    models = {cell: _early(subjects, cell) for cell in KINDS_OF_MODEL}
    shared = set.intersection(*({model.step for model in each} for each in models.values()))
    early = sorted(shared) or list(subjects.size.early)
    tests = {cell: [gradients_of(subjects.lab.at_step(cell, step)) for step in early] for cell in KINDS_OF_MODEL}
    quantities = {f"{name}_{cell}": value for cell in KINDS_OF_MODEL for name, value in _energy(tests[cell]).items()}
    both = (*tests["decoder"], *tests["encoder"])
    n = len(early)
    quantities["ratio"] = estimate(lambda *views: log_ratio(*views[:n]) - log_ratio(*views[n:]), *both)
    records = [
        record
        for cell in KINDS_OF_MODEL
        for units, step in zip(tests[cell], early, strict=True)
        for record in figure_records(units, ("gradient_enrichment", "local_excess"), of=cell, step=step)
        if record.variant.get("rows", "plain") == "plain" and "stratum" not in record.variant
    ]
    return subjects.evidence(models["decoder"], quantities, records, note=_steps(early))


def families_on_models(subjects: Subjects) -> Evidence:
    """Gather the gradient energy of the models of the user (T3)."""
    each: list[dict[str, Estimate]] = []
    ratios: dict[str, list[Estimate]] = {"decoder": [], "encoder": []}
    records: list[Record] = []
    models = subjects.given_models
    for model in models:
        cell, units = "decoder" if model.decoder else "encoder", gradients_of(model)
        each.append({f"{name}_{cell}": value for name, value in _energy([units]).items()})
        ratios[cell].append(estimate(log_ratio, units))
        records += figure_records(units, ("gradient_enrichment", "local_excess"), of=model.name)
    quantities = least_favourable(each)
    if all(ratios.values()):
        lowest = min(ratios["decoder"], key=lambda ratio: ratio.value)
        highest = max(ratios["encoder"], key=lambda ratio: ratio.value)
        quantities["ratio"] = difference(lowest, highest)
    left_out = {"local_causal-masked": "only the lab has causal models of masked tokens"}
    return subjects.evidence(models, quantities, records, left_out=left_out)


# --- T4: early and late -------------------------------------------------------------------------------------------


def _fading(
    early: Sequence[Subject], late: Sequence[Subject], refreshed: Sequence[Subject], frozen: Subject
) -> tuple[dict[str, Estimate], list[Record]]:
    """Gradient energy early and late, with bases of one step (`frozen`) and of each step (`refreshed`)."""
    n = len(early)
    with_frozen = [gradients_of(model, frozen) for model in (*early, *late)]
    tests = {model.step: gradients_of(model) for model in refreshed}
    steps = [math.log(step) for step in tests]

    def trend(rows: str, *views: RunView) -> float:
        return slope(steps, [log_enrichment(view, rows) for view in views])

    quantities = {
        "frozen": estimate(lambda *views: log_ratio(*views[:n]) - log_ratio(*views[n:]), *with_frozen),
        "refreshed": estimate(partial(trend, "plain"), *tests.values()),
        "refreshed_unit": estimate(partial(trend, "unit"), *tests.values()),
    }
    records = [
        estimate_record(estimate(log_enrichment, units), "log_enrichment", of=of, step=step)
        for of, steps_of, series in (
            ("basis fitted at each step", list(tests), list(tests.values())),
            ("basis of the first 30 %", [model.step for model in (*early, *late)], with_frozen),
        )
        for step, units in zip(steps_of, series, strict=True)
    ]
    return quantities, records


def fading_on_lab(subjects: Subjects) -> Evidence:
    """Gather the gradient energy early and late in training (T4)."""
    lab, size = subjects.lab, subjects.size
    early, late = _early(subjects, "decoder"), [lab.at_step("decoder", step) for step in size.late]
    quantities, records = _fading(early, late, [*early, *late], lab.at_step("decoder", size.frozen))
    return subjects.evidence(early, quantities, records, note=f"frozen at step {size.frozen}")


def fading_on_checkpoints(subjects: Subjects) -> Evidence:
    """Gather the gradient energy of early and late checkpoints of a model (T4)."""
    series = [model for model in subjects.given_checkpoints if model.step > 0]
    last = series[-1]
    frozen = min(series, key=lambda model: abs(model.step - _EARLY * last.step))
    early = [model for model in series if model.step <= frozen.step]
    late = [model for model in series if model.step > last.step / 2]
    quantities, records = _fading(early, late, series, frozen)
    return subjects.evidence(series, quantities, records, note=f"frozen at step {frozen.step}")


# --- T7: does it move the activations -----------------------------------------------------------------------------


def movement_on_lab(subjects: Subjects) -> Evidence:
    """Gather how activations move, and anisotropy at equal loss if gradients are projected (T7)."""
    lab = subjects.lab
    steps = [step for step in lab.settled_steps("decoder") if step > 0]
    changes = [fmean(change_in_basis(lab, "decoder", seed, steps)) for seed in range(lab.seeds)]
    a, b = PROJECTED
    pairs = [matched_steps(lab, a, b, seed) for seed in range(lab.seeds)]
    views = {
        cell: Units(tuple(lab.view(cell, seed, pair[index], SHAPE) for seed, pair in enumerate(pairs)))
        for index, cell in enumerate(PROJECTED)
    }

    def level(view: RunView) -> float:
        return fmean(view.profile("spectral_anisotropy"))

    quantities = {
        "change": Estimate.over(changes),
        "drives": estimate(lambda tangent, random: level(tangent) - level(random), views[a], views[b]),
        matched(b).name: Estimate.exact(
            max(abs(lab.loss(a, s, pair[0]) - lab.loss(b, s, pair[1])) for s, pair in enumerate(pairs))
        ),
        **{
            learnt(cell).name: Estimate.exact(min(lab.margin(cell, seed) for seed in range(lab.seeds)))
            for cell in ("decoder", *PROJECTED)
        },
    }
    records = [
        estimate_record(estimate(level, each), "anisotropy_at_equal_loss", of=_PARTS[cell])
        for cell, each in views.items()
    ]
    of = "change of the activations beyond their own variance"
    records.append(estimate_record(quantities["change"], "change_in_basis", of=of))
    return subjects.evidence([lab.last("decoder")], quantities, records)
