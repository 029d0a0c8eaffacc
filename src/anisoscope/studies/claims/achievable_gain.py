"""How much of the achievable gain in isotropy removing a basis from the gradients brings (T2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from anisoscope.data.inputs import device_of, first_item
from anisoscope.hooks import expand, find_layout
from anisoscope.hooks.backward import differentiable
from anisoscope.models.open import Opened
from anisoscope.studies.claims.hidden_states import Batches
from anisoscope.tangent import Tangent
from anisoscope.tangent.anisotropy import removal_gains
from anisoscope.tangent.basis import Basis
from anisoscope.tangent.fit_pass import fit_pass
from anisoscope.tangent.gradient_pass import gradient_pass
from anisoscope.tangent.null import HIDDEN
from anisoscope.tangent.objectives import Objective
from anisoscope.tangent.proxies import top_axes
from anisoscope.tangent.splits import make_sides
from anisoscope.tangent.tangent_plan import TangentPlan, site_groups

_REDUCED = 1  # the column of the score in the reduced dimension
_SAMPLE = 4096  # rows that a basis is fitted on, at most


@dataclass(frozen=True)
class AchievedGain:
    """Shares of the gain of removing the gradients' own leading directions, which other documents gave.

    Attributes:
        basis: The share that removing the basis of the activations reaches.
        other: The share that removing the basis of a layer half the depth away reaches.
    """

    basis: float
    other: float


def achieved_gain(gradients: list[tuple[Tensor, Tensor]], bases: list[Basis]) -> AchievedGain:
    """Compare removing each layer's basis, another layer's basis and an oracle, summed over layers.

    Args:
        gradients: Covariances (d, d) of each layer's gradients on the documents of the fit, and of the test.
        bases: The basis of each layer.
    """
    total = {"basis": 0.0, "other": 0.0, "oracle": 0.0}
    for layer, ((fit, test), basis) in enumerate(zip(gradients, bases, strict=True)):
        other = bases[(layer + len(bases) // 2) % len(bases)]
        oracle = top_axes(fit, basis.effective, "oracle")
        gains = removal_gains(test, [basis, other, oracle])[:, _REDUCED].tolist()
        for name, gain in zip(total, gains, strict=True):
            total[name] += gain
    ceiling = max(total["oracle"], 1e-12)
    return AchievedGain(total["basis"] / ceiling, total["other"] / ceiling)


def gain_of_model(
    opened: Opened, objective: Objective, fit: Batches, test: Batches, rank: int, *, seed: int = 0
) -> AchievedGain:
    """Fit the bases of a model on some documents and take gradients on both halves; the last layer is left out.

    The gradient of the last state before the final norm is orthogonal to that state by construction.
    """
    model = opened.model
    sides = make_sides(fit, test, sinks=False, seed=seed)
    layout = find_layout(model, first_item(sides[0].batches[0], device_of(model)))
    plan = TangentPlan(model, layout, objective, Tangent(ranks=(rank,)), (HIDDEN,), _SAMPLE, seed)
    by_site: dict[str, tuple[Any, ...]] = {}
    with differentiable(model):
        for group in site_groups(plan, expand(layout, ["resid"])):
            fitted = fit_pass(plan, group, sides[0]).bases
            cases = zip(*(gradient_pass(plan, group, side, fitted) for side in sides), strict=True)
            for first, second in cases:
                covariances = first.sums.covariance[0], second.sums.covariance[0]
                by_site[first.site] = (covariances, first.fitted.bases[0])
    layers = list(by_site.values())[:-1]
    return achieved_gain([pair for pair, _ in layers], [basis for _, basis in layers])
