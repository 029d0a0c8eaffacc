"""Evidence for T6: curvature that frequent tokens hide, in simulated surfaces and in trained models."""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import fmean

import torch
from torch import Tensor, nn

from anisoscope.records import Record
from anisoscope.studies.claims.claim import Evidence
from anisoscope.studies.claims.conditions import gate
from anisoscope.studies.claims.estimate import Estimate
from anisoscope.studies.claims.frequency_evidence import tokens_of
from anisoscope.studies.claims.gates import TYPES
from anisoscope.studies.claims.hidden_states import Batches, states, windows
from anisoscope.studies.claims.pinned_types import (
    EACH,
    curvature_by_frequency,
    drop,
    radius_correlation,
    spaced_occurrences,
)
from anisoscope.studies.claims.run_view import Missing, estimate_record
from anisoscope.studies.claims.subjects import LabModel, Subject, Subjects
from anisoscope.studies.curvature import RADII, Surface, curvature_records, radius_slope, sample_surface, visible

VISIBLE = gate("visible", 0.05, "signal-to-noise of curvature within types, mean of rare and frequent ones")
_PINNING = 0.5  # γ of the simulation: how far frequent tokens are pinned to the centre
_TRAINING_WINDOWS = 512  # of the training text, without overlap
_BATCH = 64  # windows per forward pass
_MASSIVE = 5.0  # median norms; longer rows are left out, as by the token policy no-sink


def pinning_evidence(subjects: Subjects) -> Evidence:
    """Gather the simulation of the published line, and what trained models say about pinned types (T6)."""
    simulated, records, note = _simulation(subjects)
    model = subjects.models("words")[0]
    try:
        units = _units(model)
    except Missing as missing:  # the simulation needs no text
        left_out = dict.fromkeys(("radius", "local_drop", VISIBLE.name, TYPES.name), str(missing))
        return subjects.evidence([model], simulated, records, left_out=left_out, note=note)
    unit = "seeds" if isinstance(model, LabModel) else "groups of documents"
    quantities = {
        **simulated,
        "radius": Estimate.over([fmean(layer.radius for layer in layers) for layers in units], unit),
        "local_drop": Estimate.over([_drop(layers) for layers in units], unit),
        VISIBLE.name: Estimate.over([fmean((layer.rare + layer.frequent) / 2 for layer in u) for u in units], unit),
        TYPES.name: Estimate.exact(min(layer.types for layers in units for layer in layers)),
    }
    records += _layer_records(units, model.name, unit)
    if isinstance(model, LabModel):
        records += _layer_records(_units(model.lab.at_step(model.name, 0)), "words before training", unit)
    return subjects.evidence([model], quantities, records, note=note)


@dataclass(frozen=True)
class _LayerOfTypes:
    """What one layer says about pinned types."""

    site: str
    radius: float  # correlation of log frequency with the log radius of a type
    rare: float  # signal-to-noise of curvature within rare types
    frequent: float
    types: int


def _drop(layers: list[_LayerOfTypes]) -> float:
    return drop(fmean(layer.rare for layer in layers), fmean(layer.frequent for layer in layers))


def _units(model: Subject) -> list[list[_LayerOfTypes]]:
    """The layers of each seed on the training text, which has more types, or of each group of documents."""
    if not isinstance(model, LabModel):
        return model.per_unit(_layers)
    text = model.lab.data(model.name).spread_windows(_TRAINING_WINDOWS, model.window)
    batches = [{"input_ids": part} for part in text.split(_BATCH)]
    seeds = model.lab.seeds_of(model.name)
    return [_layers(model.lab.model(model.name, seed, model.step), batches, seed) for seed in seeds]


