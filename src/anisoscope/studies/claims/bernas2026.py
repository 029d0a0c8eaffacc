"""T: Bernas et al. 2026, Revisiting Anisotropy: do directions fitted on activations carry the gradients?"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import fmean, median

from anisoscope.records import Record
from anisoscope.studies.claims.bench import Bench
from anisoscope.studies.claims.claim import LAB, MODEL, Claim, Estimate, Evidence, above, below, every
from anisoscope.studies.claims.frequency_evidence import curvature_evidence, frequency_on_lab, frequency_on_model
from anisoscope.studies.claims.given import Given, ran_on
from anisoscope.studies.claims.gradient_evidence import (
    change_in_basis,
    energy_of,
    enriched,
    gradients_of,
    gradients_of_model,
    log_enrichment,
    log_ratio,
    mean_of,
    objects_table,
    removal_wins,
)
from anisoscope.studies.claims.looks import SHAPE
from anisoscope.studies.claims.readings import (
    RunView,
    Units,
    difference,
    drawn,
    estimate,
    estimate_share,
    estimates,
    figure_records,
    least_favourable,
)
from anisoscope.studies.claims.statistics import slope

PAPER = "bernas2026"
_CELLS = ("decoder", "causal-masked", "encoder")
_PROJECTED = ("tangent-only", "normal-only", "random-only")
_ENERGIES = ("gradient_energy", "gradient_enrichment")


# --- T1 to T3: energy and anisotropy ------------------------------------------------------------------------------


def _energy(tests: Sequence[Units]) -> dict[str, Estimate]:
    """The published share, and what is left under the nulls that decide, over layers and steps."""
    means: Mapping[str, Callable[[RunView], float]] = {
        "local": partial(mean_of, metric="local_excess", rows="plain"),
        "slope": partial(mean_of, metric="transfer_slope", rows="plain"),
        "beyond_haar": partial(mean_of, metric="gradient_excess", null="orientation", rows="plain", proxy="pca"),
        "beyond_coordinates": partial(mean_of, metric="gradient_excess", null="coordinates", rows="plain", proxy="pca"),
    }
    made: dict[str, Callable[[], Estimate]] = {"enriched": partial(estimate_share, enriched, *tests)}
    for name, value in means.items():
        made[name] = partial(estimate, lambda *rs, value=value: fmean(map(value, rs)), *tests)
    return estimates(made)


def _energy_on_lab(bench: Bench) -> Evidence:
    lab, size = bench.lab, bench.size
    found = _energy([gradients_of(lab, "decoder", step) for step in size.early])
    records: list[Record] = []
    for step in (size.frozen, size.steps):
        units = gradients_of(lab, "decoder", step, kind="objects")
        records += objects_table(units, step) + objects_table(gradients_of(lab, "decoder", step, kind="concepts"), step)
        records += figure_records(units, ("transfer_slope", "local_excess"), of="decoder", step=step)
    return Evidence(f"{bench.said()}; steps {_steps(size.early)}", LAB, found, records=tuple(records))


def _steps(steps: Sequence[int]) -> str:
    return ", ".join(map(str, steps))


def _early(series: Sequence[Given]) -> Sequence[Given]:
    """The checkpoints of the first 30 % of training, or all there is of a finished model."""
    early = [model for model in series if 0 < model.step <= 0.3 * series[-1].step]
    return early or series[-1:]


def _energy_on_model(bench: Bench) -> Evidence:
    models = _early(bench.given[0])
    tests = [gradients_of_model(model) for model in models]
    records = [
        record
        for model, units in zip(models, tests, strict=True)
        for record in figure_records(units, _ENERGIES, of=model.name, step=model.step)
    ]
    return Evidence(ran_on(models), MODEL, _energy(tests), records=tuple(records))


def _anisotropy(units: Units, of: str) -> tuple[dict[str, Estimate], list[Record]]:
    found = {
        "removed": estimate_share(partial(removal_wins, null="normal_control", dimension="ambient"), units),
        "removed_equal": estimate_share(partial(removal_wins, null="equal_energy", dimension="reduced"), units),
    }
    return found, figure_records(units, ("anisotropy_share",), of=of)


def _anisotropy_on_lab(bench: Bench) -> Evidence:
    found, records = _anisotropy(gradients_of(bench.lab, "decoder", bench.size.frozen), "decoder")
    return Evidence(f"{bench.said()}; step {bench.size.frozen}", LAB, found, records=tuple(records))


def _anisotropy_on_model(bench: Bench) -> Evidence:
    model = _early(bench.given[0])[-1]
    found, records = _anisotropy(gradients_of_model(model), model.name)
    return Evidence(ran_on([model]), MODEL, found, records=tuple(records))


def _families_on_lab(bench: Bench) -> Evidence:
    lab, early = bench.lab, bench.size.early
    tests = {cell: [gradients_of(lab, cell, step) for step in early] for cell in _CELLS}
    found = {f"{name}_{cell}": value for cell in _CELLS for name, value in _energy(tests[cell]).items()}
    both = (*tests["decoder"], *tests["encoder"])
    n = len(early)
    found["ratio"] = estimate(lambda *rs: log_ratio(*rs[:n]) - log_ratio(*rs[n:]), *both)
    records = [
        record
        for cell in _CELLS
        for units, step in zip(tests[cell], early, strict=True)
        for record in figure_records(units, ("gradient_enrichment", "local_excess"), of=cell, step=step)
    ]
    return Evidence(f"{bench.said()}; steps {_steps(early)}", LAB, found, records=tuple(records))


def _families_on_models(bench: Bench) -> Evidence:
    each: list[dict[str, Estimate]] = []
    ratios: dict[str, list[Estimate]] = {"decoder": [], "encoder": []}
    records: list[Record] = []
    for model in bench.models:
        cell, units = "decoder" if model.decoder else "encoder", gradients_of_model(model)
        each.append({f"{name}_{cell}": value for name, value in _energy([units]).items()})
        ratios[cell].append(estimate(log_ratio, units))
        records += figure_records(units, ("gradient_enrichment", "local_excess"), of=model.name)
    found = least_favourable(each)
    if all(ratios.values()):
        lowest, highest = (
            pick(ratios[cell], key=lambda e: e.value) for pick, cell in ((min, "decoder"), (max, "encoder"))
        )
        found["ratio"] = difference(lowest, highest)
    left_out = {"local_causal-masked": "only the lab has causal models of masked tokens"}
    return Evidence(ran_on(bench.models), MODEL, found, left_out, tuple(records))


# --- T4: early and late -------------------------------------------------------------------------------------------


def _fading(
    frozen: tuple[Sequence[Units], Sequence[Units]],
    refreshed: Mapping[int, Units],
    across: tuple[Units, Units],
) -> tuple[dict[str, Estimate], list[Record]]:
    """Frozen bases early less late; refreshed ones against the step; early bases tested late less the reverse."""
    early, late = frozen
    n = len(early)
    steps = [math.log(step) for step in refreshed]
    found = {
        "frozen": estimate(lambda *rs: log_ratio(*rs[:n]) - log_ratio(*rs[n:]), *early, *late),
        "refreshed": estimate(lambda *rs: slope(steps, list(map(log_enrichment, rs))), *refreshed.values()),
        "forward": estimate(lambda ahead, back: energy_of(ahead) - energy_of(back), *across),
    }
    records = [
        drawn(estimate(log_enrichment, units), "log_enrichment", of="refreshed", step=step)
        for step, units in refreshed.items()
    ]
    return found, records


def _fading_on_lab(bench: Bench) -> Evidence:
    lab, size = bench.lab, bench.size
    frozen = tuple(
        [gradients_of(lab, "decoder", step, fitted_at=size.frozen) for step in steps]
        for steps in (size.early, size.late)
    )
    refreshed = {step: gradients_of(lab, "decoder", step) for step in (*size.early, *size.late)}
    ahead = gradients_of(lab, "decoder", size.steps, fitted_at=size.frozen)
    back = gradients_of(lab, "decoder", size.frozen, fitted_at=size.steps)
    found, records = _fading((frozen[0], frozen[1]), refreshed, (ahead, back))
    for step, units in zip((*size.early, *size.late), (*frozen[0], *frozen[1]), strict=True):
        records.append(drawn(estimate(log_enrichment, units), "log_enrichment", of="frozen", step=step))
    return Evidence(f"{bench.said()}; frozen at step {size.frozen}", LAB, found, records=tuple(records))


def _fading_on_checkpoints(bench: Bench) -> Evidence:
    series = [model for model in bench.series if model.step > 0]
    last = series[-1]
    fixed = min(series, key=lambda model: abs(model.step - 0.3 * last.step))
    early = [model for model in series if model.step <= fixed.step]
    late = [model for model in series if model.step > last.step / 2]
    frozen = tuple([gradients_of_model(model, fixed) for model in part] for part in (early, late))
    refreshed = {model.step: gradients_of_model(model) for model in series}
    across = (gradients_of_model(last, fixed), gradients_of_model(fixed, last))
    found, records = _fading((frozen[0], frozen[1]), refreshed, across)
    return Evidence(ran_on(series), MODEL, found, records=tuple(records))


# --- T7: does it move the cloud -----------------------------------------------------------------------------------


def _moved_on_lab(bench: Bench) -> Evidence:
    lab, size = bench.lab, bench.size
    steps = [step for step in size.looks if step > 0]
    changes = [change_in_basis(lab, "decoder", seed, steps) for seed in range(lab.seeds)]
    cells = {cell: (lab.look(cell, 0, SHAPE), lab.last(cell, SHAPE)) for cell in ("decoder", *_PROJECTED)}

    def growth(first: RunView, last: RunView) -> float:
        return fmean(last.profile("spectral_anisotropy")) - fmean(first.profile("spectral_anisotropy"))

    found = {
        "change": Estimate.over([fmean(excess for excess, _ in seed) for seed in changes]),
        "change_p": Estimate.over([median(p for _, p in seed) for seed in changes]),
        "drives": estimate(
            lambda a, b, c, d: growth(a, b) - growth(c, d), *cells["tangent-only"], *cells["random-only"]
        ),
    }
    records = [drawn(estimate(growth, *pair), "growth_of_anisotropy", of=cell) for cell, pair in cells.items()]
    records.append(drawn(found["change"], "change_in_basis", of="share of ‖ΔH‖² in the basis − r/d"))
    return Evidence(bench.said(), LAB, found, records=tuple(records))


# --- the claims ---------------------------------------------------------------------------------------------------

_CHECKPOINTS = "step1000,step8000,step43000,step100000,step143000"
_ENRICHED = "share of layers and early steps that beat all 20 normal controls"
CLAIMS = (
    Claim(
        "T1",
        PAPER,
        "Low-rank directions of activations capture unusually much of the true gradients.",
        {"lab": _energy_on_lab, "model": _energy_on_model},
        published=every(above("enriched", 0.8, _ENRICHED)),
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
        "…and a larger share of the gradients' anisotropy.",
        {"lab": _anisotropy_on_lab, "model": _anisotropy_on_model},
        published=every(above("removed", 0.8, "share of layers in which removing the basis beats a normal control")),
        control=every(above("removed_equal", 0.8, "the same against equal energy, in the reduced dimension")),
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
        "It holds for encoders and decoders, more weakly in encoders.",
        {"lab": _families_on_lab, "model": _families_on_models},
        published=every(
            above("enriched_decoder", 0.8, f"decoder: {_ENRICHED}"),
            above("enriched_encoder", 0.8, f"encoder: {_ENRICHED}"),
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
        "It is strongest early in training, weaker late.",
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
        {"lab": frequency_on_lab, "model": frequency_on_model},
        published=every(
            below("correlation", -0.2, "correlation of log frequency with the distance of centroids"),
            above("strata", 0.0, "energy of frequent − of rare tokens"),
        ),
        control=every(
            below("split_half", 0.0, "the same correlation from split halves, equal n"),
            below("p", 0.01, "p of permuted frequencies, median over layers"),
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
            below("change_p", 0.01, "p under random subspaces, median over layers and steps"),
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
