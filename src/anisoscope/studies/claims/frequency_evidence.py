"""Evidence for T5 and T6: frequent tokens, in models and in a simulation of curved surfaces."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from statistics import fmean, median

import torch
from torch import Tensor, nn

from anisoscope.data.token_table import Batch
from anisoscope.records import Record
from anisoscope.studies.claims.claim import SIMULATION, Evidence
from anisoscope.studies.claims.estimate import Estimate
from anisoscope.studies.claims.gradient_evidence import energy_of, gradients_of
from anisoscope.studies.claims.hidden_states import Batches, states
from anisoscope.studies.claims.run_view import RunView, estimate, estimate_record, figure_records
from anisoscope.studies.claims.subjects import Subjects, SubjectSource
from anisoscope.studies.curvature import RADII, Surface, curvature_records, radius_slope, sample_surface, visible
from anisoscope.tangent.frequency import FrequencyDistance, frequency_distance, token_counts

_PINNING = 0.5  # γ: how far frequent tokens are pinned to the centre


# --- T5: frequency ------------------------------------------------------------------------------------------------


def frequency_evidence(subjects: SubjectSource) -> Evidence:
    """Gather the relation of a token's frequency with its distance from the centre and its gradient energy (T5)."""
    model = subjects.models("decoder")[0]

    def distances(network: nn.Module, batches: Batches, _number: int) -> list[FrequencyDistance]:
        return _distances(network, batches, model.window)

    def strata(rows: str) -> Callable[[RunView], float]:
        return lambda view: (
            energy_of(view, rows=rows, stratum="input.frequent") - energy_of(view, rows=rows, stratum="input.rare")
        )

    by_unit = model.per_unit(distances)
    units = gradients_of(model)
    values = {
        "correlation": [fmean(layer.pearson for layer in layers) for layers in by_unit],
        "split_half": [fmean(layer.split_half for layer in layers) for layers in by_unit],
        "p": [median(layer.p for layer in layers) for layers in by_unit],
    }
    quantities = {name: Estimate.over(each, units.unit) for name, each in values.items()}
    quantities |= {f"strata{end}": estimate(strata(rows), units) for end, rows in (("", "plain"), ("_unit", "unit"))}
    records = [
        *(r for r in figure_records(units, ("gradient_energy",), of=model.name) if "stratum" in r.variant),
        *(
            estimate_record(quantities[name], "frequency_correlation", of=f"{model.name}, {name}")
            for name in ("correlation", "split_half")
        ),
        Record("vectors", "frequency_correlation", -0.5, variant={"of": "decoders, published"}),
    ]
    return subjects.evidence([model], quantities, records)


def _distances(model: nn.Module, batches: Batches, window: int) -> list[FrequencyDistance]:
    """Log frequency against the distance of centroids, for each layer; blocks are windows."""
    tokens = torch.cat([_tokens(batch) for batch in batches])  # (n,)
    counts = token_counts(tokens)
    key = torch.randperm(len(tokens), generator=torch.Generator().manual_seed(0))
    block = torch.arange(len(tokens)) // window
    rows = states(model, batches, ["resid"]).values()
    layers = [frequency_distance(x, tokens, counts, key, block) for x in rows]
    return [layer for layer in layers if layer is not None]


def _tokens(batch: Batch | Mapping[str, Tensor]) -> Tensor:
    return batch.token[batch.counts] if isinstance(batch, Batch) else batch["input_ids"].flatten()


# --- T6: the simulation -------------------------------------------------------------------------------------------


def curvature_evidence(subjects: Subjects) -> Evidence:
    """Gather slope, bias and pinning, paired by seed, from simulated surfaces (T6).

    Tokens that are drawn more often but not pinned are reported separately.
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
    ran = (
        f"{seeds} simulated surfaces of {surface.tokens} tokens per setting; not part of the rule: reweighting without "
        f"pinning lowers the signal-to-noise by {quantities['reweighting']}"
    )
    return Evidence(ran, SIMULATION, quantities, records=tuple(records))
