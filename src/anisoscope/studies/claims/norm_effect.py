"""The effect of the final norm: cosine of the final states with its gain and bias as trained, reset and permuted."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from anisoscope.data.inputs import first_item
from anisoscope.hooks import find_layout
from anisoscope.measurement.final_norm import final_norm, norm_variants
from anisoscope.studies.claims.hidden_states import Batches, mean_cosine, states

PERMUTATIONS = 200
_ROWS = 1024  # states to use


@dataclass(frozen=True)
class NormEffect:
    """Cosine of the last states before and after the final norm, and with gain and bias reset or permuted.

    Attributes:
        before: Mean cosine before the norm.
        trained: After it, with gain and bias as trained.
        reset: After it, with gain 1 and bias 0.
        p: Permutation p-value of the trained gain and bias.
        bias_share: ‖β‖/‖γ‖; 0 without a bias.
    """

    before: float
    trained: float
    reset: float
    p: float
    bias_share: float


def norm_effect(model: nn.Module, batches: Batches, seed: int) -> NormEffect:
    """Measure what the final norm does to the cosine.

    Args:
        model: The model.
        batches: Its inputs.
        seed: Seed of the permutations, which move gain and bias together over coordinates.
    """
    norm = final_norm(model, find_layout(model, first_item(batches[0], torch.device("cpu"))))
    x = states(model, batches, ["final.in"])["final.in"][:_ROWS].to(next(norm.parameters()).device)  # (rows, d)
    values: dict[str, list[float]] = {}
    with torch.inference_mode():
        for name, _, y in norm_variants(norm, x, seed, PERMUTATIONS):
            values.setdefault(name, []).append(mean_cosine(y))
    trained = values["as trained"][0]
    reset = next(values[name][0] for name in ("both reset", "gain reset", "bias reset") if name in values)
    lower = sum(value <= trained for value in values["permuted"])
    gain, bias = (getattr(norm, name, None) for name in ("weight", "bias"))
    share = (
        float((bias.norm() / gain.norm().clamp(min=1e-12)).detach()) if bias is not None and gain is not None else 0.0
    )
    return NormEffect(mean_cosine(x), trained, reset, (1 + lower) / (1 + PERMUTATIONS), share)
