"""T: Bernas et al. 2026, Revisiting Anisotropy: do directions fitted on activations carry the gradients?"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import fmean, median

from anisoscope.records import Record
from anisoscope.studies.claims.claim import Claim, Evidence, above, below, every
from anisoscope.studies.claims.curve_shapes import slope
from anisoscope.studies.claims.estimate import CORRELATION, SHARE, Estimate
from anisoscope.studies.claims.frequency_evidence import curvature_evidence, frequency_evidence
from anisoscope.studies.claims.gradient_evidence import (
    change_in_basis,
    energy_of,
    enriched,
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
from anisoscope.studies.claims.subjects import Subject, Subjects

PAPER = "bernas2026"
_CELLS = ("decoder", "causal-masked", "encoder")
_PROJECTED = ("tangent-only", "normal-only", "random-only")
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


def _energy_on_lab(subjects: Subjects) -> Evidence:
    lab, size = subjects.lab, subjects.size
    models = [lab.at_step("decoder", step) for step in size.early]
    records: list[Record] = []
    for step in (size.frozen, size.steps):
        model = lab.at_step("decoder", step)
        units = lab_gradients(model, kind="objects")
        records += objects_table(units, step) + objects_table(lab_gradients(model, kind="concepts"), step)
        records += figure_records(units, ("transfer_slope", "local_excess"), of="decoder", step=step)
    quantities = _energy([gradients_of(model) for model in models])
    return subjects.evidence(models, quantities, records, note=_steps(size.early))


def _steps(steps: Sequence[int]) -> str:
    return f"steps {', '.join(map(str, steps))}"


def _early_models(subjects: Subjects) -> Sequence[Subject]:
    """The first model of the user in the first 30 % of its training, or at its last step if there is no such step."""
    series = subjects.given[0]
    return [model for model in series if 0 < model.step <= _EARLY * series[-1].step] or series[-1:]


def _energy_on_model(subjects: Subjects) -> Evidence:
    models = _early_models(subjects)
    tests = [gradients_of(model) for model in models]
    records = [
        record
        for model, units in zip(models, tests, strict=True)
        for record in figure_records(units, _ENERGIES, of=model.name, step=model.step)
    ]
    return subjects.evidence(models, _energy(tests), records)


def _anisotropy(subjects: Subjects) -> Evidence:
    lab = subjects.way == "lab"
    model = subjects.lab.at_step("decoder", subjects.size.frozen) if lab else _early_models(subjects)[-1]
    units = gradients_of(model)
    quantities = {
        "removed": estimate_share(partial(removal_wins, null="normal_control", dimension="ambient"), units),
        "removed_equal": estimate_share(partial(removal_wins, null="equal_energy", dimension="reduced"), units),
    }
    records = figure_records(units, ("anisotropy_share",), of=model.name)
    return subjects.evidence([model], quantities, records, note=f"step {model.step}")


def _families_on_lab(subjects: Subjects) -> Evidence:
    early = subjects.size.early
    models = {cell: [subjects.lab.at_step(cell, step) for step in early] for cell in _CELLS}
    tests = {cell: [gradients_of(model) for model in each] for cell, each in models.items()}
    quantities = {f"{name}_{cell}": value for cell in _CELLS for name, value in _energy(tests[cell]).items()}
    both = (*tests["decoder"], *tests["encoder"])
    n = len(early)
    quantities["ratio"] = estimate(lambda *views: log_ratio(*views[:n]) - log_ratio(*views[n:]), *both)
    records = [
        record
        for cell in _CELLS
        for units, step in zip(tests[cell], early, strict=True)
        for record in figure_records(units, ("gradient_enrichment", "local_excess"), of=cell, step=step)
    ]
    return subjects.evidence(models["decoder"], quantities, records, note=_steps(early))


def _families_on_models(subjects: Subjects) -> Evidence:
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
    n, last = len(early), refreshed[-1]
    with_frozen = [gradients_of(model, frozen) for model in (*early, *late)]
    tests = {model.step: gradients_of(model) for model in refreshed}
    steps = [math.log(step) for step in tests]
    across = gradients_of(last, frozen), gradients_of(frozen, last)
    quantities = {
        "frozen": estimate(lambda *views: log_ratio(*views[:n]) - log_ratio(*views[n:]), *with_frozen),
        "refreshed": estimate(lambda *views: slope(steps, [log_enrichment(view) for view in views]), *tests.values()),
        "forward": estimate(lambda forward, back: energy_of(forward) - energy_of(back), *across),
    }
    records = [
        estimate_record(estimate(log_enrichment, units), "log_enrichment", of=of, step=step)
        for of, steps_of, series in (
            ("refreshed", list(tests), list(tests.values())),
            ("frozen", [model.step for model in (*early, *late)], with_frozen),
        )
        for step, units in zip(steps_of, series, strict=True)
    ]
    return quantities, records


def _fading_on_lab(subjects: Subjects) -> Evidence:
    lab, size = subjects.lab, subjects.size
    early, late = ([lab.at_step("decoder", step) for step in steps] for steps in (size.early, size.late))
    quantities, records = _fading(early, late, [*early, *late], lab.at_step("decoder", size.frozen))
    return subjects.evidence(early, quantities, records, note=f"frozen at step {size.frozen}")


def _fading_on_checkpoints(subjects: Subjects) -> Evidence:
    series = [model for model in subjects.given_checkpoints if model.step > 0]
    last = series[-1]
    frozen = min(series, key=lambda model: abs(model.step - _EARLY * last.step))
    early = [model for model in series if model.step <= frozen.step]
    late = [model for model in series if model.step > last.step / 2]
    quantities, records = _fading(early, late, series, frozen)
    return subjects.evidence(series, quantities, records, note=f"frozen at step {frozen.step}")


# --- T7: does it move the activations -----------------------------------------------------------------------------


def _moved_on_lab(subjects: Subjects) -> Evidence:
    lab, size = subjects.lab, subjects.size
    steps = [step for step in size.measured_steps if step > 0]
    changes = [change_in_basis(lab, "decoder", seed, steps) for seed in range(lab.seeds)]
    cells = {
        cell: (lab.at_step(cell, 0).measure(SHAPE), lab.last(cell).measure(SHAPE)) for cell in ("decoder", *_PROJECTED)
    }

    def growth(first: RunView, last: RunView) -> float:
        return fmean(last.profile("spectral_anisotropy")) - fmean(first.profile("spectral_anisotropy"))

    quantities = {
        "change": Estimate.over([fmean(excess for excess, _ in seed) for seed in changes]),
        "change_p": Estimate.over([median(p for _, p in seed) for seed in changes]),
        "drives": estimate(
            lambda a, b, c, d: growth(a, b) - growth(c, d), *cells["tangent-only"], *cells["random-only"]
        ),
    }
    records = [
        estimate_record(estimate(growth, *pair), "growth_of_anisotropy", of=cell) for cell, pair in cells.items()
    ]
    of = "share of ‖ΔH‖² in the basis − r/d"
    records.append(estimate_record(quantities["change"], "change_in_basis", of=of))
    return subjects.evidence([lab.last("decoder")], quantities, records)


# --- the claims ---------------------------------------------------------------------------------------------------

_CHECKPOINTS = "step1000,step8000,step43000,step100000,step143000"
_ENRICHED = "share of layers and early steps that beat all 20 normal controls"
CLAIMS = (
    Claim(
        "T1",
        PAPER,
        "Low-rank directions of activations capture unusually much of the true gradients.",
        {"lab": _energy_on_lab, "model": _energy_on_model},
        published=every(above("enriched", 0.8, _ENRICHED, SHARE)),
        control=every(
            above("local", 0.0, "energy in the basis of the own patch − of other patches"),
            above("slope", 0.0, "slope β of gradient energy on variance"),
            above("beyond_haar", 0.0, "energy − that of random subspaces"),
            above("beyond_coordinates", 0.0, "energy − that of permuted coordinates"),
        ),
        settle="--model HuggingFaceTB/SmolLM2-360M --text FILE, best with early checkpoints (--revisions)",
        figure=("energy_by_gradient", "gradient_energy", "transfer_slope", "local_excess"),
        cells=("decoder",),
        seconds=20,
        sources=("EleutherAI/pythia-160m",),
        revisions=_CHECKPOINTS,
    ),
    Claim(
        "T2",
        PAPER,
        "These directions also capture a larger share of the gradients' anisotropy.",
        {"lab": _anisotropy, "model": _anisotropy},
        published=every(
            above("removed", 0.8, "share of layers in which removing the basis beats a normal control", SHARE)
        ),
        control=every(above("removed_equal", 0.8, "the same against equal energy, in the reduced dimension", SHARE)),
        settle="--model HuggingFaceTB/SmolLM2-360M --text FILE",
        figure=("anisotropy_share",),
        cells=("decoder",),
        seconds=1,
        sources=("EleutherAI/pythia-160m",),
        revisions=_CHECKPOINTS,
    ),
    Claim(
        "T3",
        PAPER,
        "These directions capture gradients in encoders and decoders, more weakly in encoders.",
        {"lab": _families_on_lab, "model": _families_on_models},
        published=every(
            above("enriched_decoder", 0.8, f"decoder: {_ENRICHED}", SHARE),
            above("enriched_encoder", 0.8, f"encoder: {_ENRICHED}", SHARE),
            above("ratio", 0.0, "log tangent/normal ratio, decoder − encoder"),
        ),
        control=every(*(above(f"local_{cell}", 0.0, f"{cell}: own patch − other patches") for cell in _CELLS)),
        settle="a decoder and an encoder: --model EleutherAI/pythia-160m --model EuroBERT/EuroBERT-210m --text FILE",
        figure=("gradient_enrichment", "local_excess"),
        cells=_CELLS,
        seconds=20,
        sources=("EleutherAI/pythia-160m", "almanach/moderncamembert-base"),
    ),
    Claim(
        "T4",
        PAPER,
        "These directions capture gradients most strongly early in training, more weakly late.",
        {"lab": _fading_on_lab, "checkpoints": _fading_on_checkpoints},
        published=every(above("frozen", 0.0, "log ratio of bases frozen at 30 %, early − late")),
        control=every(
            below("refreshed", 0.0, "slope of log enrichment on log step, bases refreshed"),
            above("forward", 0.0, "energy: fitted early and tested late − fitted late and tested early"),
        ),
        settle="checkpoints: --model EleutherAI/pythia-160m --revisions 'step*' --text FILE",
        figure=("log_enrichment",),
        cells=("decoder",),
        seconds=16,
        sources=("EleutherAI/pythia-160m",),
        revisions=_CHECKPOINTS,
    ),
    Claim(
        "T5",
        PAPER,
        "Frequent tokens show the strongest enrichment, and lie nearer to the centre.",
        {"lab": frequency_evidence, "model": frequency_evidence},
        published=every(
            below("correlation", -0.2, "correlation of log frequency with the distance of centroids", CORRELATION),
            above("strata", 0.0, "energy of frequent − of rare tokens"),
        ),
        control=every(
            below("split_half", 0.0, "the same correlation from split halves, equal n", CORRELATION),
            below("p", 0.01, "p of permuted frequencies, median over layers", SHARE),
            above("strata_unit", 0.0, "energy of frequent − of rare tokens, gradients of unit length"),
        ),
        settle="--model EleutherAI/pythia-160m --text FILE",
        figure=("frequency_correlation", "gradient_energy"),
        cells=("decoder",),
        seconds=2,
        sources=("EleutherAI/pythia-160m",),
    ),
    Claim(
        "T6",
        PAPER,
        "Frequency-biased sampling hides curvature; normal parts are of second order in the local radius.",
        {"nothing": curvature_evidence},
        published=every(
            above("order", 1.8, "slope of log(normal/tangent variance) on log radius"),
            below("order", 2.2, "the same slope"),
            above("biased", 0.0, "drop of curvature's signal-to-noise from s = 0 to s = 1, frequent tokens pinned"),
        ),
        control=every(above("pinning", 0.2, "drop when frequent tokens are pinned, at equal n_eff")),
        settle="more seeds of the simulation",
        figure=("curvature_snr", "curvature_visibility", "curvature_drop"),
        seconds=1,
    ),
    Claim(
        "T7",
        PAPER,
        "Training amplifies tangent directions, and this drives anisotropy.",
        {"lab": _moved_on_lab},
        published=every(
            above("change", 0.0, "share of the activations' change in the basis − r/d"),
            below("change_p", 0.01, "p under random subspaces, median over layers and steps", SHARE),
        ),
        control=every(
            above("drives", 0.0, "growth of anisotropy, tangent part of the gradient alone − random part alone")
        ),
        settle="more seeds, or a longer training of the lab (--size paper)",
        figure=("growth_of_anisotropy", "change_in_basis"),
        cells=("decoder", *_PROJECTED),
        seconds=6,
    ),
)
