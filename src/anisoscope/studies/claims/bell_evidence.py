"""Evidence for S1 and S6: the shape of λ1/Σλ over the states of decoders and encoders."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from anisoscope.records import Record
from anisoscope.studies.claims.claim import Evidence
from anisoscope.studies.claims.curve_shapes import bell, peak_depth, span
from anisoscope.studies.claims.estimate import Estimate
from anisoscope.studies.claims.gates import STATES
from anisoscope.studies.claims.given_models import GivenModel
from anisoscope.studies.claims.measurements import BELL, REMOVAL, SUBLAYERS, TYLER, MeasurementKind
from anisoscope.studies.claims.run_view import (
    Missing,
    RunView,
    Units,
    estimate,
    estimates,
    figure_records,
    least_favourable,
    profile_records,
)
from anisoscope.studies.claims.subjects import Subject, Subjects, SubjectSource

TOP_SHARE, TYLER_SHARE = "spectral_anisotropy", "tyler_share"
Statistic = Callable[[RunView], float]
Shape = Callable[[Sequence[float]], float]
_VERSIONS = ("", "_no_sink", "_tyler")  # of a quantity: all tokens, without flagged ones, of Tyler's matrix
NO_TYLER = "the commonest token has more rows than Tyler's matrix allows in one direction, 1/d"

# λ1/Σλ over hidden states as in the paper's figures, the embedding first; None if no source gives a value.
_FIGURES: dict[str, tuple[float | None, ...]] = {
    "GPT-2, published": (0.06, 0.30, 0.97, *[0.98] * 9, 0.83),
    "BERT, published, least": (0.01,) * 13,
    "BERT, published, most": (0.04,) * 13,
    "OPT-125m, published": (0.98, *[None] * 5, 0.995, *[None] * 5, 0.96),
    "Llama-2-7B, published": (*[None] * 11, *[1.0] * 11, *[None] * 10, 0.06),
}


def of_profile(shape: Shape, metric: str, tokens: str = "all") -> Statistic:
    """Return a function from the view of a run to a shape of its profile over hidden states."""
    return lambda view: shape(view.profile(metric, tokens))


# --- S1, S6: the bell ---------------------------------------------------------------------------------------------


def bell_evidence(subjects: SubjectSource, kind: MeasurementKind = SUBLAYERS) -> Evidence:
    """Gather the bell of decoders and the range of encoders over layers (S1).

    Args:
        subjects: Where the models come from.
        kind: The measurement of λ1/Σλ; `BELL` also has the removal curve of every model.
    """
    models = subjects.models("decoder", "encoder")
    each = [_shapes(model, kind) for model in models]
    records = [record for model in models for record in _profiles(model, kind)]
    for model in models if kind is BELL else models[:1]:
        units = model.measure(BELL if kind is BELL else REMOVAL)
        records += figure_records(units, REMOVAL.metrics, of=model.name)
    depths = [_depth(model.measure(kind)) for model in models]
    records += published_profiles(max(depths))
    highest = [f"{name}{version}" for name in ("range", "below_end") for version in _VERSIONS]
    quantities = least_favourable(each, highest=highest)
    quantities[STATES.name] = Estimate.exact(min(depths))
    left_out = _not_given(models)
    if kind is SUBLAYERS:
        left_out |= {f"{name}_tyler": NO_TYLER for name in ("bell", "range", "below_end")}
    return subjects.evidence(models, quantities, records, left_out=left_out)


def _shapes(model: Subject, kind: MeasurementKind) -> dict[str, Estimate]:
    """Shapes of the profile of all tokens, without flagged tokens, and of Tyler's matrix."""
    shapes = {"bell": bell, "below_end": distance_from_middle} if model.decoder else {"range": span}
    sources = {
        "": (kind, TOP_SHARE, "all"),
        "_no_sink": (kind, TOP_SHARE, "no-sink"),
        "_tyler": (TYLER, TYLER_SHARE, "no-sink"),
    }
    if kind is SUBLAYERS:
        del sources["_tyler"]
    return estimates(
        {
            f"{name}{version}": partial(_shape_of, model, shape, *source)
            for name, shape in shapes.items()
            for version, source in sources.items()
        }
    )


