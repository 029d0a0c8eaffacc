"""Evidence for A1 and A2 from the panel of modalities: how high the cosine is, and whether drift explains it."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from anisoscope.records import Record
from anisoscope.studies.claims.bench import Bench
from anisoscope.studies.claims.claim import LAB, MODEL, Estimate, Evidence
from anisoscope.studies.claims.given import ran_on
from anisoscope.studies.claims.looks import SHAPE
from anisoscope.studies.claims.panel import (
    CHARACTER,
    CONVOLUTION,
    TRANSFORMERS,
    Member,
    around_batch_norms,
    items_of,
    members,
)
from anisoscope.studies.claims.readings import RunView, difference, estimate, estimate_share, profile_records
from anisoscope.studies.claims.statistics import spearman, spearman_p

HIGH = 0.2  # a mean cosine from which states are called anisotropic
EXPLAINED = 0.8  # share of the cosine that drift explains
_SIGNIFICANT = 0.05


# --- A1 -----------------------------------------------------------------------------------------------------------


def cosine_evidence(bench: Bench) -> Evidence:
    """Cosine by modality, plain and beyond random initialisation, and how far convolutions stay below."""
    panel = members(bench)
    trained = [member for member in panel if not member.random]
    found = _below_transformers(trained)
    for modality in TRANSFORMERS:
        there = [member for member in trained if member.modality == modality]
        found |= _least(f"share_{modality}", [estimate_share(_high_layers, m.look) for m in there])
        risen = [estimate_share(_risen_layers, m.look, m.untrained) for m in there if m.untrained is not None]
        found |= _least(f"risen_{modality}", risen)
    scale, left_out = (MODEL, _not_given(panel)) if bench.given else (LAB, {})
    return Evidence(_ran(bench, panel), scale, found, left_out, tuple(_records(bench, panel)))


def _least(name: str, found: Sequence[Estimate]) -> dict[str, Estimate]:
    """The model that is least in favour speaks for its modality."""
    return {name: min(found, key=lambda each: each.value)} if found else {}


def _high_layers(reading: RunView) -> list[bool]:
    return [cosine > HIGH for cosine in reading.profile("mean_cosine")]


def _risen_layers(trained: RunView, untrained: RunView) -> list[bool]:
    pairs = zip(_quiet(trained), _quiet(untrained), strict=True)
    return [after - before > HIGH for after, before in pairs]


def _quiet(reading: RunView) -> list[float]:
    """Cosine across documents without flagged tokens; convolutions have none to flag."""
    metric = "mean_cosine_across_documents"
    return reading.profile(metric, "no-sink" if (metric, "no-sink") in reading.entries else "all")


def _below_transformers(panel: Sequence[Member]) -> dict[str, Estimate]:
    """The lowest transformer less the highest convolutional network: cosine, and what training added to it."""
    found: dict[str, Estimate] = {}
    for name, members_there in (("cnn_lower", panel), ("cnn_lower_risen", [m for m in panel if m.untrained])):
        values = {m.name: _cosine(m) if name == "cnn_lower" else _added(m) for m in members_there}
        high = [values[m.name] for m in members_there if m.modality != CONVOLUTION]
        low = [values[m.name] for m in members_there if m.modality == CONVOLUTION]
        if high and low:
            found[name] = difference(min(high, key=lambda e: e.value), max(low, key=lambda e: e.value))
    return found


def _cosine(member: Member) -> Estimate:
    return estimate(lambda reading: fmean(reading.profile("mean_cosine")), member.look)


def _added(member: Member) -> Estimate:
    assert member.untrained is not None
    return estimate(lambda after, before: fmean(_quiet(after)) - fmean(_quiet(before)), member.look, member.untrained)


def _not_given(panel: Sequence[Member]) -> dict[str, str]:
    there = {member.modality for member in panel}
    names = {f"{kind}_{modality}": modality for kind in ("share", "risen") for modality in TRANSFORMERS}
    names |= dict.fromkeys(("cnn_lower", "cnn_lower_risen"), CONVOLUTION)
    return {name: f"no model of {modality} was given" for name, modality in names.items() if modality not in there}


# --- A2 -----------------------------------------------------------------------------------------------------------


def drift_evidence(bench: Bench) -> Evidence:
    """Whether cosine and norm of the mean go together over layers, and what is left of the cosine without the mean."""
    panel = members(bench)
    if not bench.given:
        others = ("causal-masked", "encoder")
        panel += [Member(f"lab, {cell}", CHARACTER, bench.lab.last(cell, SHAPE)) for cell in others]
    looks = [member.look for member in panel if not member.random]
    explained = [estimate(_explained, look) for look in looks]
    together = Estimate.over([estimate(_together, look).value for look in looks], "models")
    found = {
        "significant": together.of_answers(len(looks)),
        "explained": Estimate.of_flags([each.value > EXPLAINED for each in explained], "models"),
        "least_explained": min(explained, key=lambda each: each.value),
    }
    scale = MODEL if bench.given else LAB
    return Evidence(_ran(bench, panel), scale, found, records=tuple(_records(bench, panel)))


def _together(reading: RunView) -> float:
    """1 where cosine and norm of the mean rise together over layers with p < .05, as published."""
    cosine, drift = reading.profile("mean_cosine"), reading.profile("drift_norm")
    return float(spearman(cosine, drift) > 0 and spearman_p(cosine, drift) < _SIGNIFICANT)


def _explained(reading: RunView) -> float:
    """1 − Σ centred cosine / Σ cosine, over layers."""
    return 1 - sum(reading.profile("mean_cosine_centred")) / max(sum(reading.profile("mean_cosine")), 1e-9)


# --- both ---------------------------------------------------------------------------------------------------------


def _ran(bench: Bench, panel: Sequence[Member]) -> str:
    random = [member.name for member in panel if member.random]
    note = f"; shown but not judged, for want of trained weights, on synthetic inputs: {', '.join(random)}"
    note = note if random else ""
    return (ran_on(bench.models) if bench.given else bench.said()) + note


def _records(bench: Bench, panel: Sequence[Member]) -> list[Record]:
    """Cosine, drift and centred cosine over layers, and the cosine around the norms of the convolutional network."""
    records = [
        record
        for member in panel
        for metric in ("mean_cosine", "drift_norm", "mean_cosine_centred")
        for record in profile_records(member.look, metric, of=f"{member.modality}: {member.name}")
    ]
    if bench.given:
        return records
    return records + [
        Record(f"resid.{place}", "cosine_around_norms", value, variant={"of": f"{side} BatchNorm"})
        for place, pair in enumerate(around_batch_norms(seed=0, items=items_of(bench)))
        for side, value in zip(("before", "after"), pair, strict=True)
    ]