def _layers(model: nn.Module, batches: Batches, _number: int) -> list[_LayerOfTypes]:
    tokens = torch.cat([tokens_of(batch) for batch in batches])  # (n,)
    rows = states(model, batches, ["resid"])
    chosen = spaced_occurrences(tokens, _ordinary(list(rows.values()), windows(batches)))
    if not chosen.enough:
        raise Missing(
            f"Only {len(chosen.index)} token types occur in {EACH} different passages, too few to compare. "
            "Give a longer text."
        )
    layers = []
    for site, x in rows.items():
        by_type = x.double()[chosen.index]  # (types, occurrences, d)
        radius = radius_correlation(by_type, chosen.frequency)
        rare, frequent = curvature_by_frequency(by_type, chosen.frequency)
        layers.append(_LayerOfTypes(site, radius, rare, frequent, len(chosen.index)))
    return layers


def _ordinary(rows: list[Tensor], window: Tensor) -> Tensor:
    """Mark tokens that are neither the first of their window nor massive at any site, (n,)."""
    first = torch.cat((torch.tensor([True]), window[1:] != window[:-1]))
    norms = [x.norm(dim=1) for x in rows]
    return ~first & ~torch.stack([norm > _MASSIVE * norm.median() for norm in norms]).any(0)


def _layer_records(units: list[list[_LayerOfTypes]], of: str, unit: str) -> list[Record]:
    records = []
    for number, layer in enumerate(units[0]):
        for metric, name, values in (
            ("radius_correlation", of, [each[number].radius for each in units]),
            ("local_curvature", f"{of}: rare types", [each[number].rare for each in units]),
            ("local_curvature", f"{of}: frequent types", [each[number].frequent for each in units]),
        ):
            records.append(estimate_record(Estimate.over(values, unit), metric, of=name, site=layer.site))
    return records


# --- the simulation -----------------------------------------------------------------------------------------------


def _simulation(subjects: Subjects) -> tuple[dict[str, Estimate], list[Record], str]:
    """Slope and bias, paired by seed, from simulated surfaces; and what was run.

    Pinning at equal n_eff, and tokens that are drawn more often but not pinned, are reported and not judged.
    """
    seeds = max(4, subjects.size.draws)
    surface = Surface(tokens=1000 if subjects.size.name == "tiny" else Surface.tokens)
    subjects.lab.on_status("curved surfaces")

    def snr(seed: int, **settings: float) -> tuple[float, float]:
        changed = replace(surface, **settings)  # type: ignore[arg-type]
        seen = visible(sample_surface(changed, seed), surface.tangent)
        return seen.snr, seen.effective

    even, pinned, plain = (
        [snr(seed, zipf=s, pinning=gamma) for seed in range(seeds)]
        for s, gamma in ((0.0, _PINNING), (1.0, _PINNING), (1.0, 0.0))
    )
    flat = [snr(seed, zipf=0.0) for seed in range(seeds)]
    fewer = [snr(seed, zipf=1.0, tokens=max(64, round(effective)))[0] for seed, (_, effective) in enumerate(pinned)]
    quantities = {
        "order": Estimate.over([radius_slope(surface, RADII, seed) for seed in range(seeds)]),
        "biased": Estimate.over([1 - b / a for (a, _), (b, _) in zip(even, pinned, strict=True)]),
        "pinning": Estimate.over([1 - a / b for (a, _), b in zip(pinned, fewer, strict=True)]),
        "reweighting": Estimate.over([1 - b / a for (a, _), (b, _) in zip(flat, plain, strict=True)]),
    }
    records = [
        replace(record, variant={"of": f"s = {record.variant['s']:g}, γ = {record.variant['gamma']:g}"})
        for record in curvature_records(surface, seeds=seeds)
        if {"s", "gamma"} <= record.variant.keys() and "kappa" not in record.variant
    ]
    note = (
        f"published line: {seeds} simulated surfaces of {surface.tokens} tokens per setting. Shown and not judged: in "
        f"the simulation, pinning lowers the signal-to-noise by {quantities['pinning']} at equal n_eff, reweighting "
        f"without pinning by {quantities['reweighting']}"
    )
    return quantities, records, note
