"""Evidence for S2 and S3: intrinsic dimension over training, and over layers compared with Gaussian rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from statistics import fmean

from anisoscope.records import Record
from anisoscope.studies.claims.claim import Evidence
from anisoscope.studies.claims.curve_shapes import fall, peak, rise
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


def dimension_evidence(subjects: SubjectSource) -> Evidence:
    """Gather the rise and fall of the intrinsic dimension over training (S2)."""
    models = subjects.checkpoints("decoder")
    whole = [model.measure(DIMENSION) for model in models]
    halves = [[model.measure(DIMENSION, half) for model in models] for half in (0, 1)]
    records = _dimension_records(whole, [model.step for model in models])
    return subjects.evidence(models, _rise_and_fall(whole, halves), records)


def _rise_and_fall(whole: Sequence[Units], halves: Sequence[Sequence[Units]]) -> dict[str, Estimate]:
    """Peak minus first and peak minus last value.

    The published quantity takes the highest point of the same curve. The controls take the peak of one half of the
    documents and evaluate it on the other half.
    """
    makers: dict[str, Callable[[], Estimate]] = {}
    for move in (rise, fall):
        makers[f"{move.__name__}_paper"] = partial(estimate, partial(_at_same_peak, move), *whole)
        for name in ("two_nn", "gride", "other_documents"):
            statistic = partial(_at_other_peak, move, _DIMENSIONS[name])
            makers[f"{move.__name__}_{name}"] = partial(estimate, statistic, *halves[0], *halves[1])
    return estimates(makers)


def _at_same_peak(move: Callable[[Sequence[float], int], float], *views: RunView) -> float:
    curve = [_DIMENSIONS["paper"](view) for view in views]
    return move(curve, peak(curve))


def _at_other_peak(move: Callable[[Sequence[float], int], float], dimension: Statistic, *views: RunView) -> float:
    """The first half of the views chooses the peak, the second half gives the value there."""
    curve = [dimension(view) for view in views]
    steps = len(curve) // 2
    return move(curve[steps:], peak(curve[:steps]))


def _dimension_records(whole: Sequence[Units], steps: Sequence[int]) -> list[Record]:
    records = []
    for units, step in zip(whole, steps, strict=True):
        for name, dimension in _DIMENSIONS.items():
            try:
                value = estimate(dimension, units)
            except Missing:
                continue
            records.append(estimate_record(value, "intrinsic_dimension", of=name, step=step))
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
