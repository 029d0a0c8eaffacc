"""Evidence for T5 and T6: frequent tokens, in models and in a simulation of curved clouds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import fmean, median

import torch
from torch import Tensor, nn

from anisoscope.records import Record
from anisoscope.studies.claims.bench import Bench
from anisoscope.studies.claims.claim import LAB, MODEL, SIMULATION, Estimate, Evidence
from anisoscope.studies.claims.given import groups_of, ran_on
from anisoscope.studies.claims.gradient_evidence import energy_of, gradients_of, gradients_of_model
from anisoscope.studies.claims.readings import RunView, Units, drawn, estimate, figure_records
from anisoscope.studies.claims.states import Batches, states
from anisoscope.studies.curvature import RADII, Surface, curvature_records, radius_slope, sample_surface, visible
from anisoscope.tangent.frequency import FrequencyDistance, frequency_distance, token_counts

_PINNING = 0.5  # γ: how far frequent tokens are pinned to the centre


# --- T5: frequency ------------------------------------------------------------------------------------------------


def _distances(model: nn.Module, batches: Batches, tokens: Tensor, length: int) -> list[FrequencyDistance]:
    """Log frequency against distance of centroids, layer by layer; blocks are windows."""
    counts = token_counts(tokens)
    key = torch.randperm(len(tokens), generator=torch.Generator().manual_seed(0))
    block = torch.arange(len(tokens)) // length
    rows = states(model, batches, ["resid"]).values()
    found = [frequency_distance(x, tokens, counts, key, block) for x in rows]
    return [each for each in found if each is not None]


def _frequency(
    units: Units, distances: Sequence[Sequence[FrequencyDistance]], of: str
) -> tuple[dict[str, Estimate], list[Record]]:
    per_unit = {
        "correlation": [fmean(layer.pearson for layer in unit) for unit in distances],
        "split_half": [fmean(layer.split_half for layer in unit) for unit in distances],
        "p": [median(layer.p for layer in unit) for unit in distances],
    }

    def strata(rows: str) -> Callable[[RunView], float]:
        return lambda r: (
            energy_of(r, rows=rows, stratum="input.frequent") - energy_of(r, rows=rows, stratum="input.rare")
        )

    found = {name: Estimate.over(values, units.unit) for name, values in per_unit.items()}
    found |= {f"strata{end}": estimate(strata(rows), units) for end, rows in (("", "plain"), ("_unit", "unit"))}
    records = [
        *(record for record in figure_records(units, ("gradient_energy",), of=of) if "stratum" in record.variant),
        *(drawn(found[name], "frequency_correlation", of=f"{of}, {name}") for name in ("correlation", "split_half")),
        Record("vectors", "frequency_correlation", -0.5, variant={"of": "decoders, published"}),
    ]
    return found, records


def frequency_on_lab(bench: Bench) -> Evidence:
    lab, last = bench.lab, bench.size.steps
    batches = lab.batches("decoder")
    ids = lab.held_out("decoder")
    distances = [
        _distances(lab.model("decoder", seed, last), batches, ids.flatten(), ids.shape[1]) for seed in range(lab.seeds)
    ]
    found, records = _frequency(gradients_of(lab, "decoder", last), distances, "decoder")
    return Evidence(bench.said(), LAB, found, records=tuple(records))


def frequency_on_model(bench: Bench) -> Evidence:
    model = bench.models[0]
    opened = model.open()
    distances = []
    for group in groups_of(model.batches(opened)):
        tokens = torch.cat([batch.token[batch.counts] for batch in group])
        distances.append(_distances(opened.model, group, tokens, 512))
    found, records = _frequency(gradients_of_model(model), distances, model.name)
    return Evidence(ran_on([model]), MODEL, found, records=tuple(records))


# --- T6: the simulation -------------------------------------------------------------------------------------------


def curvature_evidence(bench: Bench) -> Evidence:
    """Slope, bias and pinning, paired by seed; tokens that are drawn more often but not pinned are judged apart."""
    seeds = max(4, bench.size.draws)
    surface = Surface(tokens=1000 if bench.size.name == "tiny" else Surface.tokens)
    bench.lab.say("curved clouds")

    def snr(seed: int, **settings: float) -> tuple[float, float]:
        there = replace(surface, **settings)  # type: ignore[arg-type]
        seen = visible(sample_surface(there, seed), surface.tangent)
        return seen.snr, seen.effective

    even, pinned, plain = (
        [snr(seed, zipf=s, pinning=gamma) for seed in range(seeds)]
        for s, gamma in ((0.0, _PINNING), (1.0, _PINNING), (1.0, 0.0))
    )
    flat = [snr(seed, zipf=0.0) for seed in range(seeds)]
    fewer = [snr(seed, zipf=1.0, tokens=max(64, round(effective)))[0] for seed, (_, effective) in enumerate(pinned)]
    found = {
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
    ran = (
        f"{seeds} simulated clouds of {surface.tokens} tokens a setting; judged apart, reweighting without pinning "
        f"drops it by {found['reweighting']}"
    )
    return Evidence(ran, SIMULATION, found, records=tuple(records))
