"""A metric called with rows, with statistics and with a cloud."""

from __future__ import annotations

import inspect
import math

import pytest
import torch

from anisoscope import metrics, synthetic
from anisoscope.errors import InputError, MetricError
from anisoscope.metrics.metric import metric
from anisoscope.records import headline_variant
from anisoscope.stats.collect import cloud_of
from anisoscope.stats.directions import Directions
from anisoscope.stats.moments import Moments
from anisoscope.stats.rows import bare_rows
from anisoscope.testing import check_metric

X = synthetic.cloud("power law", n=200, d=4)


def test_rows_statistics_and_cloud_give_the_same_number() -> None:
    number = metrics.isoscore(X)
    assert isinstance(number, float)
    assert metrics.isoscore.of(Moments.of(bare_rows(X))).value == pytest.approx(number, rel=1e-12)
    assert metrics.isoscore.values(cloud_of(X, {"Moments"}))[0].value == pytest.approx(number, rel=1e-12)
    assert metrics.isoscore.numbers(X) == {None: number}


def test_a_metric_of_several_numbers_refuses_to_choose_one() -> None:
    with pytest.raises(InputError, match=r"2 numbers\. Use metrics\.effective_rank\.numbers"):
        metrics.effective_rank(X)
    with pytest.raises(InputError, match=r"Use metrics\.effective_rank\.values"):
        metrics.effective_rank.of(Moments.of(bare_rows(X)))
    assert len(metrics.effective_rank.numbers(X)) == 2


def test_the_wrong_statistics_are_refused() -> None:
    with pytest.raises(InputError, match=r"isoscore takes the statistics \(Moments\), not \(Directions\)"):
        metrics.isoscore.of(Directions.of(bare_rows(X)))
    with pytest.raises(InputError, match=r"not \(\)"):
        metrics.isoscore.of()


def test_a_metric_without_a_value_raises_with_its_name() -> None:
    with pytest.raises(MetricError, match=r"^isoscore: The 3 rows do not vary\. Give at least two different rows\.$"):
        metrics.isoscore.of(Moments.of(bare_rows(torch.ones(3, 2))))


def test_an_unknown_invariance_is_refused() -> None:
    with pytest.raises(ValueError, match="mirror"):
        metrics.metric(Moments, low=0, high=1, keeps={"mirror"}, paper="anisoscope")


def test_bad_rows_raise_with_metric_reason_and_remedy() -> None:
    with pytest.raises(MetricError, match=r"mean_cosine: 1 rows hold NaN or Inf .*\. Drop those rows, .*\.$"):
        metrics.mean_cosine([[1.0, math.nan], [0.0, 1.0]])
    with pytest.raises(InputError, match="matrix"):
        metrics.mean_cosine([1.0, 2.0])


def test_an_unknown_effect_of_the_number_of_rows_is_refused() -> None:
    with pytest.raises(ValueError, match="sometimes"):
        metrics.metric(Moments, low=0, high=1, keeps=set(), paper="anisoscope", row_effect="sometimes")


def test_help_shows_the_formula_of_a_metric() -> None:
    assert "(PR − 1)/(d − 1)" in str(inspect.getdoc(metrics.isoscore))
    assert repr(metrics.isoscore) == "<metric isoscore>"


def test_a_card_carries_the_facts_that_reports_need() -> None:
    card = metrics.effective_rank.card()
    assert card["notable"] == "low"
    assert card["row_effect"] == "any"
    assert headline_variant(card) == {"of": "singular values"}
    assert headline_variant({}) == {}


def test_a_mask_leaves_rows_out() -> None:
    x = torch.randn(60, 4, generator=torch.Generator().manual_seed(0))
    keep, document = torch.arange(60) % 3 > 0, torch.arange(60) // 6
    assert metrics.isoscore(x, mask=keep) == metrics.isoscore(x[keep])
    assert metrics.isoscore(x, mask=keep.int().tolist()) == metrics.isoscore(x[keep])
    wanted = metrics.two_nn.numbers(x[keep], documents=document[keep])
    assert metrics.two_nn.numbers(x, documents=document, mask=keep) == wanted
    for wrong in (keep[:7], torch.zeros(60)):
        with pytest.raises(InputError, match=r"Use \(60,\)"):
            metrics.isoscore(x, mask=wrong)


def test_an_idea_needs_no_facts_but_a_check_does() -> None:
    @metric(Moments)
    def idea(moments: Moments) -> float:
        """Number of rows."""
        return float(moments.n)

    assert idea([[1.0], [2.0], [3.0]]) == 3.0
    assert idea.card()["low"] is None
    with pytest.raises(AssertionError, match="declares no paper"):
        check_metric(idea)
