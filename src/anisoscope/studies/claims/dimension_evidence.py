"""Evidence for S2 and S3: intrinsic dimension over a training, and over layers beside that of a Gaussian cloud."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate
from statistics import fmean

from torch import nn

from anisoscope.measurement.request import MODEL_SAMPLE
from anisoscope.records import Record
from anisoscope.studies.claims.bench import Bench
from anisoscope.studies.claims.claim import LAB, MODEL, Estimate, Evidence
from anisoscope.studies.claims.given import ran_on
from anisoscope.studies.claims.looks import DIMENSION
from anisoscope.studies.claims.readings import Missing, RunView, Units, drawn, estimate, estimates, profile_records
from anisoscope.studies.claims.states import Batches, gaussian_dimension, states
from anisoscope.studies.claims.statistics import fall, peak, rise

HIGHEST = 60.0  # the dimension that decoders are said never to exceed
SCALE = 4  # the smallest k of GRIDE that near-copies do not spoil
_GAUSSIANS = 5  # draws of N(0, C) beside which a dimension is read
Statistic = Callable[[RunView], float]


# --- S2: over a training ------------------------------------------------------------------------------------------

_DIMENSIONS: dict[str, Statistic] = {
    "paper": lambda reading: fmean(reading.profile("two_nn_paper")),
    "two_nn": lambda reading: fmean(reading.profile("two_nn", "no-sink", neighbours="all")),
    "gride": lambda reading: fmean(e.value for e in reading.find("gride", "no-sink") if e.index == SCALE),
    "other_documents": lambda reading: fmean(reading.profile("two_nn", "no-sink", neighbours="other documents")),
}


def _rise_and_fall(whole: Sequence[Units], halves: Sequence[Sequence[Units]]) -> dict[str, Estimate]:
    """Peak less first and peak less last: of the highest point itself, then of a peak that other documents chose."""
    made: dict[str, Callable[[], Estimate]] = {}
    for move in (rise, fall):
        made[f"{move.__name__}_paper"] = partial(estimate, partial(_at_own_peak, move), *whole)
        for name in ("two_nn", "gride", "other_documents"):
            statistic = partial(_at_other_peak, move, _DIMENSIONS[name])
            made[f"{move.__name__}_{name}"] = partial(estimate, statistic, *halves[0], *halves[1])
    return estimates(made)


def _at_own_peak(move: Callable[[Sequence[float], int], float], *readings: RunView) -> float:
    curve = [_DIMENSIONS["paper"](reading) for reading in readings]
    return move(curve, peak(curve))


def _at_other_peak(move: Callable[[Sequence[float], int], float], dimension: Statistic, *readings: RunView) -> float:
    """The first half of the readings chooses the peak, the second is asked how high it stands."""
    curve = [dimension(reading) for reading in readings]
    steps = len(curve) // 2
    return move(curve[steps:], peak(curve[:steps]))


def _dimension_records(whole: Sequence[Units], steps: Sequence[int]) -> list[Record]:
    out = []
    for units, step in zip(whole, steps, strict=True):
        for name, dimension in _DIMENSIONS.items():
            try:
                out.append(drawn(estimate(dimension, units), "intrinsic_dimension", of=name, step=step))
            except Missing:
                continue
    return out


def dimension_on_lab(bench: Bench) -> Evidence:
    lab = bench.lab
    whole = lab.series("decoder", DIMENSION)
    found = _rise_and_fall(whole, [lab.series("decoder", DIMENSION, half) for half in (0, 1)])
    return Evidence(bench.said(), LAB, found, records=tuple(_dimension_records(whole, bench.size.looks)))


def dimension_on_checkpoints(bench: Bench) -> Evidence:
    whole = [model.look(DIMENSION) for model in bench.series]
    found = _rise_and_fall(whole, [[model.look(DIMENSION, half) for model in bench.series] for half in (0, 1)])
    records = _dimension_records(whole, [model.step for model in bench.series])
    return Evidence(ran_on(bench.series), MODEL, found, records=tuple(records))


# --- S3: over layers ----------------------------------------------------------------------------------------------


def _highest(metric: str, tokens: str = "all", **variant: str) -> Statistic:
    return lambda reading: max(reading.profile(metric, tokens, **variant))


def _low_dimension(look: Units, gaussian: Estimate, of: str) -> tuple[dict[str, Estimate], list[Record]]:
    found = estimates(
        {
            "highest_paper": lambda: estimate(_highest("two_nn_paper"), look),
            "highest": lambda: estimate(_highest("two_nn", "no-sink", neighbours="all"), look),
        }
    )
    records = profile_records(look, "two_nn_paper", of=of)
    records.append(drawn(gaussian, "two_nn_paper", of=f"N(0, C) beside {of}, highest layer"))
    return {**found, "gaussian": gaussian}, records


def _dimension_of_gaussian(model: nn.Module, batches: Batches, sample: int) -> Estimate:
    """What TwoNN reads of as many rows of N(0, C) as a look has, at the site where that is highest, over draws."""
    rows = states(model, batches, ["resid"])
    found = [
        Estimate.over([gaussian_dimension(x[:sample], seed) for seed in range(_GAUSSIANS)], "draws")
        for x in rows.values()
    ]
    return max(found, key=lambda each: each.value)


def low_on_lab(bench: Bench) -> Evidence:
    lab, size = bench.lab, bench.size
    gaussian = _dimension_of_gaussian(lab.model("decoder", 0, size.steps), lab.batches("decoder"), size.sample)
    found, records = _low_dimension(lab.last("decoder", DIMENSION), gaussian, "decoder")
    return Evidence(bench.said(), LAB, found, records=tuple(records))


def low_on_model(bench: Bench) -> Evidence:
    model = bench.models[0]
    opened = model.open()
    batches = model.batches(opened)
    tokens = accumulate(int(batch.counts.sum()) for batch in batches)
    enough = next((n for n, seen in enumerate(tokens, 1) if seen >= MODEL_SAMPLE), len(batches))
    gaussian = _dimension_of_gaussian(opened.model, batches[:enough], MODEL_SAMPLE)
    found, records = _low_dimension(model.look(DIMENSION), gaussian, model.name)
    return Evidence(ran_on([model]), MODEL, found, records=tuple(records))