def _shape_of(model: Subject, shape: Shape, kind: MeasurementKind, metric: str, tokens: str) -> Estimate:
    return estimate(of_profile(shape, metric, tokens), model.measure(kind))


def distance_from_middle(profile: Sequence[float]) -> float:
    """Distance of the highest state from the middle of the depth, as a share of the depth: at most 1/2."""
    return abs(peak_depth(profile) - 0.5)


def _profiles(model: Subject, kind: MeasurementKind) -> list[Record]:
    """λ1/Σλ of one model over hidden states with and without flagged tokens, and that of Tyler's matrix."""
    records: list[Record] = []
    for measured, metric, tokens in (
        (kind, TOP_SHARE, "all"),
        (kind, TOP_SHARE, "no-sink"),
        (TYLER, TYLER_SHARE, "no-sink"),
    ):
        try:
            records += profile_records(model.measure(measured), metric, of=model.name, tokens=tokens)
        except Missing:
            continue
    return records


def _depth(units: Units) -> int:
    return len((units.whole or units.parts[0]).profile(TOP_SHARE))


def published_profiles(depth: int) -> list[Record]:
    """The published profiles, resampled to the depth of the measured models."""
    records = []
    for name, values in _FIGURES.items():
        for index in range(depth):
            value = values[round(index * (len(values) - 1) / (depth - 1))]
            if value is not None:
                site = "embed" if index == 0 else f"resid.{index - 1}"
                records.append(Record(site, TOP_SHARE, value, variant={"of": name}, note="at equal relative depth"))
    return records


def _not_given(models: Sequence[Subject]) -> dict[str, str]:
    absent = {
        name: reason
        for name, decoder, reason in (("bell", True, "no decoder was given"), ("range", False, "no encoder was given"))
        if all(model.decoder != decoder for model in models)
    }
    if "bell" in absent:
        absent["below_end"] = absent["bell"]
    return {f"{name}{version}": reason for name, reason in absent.items() for version in _VERSIONS}


def bell_on_models(subjects: Subjects) -> Evidence:
    """Gather the same from models of the user, with the removal curve and the mean over batches of each (S1)."""
    evidence = bell_evidence(subjects, BELL)
    means = [record for model in subjects.given_models for record in _means_over_batches(model)]
    return replace(evidence, records=(*evidence.records, *means))


def _means_over_batches(model: GivenModel) -> list[Record]:
    """The mean over batches with its error, as published. The rules use the pooled values."""
    of = f"{model.name}, mean over batches of {model.size.batch_tokens:,} tokens"
    return [
        replace(record, variant={"of": of}, run="")
        for record in model.run(BELL).records()
        if record.metric == TOP_SHARE and record.variant.get("of batches") == "mean"
    ]


def mask_evidence(subjects: SubjectSource) -> Evidence:
    """Gather the bells of models that differ in the mask and in the objective (S6)."""
    models = subjects.models("decoder", "causal-masked", "encoder")
    units = {model.name: model.measure(SUBLAYERS) for model in models}
    height = of_profile(bell, TOP_SHARE)

    def difference_of_bells(a: str, b: str) -> Estimate:
        return estimate(lambda one, other: height(one) - height(other), units[a], units[b])

    quantities = {
        "causal": difference_of_bells("decoder", "encoder"),
        "mask_alone": difference_of_bells("causal-masked", "encoder"),
        STATES.name: Estimate.exact(min(map(_depth, units.values()))),
    }
    records = [record for cell, each in units.items() for record in profile_records(each, TOP_SHARE, of=cell)]
    return subjects.evidence(models, quantities, records)
