"""Evidence for S2 and S3: intrinsic dimension over training, and over layers compared with Gaussian rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from statistics import fmean

from anisoscope.records import Record
from anisoscope.studies.claims.claim import Evidence
from anisoscope.studies.claims.curve_shapes import rise_and_fall
from anisoscope.studies.claims.estimate import Estimate
from anisoscope.studies.claims.hidden_states import gaussian_dimension, states
from anisoscope.studies.claims.measurements import DIMENSION
from anisoscope.studies.claims.run_view import (
    Missing,
    RunView,
    Units,
    estimate,
    estimate_record,
    estimates,
    profile_records,
)
from anisoscope.studies.claims.subjects import Subject, SubjectSource

HIGHEST = 60.0  # decoders never exceed this dimension, according to the paper
SCALE = 4  # the smallest k of GRIDE that near-duplicates do not distort
_GAUSSIANS = 5  # draws of N(0, C) that a dimension is compared with
Statistic = Callable[[RunView], float]


# --- S2: over training --------------------------------------------------------------------------------------------

_DIMENSIONS: dict[str, Statistic] = {
    "paper": lambda view: fmean(view.profile("two_nn_paper")),
    "two_nn": lambda view: fmean(view.profile("two_nn", "no-sink", neighbours="all")),
    "gride": lambda view: fmean(e.value for e in view.find("gride", "no-sink") if e.index == SCALE),
    "other_documents": lambda view: fmean(view.profile("two_nn", "no-sink", neighbours="other documents")),
}


_WORDS = {
    "paper": "as published",
    "two_nn": "duplicates removed",
    "gride": f"wider neighbourhoods (GRIDE, k = {SCALE})",
    "other_documents": "neighbours in other documents",
}


def dimension_evidence(subjects: SubjectSource) -> Evidence:
    """Gather the rise and fall of the intrinsic dimension over training, after the transient (S2)."""
    models = subjects.checkpoints("decoder", settled=True)
    whole = [model.measure(DIMENSION) for model in models]
    records = _dimension_records(whole, [model.step for model in models])
    if whole[0].whole is None:
        quantities = _over_seeds(whole)
    else:
        quantities = _over_documents([[model.measure(DIMENSION, half) for model in models] for half in (0, 1)])
    note = f"steps {', '.join(str(model.step) for model in models)}"
    return subjects.evidence(models, quantities, records, note=note)


def _over_seeds(series: Sequence[Units]) -> dict[str, Estimate]:
    """Peak minus first and minus last value of each seed, at the peak that the other seeds have."""
    quantities: dict[str, Estimate] = {}
    for name, dimension in _DIMENSIONS.items():
        try:
            by_step = [[dimension(view) for view in each.parts] for each in series]
        except Missing:
            continue
        moves = rise_and_fall(list(zip(*by_step, strict=True)))
        quantities[f"rise_{name}"] = Estimate.over([up for up, _ in moves], series[0].unit)
        quantities[f"fall_{name}"] = Estimate.over([down for _, down in moves], series[0].unit)
    return quantities


def _over_documents(halves: Sequence[Sequence[Units]]) -> dict[str, Estimate]:
    """The same for one training: one half of the documents has the peak, the other half is measured there."""
    makers: dict[str, Callable[[], Estimate]] = {}
    for number, move in enumerate(("rise", "fall")):
        for name, dimension in _DIMENSIONS.items():
            makers[f"{move}_{name}"] = partial(
                estimate, partial(_at_other_peak, number, dimension), *halves[0], *halves[1]
            )
    return estimates(makers)


def _at_other_peak(number: int, dimension: Statistic, *views: RunView) -> float:
    curve = [dimension(view) for view in views]
    half = len(curve) // 2
    return rise_and_fall([curve[:half], curve[half:]])[1][number]


def _dimension_records(whole: Sequence[Units], steps: Sequence[int]) -> list[Record]:
    records = []
    for units, step in zip(whole, steps, strict=True):
        for name, dimension in _DIMENSIONS.items():
            try:
                value = estimate(dimension, units)
            except Missing:
                continue
            records.append(estimate_record(value, "intrinsic_dimension", of=_WORDS[name], step=step))
    return records


# --- S3: over layers ----------------------------------------------------------------------------------------------


def low_dimension_evidence(subjects: SubjectSource) -> Evidence:
    """Gather the highest intrinsic dimension over layers, and that of Gaussian rows (S3)."""
    model = subjects.models("decoder")[0]
    gaussian = _dimension_of_gaussian(model)
    units = model.measure(DIMENSION)
    quantities = estimates(
        {
            "highest_paper": lambda: estimate(_highest("two_nn_paper"), units),
            "highest": lambda: estimate(_highest("two_nn", "no-sink", neighbours="all"), units),
        }
    )
    records = profile_records(units, "two_nn_paper", of=model.name)
    records.append(estimate_record(gaussian, "two_nn_paper", of=f"N(0, C) compared with {model.name}, highest layer"))
    return subjects.evidence([model], {**quantities, "gaussian": gaussian}, records)


def _highest(metric: str, tokens: str = "all", **variant: str) -> Statistic:
    return lambda view: max(view.profile(metric, tokens, **variant))


def _dimension_of_gaussian(subject: Subject) -> Estimate:
    """TwoNN of as many rows of N(0, C) as a measurement samples, at the site where it is highest, over draws."""
    model, batches, sample = subject.example()
    rows = states(model, batches, ["resid"])
    values = [
        Estimate.over([gaussian_dimension(x[:sample], seed) for seed in range(_GAUSSIANS)], "draws")
        for x in rows.values()
    ]
    return max(values, key=lambda each: each.value)
