"""Evidence for A1 and A2 from a panel of modalities: how high the cosine is, and whether drift explains it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean

import numpy as np

from anisoscope.records import Record
from anisoscope.stats.inference import spearman, spearman_p
from anisoscope.studies.claims.claim import LAB, MODEL, Evidence
from anisoscope.studies.claims.estimate import Estimate
from anisoscope.studies.claims.given_models import describe_models
from anisoscope.studies.claims.measurements import SHAPE
from anisoscope.studies.claims.modality_panel import (
    CHARACTER,
    CONVOLUTION,
    TRANSFORMERS,
    PanelMember,
    around_batch_norms,
    items_of,
    members,
)
from anisoscope.studies.claims.run_view import (
    RunView,
    Units,
    difference,
    estimate,
    estimate_record,
    estimate_share,
    profile_records,
)
from anisoscope.studies.claims.subjects import Subjects

HIGH = 0.2  # states with a higher mean cosine are called anisotropic
EXPLAINED = 0.8  # share of the cosine that drift explains
_SIGNIFICANT = 0.05


# --- A1 -----------------------------------------------------------------------------------------------------------


def cosine_evidence(subjects: Subjects) -> Evidence:
    """Gather the cosine by modality, as it is and compared with random weights, and that of convolutions (A1)."""
    panel = members(subjects)
    scale, left_out = (MODEL, absent_modalities(panel)) if subjects.given else (LAB, {})
    trained = {member.modality for member in panel if not member.random and member.modality in TRANSFORMERS}
    quantities = {**cosine_quantities(panel), "modalities": Estimate.exact(len(trained))}
    return Evidence(_description(subjects, panel), scale, quantities, left_out, tuple(_records(subjects, panel)))


def cosine_quantities(panel: Sequence[PanelMember]) -> dict[str, Estimate]:
    """Return the quantities of A1; members with random weights are left out."""
    trained = [member for member in panel if not member.random]
    quantities = _below_transformers(trained)
    for modality in TRANSFORMERS:
        of_modality = [member for member in trained if member.modality == modality]
        quantities |= _least(f"share_{modality}", [estimate_share(_high_layers, m.measured) for m in of_modality])
        pairs = [(m.measured, m.untrained) for m in of_modality if m.untrained is not None]
        quantities |= _least(f"risen_{modality}", [estimate_share(_risen_layers, *pair) for pair in pairs])
    return quantities


def _least(name: str, values: Sequence[Estimate]) -> dict[str, Estimate]:
    """The lowest value: a claim must hold for every model of a modality."""
    return {name: min(values, key=lambda each: each.value)} if values else {}


def _high_layers(view: RunView) -> list[bool]:
    return [cosine > HIGH for cosine in view.profile("mean_cosine")]


def _risen_layers(trained: RunView, untrained: RunView) -> list[bool]:
    pairs = zip(_without_flagged(trained), _without_flagged(untrained), strict=True)
    return [after - before > HIGH for after, before in pairs]


def _without_flagged(view: RunView) -> list[float]:
    """Cosine across documents without flagged tokens; convolutions have no tokens to flag."""
    metric = "mean_cosine_across_documents"
    return view.profile(metric, "no-sink" if (metric, "no-sink") in view.entries else "all")


def _below_transformers(panel: Sequence[PanelMember]) -> dict[str, Estimate]:
    """The lowest transformer minus the highest convolutional network: the cosine, and what training added to it."""
    quantities: dict[str, Estimate] = {}
    for name, compared in (("cnn_lower", panel), ("cnn_lower_risen", [m for m in panel if m.untrained])):
        values = {m.name: _cosine(m) if name == "cnn_lower" else _added(m) for m in compared}
        high = [values[m.name] for m in compared if m.modality != CONVOLUTION]
        low = [values[m.name] for m in compared if m.modality == CONVOLUTION]
        if high and low:
            quantities[name] = difference(min(high, key=lambda e: e.value), max(low, key=lambda e: e.value))
    return quantities


def _cosine(member: PanelMember) -> Estimate:
    return estimate(lambda view: fmean(view.profile("mean_cosine")), member.measured)


def _added(member: PanelMember) -> Estimate:
    assert member.untrained is not None
    return estimate(
        lambda after, before: fmean(_without_flagged(after)) - fmean(_without_flagged(before)),
        member.measured,
        member.untrained,
    )


def absent_modalities(panel: Sequence[PanelMember]) -> dict[str, str]:
    """Return the quantities of A1 that need a modality without a model, with the reason."""
    present = {member.modality for member in panel}
    names = {f"{kind}_{modality}": modality for kind in ("share", "risen") for modality in TRANSFORMERS}
    names |= dict.fromkeys(("cnn_lower", "cnn_lower_risen"), CONVOLUTION)
    reasons = {name: f"no model of {modality} was given" for name, modality in names.items() if modality not in present}
    return {**reasons, "modalities": "only the modalities of the given models are judged"} if reasons else {}


# --- A2 -----------------------------------------------------------------------------------------------------------


def drift_evidence(subjects: Subjects) -> Evidence:
    """Gather whether cosine and norm of the mean correlate over layers, and the cosine without the mean (A2)."""
    panel = members(subjects)
    if not subjects.given:
        others = ("causal-masked", "encoder")
        panel += [PanelMember(f"lab, {cell}", CHARACTER, subjects.lab.last(cell).measure(SHAPE)) for cell in others]
    measured = [member.measured for member in panel if not member.random]
    explained = [estimate(_explained, units) for units in measured]
    together = Estimate.over([estimate(_together, units).value for units in measured], "models")
    quantities = {
        "significant": together.of_answers(len(measured)),
        "explained": Estimate.of_flags([each.value > EXPLAINED for each in explained], "models"),
        "least_explained": min(explained, key=lambda each: each.value),
        "states_of_models": Estimate.exact(min(len(_whole(units).profile("mean_cosine")) for units in measured)),
    }
    scale = MODEL if subjects.given else LAB
    records = [*_records(subjects, panel), *_correlations(panel)]
    return Evidence(_description(subjects, panel), scale, quantities, records=tuple(records))


def _whole(units: Units) -> RunView:
    return units.whole or units.parts[0]


def _correlations(panel: Sequence[PanelMember]) -> list[Record]:
    """Both published correlations of cosine and norm of the mean over layers, for every trained model."""
    return [
        estimate_record(estimate(_over_layers(kind), member.measured), "drift_correlation", of=f"{member.name}, {name}")
        for member in panel
        if not member.random
        for name, kind in (("Spearman", spearman), ("Pearson", pearson))
    ]


def _over_layers(kind: Callable[[Sequence[float], Sequence[float]], float]) -> Callable[[RunView], float]:
    return lambda view: kind(view.profile("mean_cosine"), view.profile("drift_norm"))


def pearson(a: Sequence[float], b: Sequence[float]) -> float:
    """Return Pearson's correlation; 0 if one of the two does not vary.

    >>> round(pearson([1.0, 2.0, 3.0], [2.0, 4.0, 6.0]), 6)
    1.0
    """
    x, y = (np.asarray(each, dtype=float) - fmean(each) for each in (a, b))
    return float(x @ y / max(float(np.linalg.norm(x) * np.linalg.norm(y)), 1e-300))


def _together(view: RunView) -> float:
    """1 if cosine and norm of the mean rise together over layers with p < .05, as published; else 0."""
    cosine, drift = view.profile("mean_cosine"), view.profile("drift_norm")
    return float(spearman(cosine, drift) > 0 and spearman_p(cosine, drift) < _SIGNIFICANT)


def _explained(view: RunView) -> float:
    """1 − Σ centred cosine / Σ cosine, over layers."""
    return 1 - sum(view.profile("mean_cosine_centred")) / max(sum(view.profile("mean_cosine")), 1e-9)


# --- both ---------------------------------------------------------------------------------------------------------


def _description(subjects: Subjects, panel: Sequence[PanelMember]) -> str:
    random = [member.name for member in panel if member.random]
    note = f"; shown but not judged, because their weights are random: {', '.join(random)}"
    note = note if random else ""
    return (describe_models(subjects.given_models) if subjects.given else subjects.description()) + note


def _records(subjects: Subjects, panel: Sequence[PanelMember]) -> list[Record]:
    """Cosine, drift and centred cosine over layers, and the cosine around the norms of the convolutional network."""
    records = [
        record
        for member in panel
        for metric in ("mean_cosine", "drift_norm", "mean_cosine_centred")
        for record in profile_records(member.measured, metric, of=f"{member.modality}: {member.name}")
    ]
    if subjects.given:
        return records
    return records + [
        Record(f"resid.{index}", "cosine_around_norms", value, variant={"of": f"{side} BatchNorm"})
        for index, pair in enumerate(around_batch_norms(seed=0, items=items_of(subjects)))
        for side, value in zip(("before", "after"), pair, strict=True)
    ]
