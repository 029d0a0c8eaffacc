"""The rules of the matrix decide planted profiles as the claims state."""

from __future__ import annotations

import pytest

from anisoscope.studies.atlas.claim_matrix import (
    FAILS,
    HOLDS,
    OPEN,
    bell_or_flat,
    drift_explains,
    few_tokens,
    high_cosine,
    low_dimension,
    matrix,
)
from tests.studies.atlas.made_evidence import model

BELL, FLAT, RISING = [0.1, 0.6, 0.9, 0.5, 0.2], [0.1, 0.12, 0.14, 0.12, 0.1], [0.1, 0.2, 0.3, 0.4, 0.5]
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
        ("decoder", [0.1, 0.2], OPEN),
    ],
)
def test_a_bell_of_decoders_and_a_flat_encoder(kind: str, values: list[float], answer: str) -> None:
    assert bell_or_flat(model(kind=kind, spectral_anisotropy=values), "all").answer == answer


def test_a_peak_within_two_error_bars_is_no_bell() -> None:
    assert bell_or_flat(model(spectral_anisotropy=[0.10, 0.11, 0.12, 0.11, 0.10]), "all").answer == FAILS


def test_the_bell_is_judged_under_each_token_policy() -> None:
    sink = model(spectral_anisotropy=(BELL, RISING))
    assert [bell_or_flat(sink, tokens).answer for tokens in ("all", "no-sink")] == [HOLDS, FAILS]


def test_a_dimension_near_sixty_does_not_hold() -> None:
    assert low_dimension(model(two_nn=[5.0, 12.0, 59.0, 8.0, 7.0])).answer == HOLDS
    assert low_dimension(model(two_nn=[5.0, 12.0, 59.99, 8.0, 7.0])).answer == FAILS
    assert low_dimension(model()).answer == OPEN


def test_cosine_is_judged_the_other_way_for_convolutions() -> None:
    high, low = [0.0, 0.5, 0.6, 0.1, 0.4], [0.9, 0.1, 0.1, 0.1, 0.4]
    assert high_cosine(model(mean_cosine=high)).answer == HOLDS
    assert high_cosine(model(mean_cosine=low)).answer == FAILS
    assert high_cosine(model(kind="convolutional", mean_cosine=low)).answer == HOLDS


def test_drift_explains_a_cosine_that_rises_with_it() -> None:
    assert drift_explains(model(mean_cosine=RISING, drift_norm=[1, 2, 3, 4, 5])).answer == HOLDS
    assert drift_explains(model(mean_cosine=RISING, drift_norm=[5, 4, 3, 2, 1])).answer == FAILS


def test_a_peak_that_vanishes_without_sinks_is_made_by_few_tokens() -> None:
    assert few_tokens(model(spectral_anisotropy=(BELL, FLAT))).answer == HOLDS
    assert few_tokens(model(spectral_anisotropy=(BELL, BELL))).answer == FAILS


def test_the_matrix_has_one_verdict_per_claim_and_model() -> None:
    models = [model("a", spectral_anisotropy=BELL), model("b")]
    assert all(len(verdicts) == 2 for _, verdicts in matrix(models))
