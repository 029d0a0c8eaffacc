"""Evidence for T5: how far frequent tokens lie from the centre, and how much of their gradients the basis holds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import fmean, median

import torch
from torch import Tensor, nn

from anisoscope.data.token_table import Batch
from anisoscope.records import Record
from anisoscope.studies.claims.claim import Evidence
from anisoscope.studies.claims.estimate import Estimate
from anisoscope.studies.claims.gates import TYPES
from anisoscope.studies.claims.gradient_evidence import energy_of, gradients_of
from anisoscope.studies.claims.hidden_states import Batches, states
from anisoscope.studies.claims.run_view import RunView, estimate, estimate_record, figure_records
from anisoscope.studies.claims.subjects import LabModel, SubjectSource
from anisoscope.tangent.frequency import FrequencyDistance, frequency_distance, pearson, token_counts

_OCCURRENCES = 4  # of a type, at least
_BLOCKS = 16  # of windows that are left out for an error bar


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
    tokens = torch.cat([tokens_of(batch) for batch in batches])  # (n,)
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


def tokens_of(batch: Batch | Mapping[str, Tensor]) -> Tensor:
    """Return the token ids of a batch without padding, (n,), in the order of the rows that `states` returns."""
    return batch.token[batch.counts] if isinstance(batch, Batch) else batch["input_ids"].flatten()
