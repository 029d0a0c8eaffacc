"""The control of T6 on surfaces whose answer is known, with as many tokens, types and seeds as the evidence has."""

from __future__ import annotations

import math
from statistics import fmean

import pytest
import torch
from torch import Tensor

from anisoscope.studies.claims.claim import LAB, Evidence, Verdict
from anisoscope.studies.claims.conditions import INCONCLUSIVE, NOT_REPRODUCED, REPRODUCED, UNTESTABLE
from anisoscope.studies.claims.estimate import Estimate
from anisoscope.studies.claims.judging import judge
from anisoscope.studies.claims.pinned_types import (
    EACH,
    curvature_by_frequency,
    drop,
    local_curvature,
    radius_correlation,
    spaced_occurrences,
)
from anisoscope.studies.claims.runner import find_claims

TOKENS, TYPES, SEEDS = 32_768, 1024, 5  # as in size small
TANGENT, NORMAL, DIM = 3, 5, 64
NOISE = 0.1


def text(seed: int) -> Tensor:
    """Tokens by Zipf's law: type 0 is the most frequent."""
    share = torch.arange(1, TYPES + 1, dtype=torch.float64) ** -0.8
    return torch.multinomial(share, TOKENS, replacement=True, generator=torch.Generator().manual_seed(seed))


def surface(token: Tensor, seed: int, *, pinning: float, curvature: float, offset: float = 0.0) -> Tensor:
    """Rows of a curved surface on which every type has its own place.

    A type of rank k varies about its place with the radius (k/K)^pinning. `offset` moves every type off the surface.
    """
    draw = torch.Generator().manual_seed(100 + seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=draw, dtype=torch.float64)

    form = normal(NORMAL, TANGENT, TANGENT)
    form = curvature * (form + form.mT) / math.sqrt(2)
    radius = ((torch.arange(TYPES, dtype=torch.float64) + 1) / TYPES) ** pinning
    places, offsets = normal(TYPES, TANGENT), offset * normal(TYPES, DIM)
    u = places[token] + radius[token][:, None] * normal(len(token), TANGENT)  # (n, m)
    bent = torch.einsum("ni,aij,nj->na", u, form, u) / 2
    flat = torch.zeros(len(token), DIM - TANGENT - NORMAL, dtype=torch.float64)
    axes = torch.linalg.qr(normal(DIM, DIM))[0]
    return torch.cat((u, bent, flat), 1) @ axes.T + offsets[token] + NOISE * normal(len(token), DIM)


def measured(**settings: float) -> dict[str, list[float]]:
    values: dict[str, list[float]] = {"radius": [], "local_drop": [], "visible": []}
    for seed in range(SEEDS):
        token = text(seed)
        chosen = spaced_occurrences(token, torch.ones(len(token), dtype=torch.bool))
        x = surface(token, seed, **settings)[chosen.index]
        rare, frequent = curvature_by_frequency(x, chosen.frequency)
        values["radius"].append(radius_correlation(x, chosen.frequency))
        values["local_drop"].append(drop(rare, frequent))
        values["visible"].append((rare + frequent) / 2)
    return values


def control(values: dict[str, list[float]], learnt: float = 0.4) -> Verdict:
    estimates = {name: Estimate.over(each) for name, each in values.items()}
    estimates |= {"learnt": Estimate.exact(learnt), "types": Estimate.exact(700)}
    return judge(find_claims(["T6"])[0], Evidence("planted", LAB, estimates))[1]


@pytest.mark.parametrize("offset", [0.0, 0.3])
def test_pinned_types_are_found_whether_or_not_their_places_are_on_the_surface(offset: float) -> None:
    values = measured(pinning=0.3, curvature=0.1, offset=offset)
    assert fmean(values["radius"]) < -0.5
    assert fmean(values["local_drop"]) > 0.3
    verdict = control(values)
    assert verdict.outcome == REPRODUCED
    assert verdict.power is not None
    assert verdict.power.power >= 0.8


def test_types_that_are_not_pinned_show_no_drop() -> None:
    values = measured(pinning=0.0, curvature=0.05)
    assert abs(fmean(values["radius"])) < 0.1
    assert abs(fmean(values["local_drop"])) < 0.2
    assert control(values).outcome in (INCONCLUSIVE, NOT_REPRODUCED)


def test_frequent_types_that_roam_further_refute_the_claim() -> None:
    values = measured(pinning=-0.3, curvature=0.02)
    assert fmean(values["radius"]) > 0.5
    assert fmean(values["local_drop"]) < -0.3
    assert control(values).outcome == NOT_REPRODUCED


@pytest.mark.parametrize("pinning", [0.0, 0.3, -0.3])
def test_a_flat_surface_with_noise_is_untestable(pinning: float) -> None:
    values = measured(pinning=pinning, curvature=0.0)
    assert max(values["visible"]) < 0.02
    assert control(values).outcome == UNTESTABLE


def test_trainings_that_have_not_learnt_are_untestable() -> None:
    assert control(measured(pinning=0.3, curvature=0.1), learnt=0.1).outcome == UNTESTABLE


def test_occurrences_come_from_different_passages_and_are_equally_many() -> None:
    token = text(0)
    allowed = torch.arange(len(token)) % 3 > 0
    chosen = spaced_occurrences(token, allowed)
    assert chosen.index.shape[1] == EACH
    assert len(chosen.index) > 500
    assert bool(allowed[chosen.index].all())
    assert bool((token[chosen.index] == token[chosen.index][:, :1]).all())
    passages = (chosen.index // 64).sort(dim=1).values
    assert bool((passages.diff(dim=1) > 0).all())
    counts = torch.bincount(token, minlength=TYPES).double()
    assert torch.equal(chosen.frequency, counts[token[chosen.index[:, 0]]].log())


def test_a_word_that_comes_back_at_once_has_one_occurrence() -> None:
    token = torch.cat((torch.full((64 * 7,), 5), torch.full((64 * 8,), 7)))
    assert token[spaced_occurrences(token, torch.ones(len(token), dtype=torch.bool)).index[:, 0]].tolist() == [7]


def test_the_radius_does_not_depend_on_the_number_of_occurrences() -> None:
    """Types that all vary alike have no correlation, though frequent ones occur a hundred times as often."""
    found = [abs(radius_correlation(_alike(seed), text_frequency(seed))) for seed in range(5)]
    assert fmean(found) < 2.5 / math.sqrt(600)  # the standard error of a correlation of 600 types


def _alike(seed: int) -> Tensor:
    return torch.randn(600, EACH, DIM, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def text_frequency(seed: int) -> Tensor:
    return torch.rand(600, generator=torch.Generator().manual_seed(seed + 50), dtype=torch.float64) * math.log(100)


def test_local_curvature_ignores_places_rotation_and_scale() -> None:
    token = text(0)
    x = surface(token, 0, pinning=0.0, curvature=0.1)[spaced_occurrences(token, token >= 0).index]
    turned = torch.linalg.qr(torch.randn(DIM, DIM, generator=torch.Generator().manual_seed(9)).double())[0]
    assert local_curvature(3 * x @ turned + 7) == pytest.approx(local_curvature(x), rel=1e-6)
