"""Evidence for T5 and T6: frequent tokens, in models and in a simulation of curved surfaces."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from statistics import fmean, median

import torch
from torch import Tensor, nn

from anisoscope.data.token_table import Batch
from anisoscope.records import Record
from anisoscope.studies.claims.claim import SIMULATION, Evidence
from anisoscope.studies.claims.estimate import Estimate
from anisoscope.studies.claims.gates import TYPES
from anisoscope.studies.claims.gradient_evidence import energy_of, gradients_of
from anisoscope.studies.claims.hidden_states import Batches, states
from anisoscope.studies.claims.run_view import RunView, estimate, estimate_record, figure_records
from anisoscope.studies.claims.subjects import LabModel, Subjects, SubjectSource
from anisoscope.studies.curvature import RADII, Surface, curvature_records, radius_slope, sample_surface, visible
from anisoscope.tangent.frequency import FrequencyDistance, frequency_distance, pearson, token_counts

_OCCURRENCES = 4  # of a type, at least
_BLOCKS = 16  # of windows that are left out for an error bar
_PINNING = 0.5  # γ: how far frequent tokens are pinned to the centre


# --- T5: frequency ------------------------------------------------------------------------------------------------


def frequency_evidence(subjects: SubjectSource) -> Evidence:
    """Gather the relation of a token's frequency with its distance from the centre and its gradient energy (T5)."""
    model = subjects.models("words")[0]

    def distances(network: nn.Module, batches: Batches, _number: int) -> list[_ByFrequency]:
        return _distances(network, batches, model.window)

    def strata(rows: str) -> Callable[[RunView], float]:
        return lambda view: (
            energy_of(view, rows=rows, stratum="input.frequent") - energy_of(view, rows=rows, stratum="input.rare")
        )

    by_unit = model.over_training_text(distances) if isinstance(model, LabModel) else model.per_unit(distances)
    units = gradients_of(model)
    values = {
        "correlation": [fmean(layer.distance.pearson for layer in layers) for layers in by_unit],
        "spread": [fmean(layer.spread for layer in layers) for layers in by_unit],
        "split_half": [fmean(layer.distance.split_half for layer in layers) for layers in by_unit],
        "p": [median(layer.distance.p for layer in layers) for layers in by_unit],
    }
    quantities = {name: Estimate.over(each, units.unit) for name, each in values.items()}
    fewest = min((layer.distance.types for layers in by_unit for layer in layers), default=0)
    quantities[TYPES.name] = Estimate.exact(fewest)
    quantities |= {f"strata{end}": estimate(strata(rows), units) for end, rows in (("", "plain"), ("_unit", "unit"))}
    records = [
        *(r for r in figure_records(units, ("gradient_energy",), of=model.name) if "stratum" in r.variant),
        *(
            estimate_record(quantities[name], "frequency_correlation", of=words)
            for name, words in (
                ("correlation", "distance of a type's centroid from the mean"),
                ("split_half", "the same from split halves, equal n"),
                ("spread", "spread of a type about its own centroid"),
            )
        ),
        Record("vectors", "frequency_correlation", -0.5, variant={"of": "decoders, published"}),
    ]
    return subjects.evidence([model], quantities, records)


@dataclass(frozen=True)
class _ByFrequency:
    """Both readings of "frequent tokens are pinned", in one layer."""

    distance: FrequencyDistance  # of a type's centroid from the mean
    spread: float  # correlation of log frequency with the spread of a type about its own centroid


def _distances(model: nn.Module, batches: Batches, window: int) -> list[_ByFrequency]:
    """Log frequency against the distance of centroids and the spread of types, for each layer; blocks are windows."""
    tokens = torch.cat([_tokens(batch) for batch in batches])  # (n,)
    counts = token_counts(tokens)
    key = torch.randperm(len(tokens), generator=torch.Generator().manual_seed(0))
    block = torch.arange(len(tokens)) // (window * max(1, len(tokens) // window // _BLOCKS))
    layers = []
    for x in states(model, batches, ["resid"]).values():
        distance = frequency_distance(x, tokens, counts, key, block)
        if distance is not None:
            layers.append(_ByFrequency(distance, spread_by_frequency(x, tokens)))
    return layers


def spread_by_frequency(x: Tensor, token: Tensor) -> float:
    """Correlate the log number of occurrences of a type with the log of its mean squared distance to its centroid.

    The unbiased variance is used, so that types with few occurrences do not look pinned. Types with fewer than four
    occurrences are left out.

    Args:
        x: Rows (n, d).
        token: Their token ids (n,).
    """
    _, type_of, count = token.unique(return_inverse=True, return_counts=True)
    sums = torch.zeros(len(count), x.shape[1], dtype=torch.float64).index_add_(0, type_of, x.double())
    square = torch.zeros(len(count), dtype=torch.float64).index_add_(0, type_of, x.double().square().sum(1))
    kept = count >= _OCCURRENCES
    variance = (square - sums.square().sum(1) / count) / (count - 1).clamp(min=1)
    return pearson(count[kept].double().log(), variance[kept].clamp(min=1e-12).log())


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
