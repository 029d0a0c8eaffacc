"""The effect of the final norm: cosine of the final states with its gain and bias as trained, reset and permuted."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from anisoscope.capture import find_layout
from anisoscope.data.inputs import first_item
from anisoscope.measurement.final_norm import final_norm, norm_variants
from anisoscope.studies.claims.hidden_states import Batches, mean_cosine, states

PERMUTATIONS = 200


@dataclass(frozen=True)
class NormEffect:
    """Cosine of the final states as trained and with gain and bias reset, and a permutation p-value."""

    trained: float
    reset: float
    p: float


def norm_effect(model: nn.Module, batches: Batches, seed: int, rows: int) -> NormEffect:
    """Measure what gain and bias of the final norm do to the cosine.

    Args:
        model: The model.
        batches: Its inputs.
        seed: Seed of the permutations, which move gain and bias together over coordinates.
        rows: Number of states to use.
    """
    norm = final_norm(model, find_layout(model, first_item(batches[0], torch.device("cpu"))))
    x = states(model, batches, ["final.in"])["final.in"][:rows].to(next(norm.parameters()).device)  # (rows, d)
    values: dict[str, list[float]] = {}
    with torch.inference_mode():
        for name, _, y in norm_variants(norm, x, seed, PERMUTATIONS):
            values.setdefault(name, []).append(mean_cosine(y))
    trained = values["as trained"][0]
    reset = next(values[name][0] for name in ("both reset", "gain reset", "bias reset") if name in values)
    lower = sum(value <= trained for value in values["permuted"])
    return NormEffect(trained, reset, (1 + lower) / (1 + PERMUTATIONS))
