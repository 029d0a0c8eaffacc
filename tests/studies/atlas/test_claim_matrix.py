"""The matrix judges planted profiles by the rules of the claims."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from anisoscope.studies.atlas.claim_matrix import (
    FAILS,
    HOLDS,
    NO,
    OPEN,
    YES,
    bell_or_flat,
    few_tokens,
    high_cosine,
    isotropic_dimension,
    low_dimension,
    matrix,
    verdicts_on_all,
)
from anisoscope.studies.claims.conditions import INCONCLUSIVE, UNTESTABLE
from tests.studies.atlas.made_evidence import model


def stretched(values: list[float], states: int = 13) -> list[float]:
    """A profile through these values with as many states as the claims about shapes need."""
    return np.interp(np.linspace(0, 1, states), np.linspace(0, 1, len(values)), values).tolist()


BELL, FLAT = stretched([0.1, 0.6, 0.9, 0.5, 0.2]), stretched([0.1, 0.12, 0.14, 0.12, 0.1])
RISING = stretched([0.1, 0.5])
# λ1/Σλ of GPT-2 as published, the embedding first
GPT2 = [0.06, 0.30, 0.97, *[0.98] * 9, 0.83]


@pytest.mark.parametrize(
    ("kind", "values", "answer"),
    [
        ("decoder", BELL, HOLDS),
        ("decoder", GPT2, HOLDS),
        ("decoder", RISING, FAILS),
        ("encoder", FLAT, HOLDS),
        ("encoder", BELL, FAILS),
        ("convolutional", BELL, OPEN),
        ("decoder", BELL[::3], UNTESTABLE),  # five states
    ],
)
def test_a_bell_of_decoders_and_a_flat_encoder(kind: str, values: list[float], answer: str) -> None:
    assert bell_or_flat(model(kind=kind, spectral_anisotropy=values), "all").answer == answer


def test_a_short_profile_can_be_described() -> None:
    short = model(spectral_anisotropy=BELL[::3])
    assert bell_or_flat(short, "all", any_depth=True).answer == HOLDS


def test_a_peak_within_its_error_bars_is_no_bell() -> None:
    assert bell_or_flat(model(spectral_anisotropy=stretched([0.10, 0.11, 0.10])), "all").answer == INCONCLUSIVE


def test_the_bell_is_judged_under_each_token_policy() -> None:
    sink = model(spectral_anisotropy=(BELL, RISING))
    assert [bell_or_flat(sink, tokens).answer for tokens in ("all", "no-sink")] == [HOLDS, FAILS]


def test_a_dimension_is_judged_only_if_isotropic_rows_read_more_than_sixty() -> None:
    assert isotropic_dimension(512, 16) < 20
    narrow = model(two_nn=[5.0, 12.0, 9.0])
    assert narrow.width == 32
    assert low_dimension(narrow).answer == UNTESTABLE
    assert low_dimension(model(two_nn=[5.0, 12.0, 59.0], width=288)).answer == HOLDS
    assert low_dimension(model(two_nn=[5.0, 12.0, 59.99], width=288)).answer == INCONCLUSIVE
    assert low_dimension(model(two_nn=[5.0, 12.0, 61.0], width=288)).answer == FAILS
    assert low_dimension(model()).answer == OPEN


def test_the_share_of_layers_with_a_high_cosine_has_an_error() -> None:
    assert high_cosine(model(mean_cosine=[0.6] * 13)).answer == HOLDS
    assert high_cosine(model(mean_cosine=[0.1] * 13)).answer == FAILS
    assert high_cosine(model(mean_cosine=[0.1, 0.6, 0.6, 0.6])).answer == INCONCLUSIVE  # four layers are few
    assert high_cosine(model(kind="convolutional", mean_cosine=[0.1] * 13)).answer == OPEN
    assert high_cosine(model(modality="tables", mean_cosine=[0.1] * 13)).answer == OPEN


def test_a_peak_that_vanishes_without_sinks_is_made_by_few_tokens() -> None:
    assert few_tokens(model(spectral_anisotropy=(BELL, FLAT))).answer == YES
    assert few_tokens(model(spectral_anisotropy=(BELL, BELL))).answer == NO


def test_the_matrix_has_one_verdict_per_claim_and_model() -> None:
    models = [model("a", spectral_anisotropy=BELL), model("b")]
    assert all(len(verdicts) == 2 for _, verdicts in matrix(models))


def test_claims_about_many_models_are_judged_on_all_of_them() -> None:
    high: dict[str, Any] = {
        "mean_cosine": stretched([0.4, 0.8]),
        "drift_norm": stretched([1, 9]),
        "mean_cosine_centred": [0.0] * 13,
    }
    kinds = ("English", "antibodies", "speech", "images")
    models = [model(f"{kind}-{n}", modality=kind, **high) for kind in kinds for n in range(3)]
    models.append(model("net", kind="convolutional", mean_cosine=[0.05] * 13))
    a1, a2, _ = verdicts_on_all(models)
    assert (a1.claim, a1.outcome) == ("A1", HOLDS)
    assert (a2.claim, a2.outcome) == ("A2", HOLDS)
    assert verdicts_on_all(models[:3])[0].outcome == UNTESTABLE  # one modality
