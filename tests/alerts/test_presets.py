"""The presets in real trainings: planted faults are found, healthy trainings raise no alarm."""

from __future__ import annotations

from pathlib import Path

import pytest

from anisoscope.alerts import constant_output, papers, stability, standard
from benchmarks.alerts import STABILITY
from benchmarks.planted import FAULTS, HEALTHY, train

BY_NAME = {fault.name: fault for fault in FAULTS}


def test_the_standard_rules_are_those_of_both_presets() -> None:
    assert len(standard()) == len(stability()) + len(papers())
    assert len(stability()) == len(STABILITY)


def test_a_dead_layer_is_found_before_the_loss_shows_it(tmp_path: Path) -> None:
    outcome = train(BY_NAME["a dead layer"], tmp_path / "run", steps=52, period=25)
    assert [(a.variant["rule"], a.site) for a in outcome.alerts] == [("dead_layer", "resid.2")]  # once, while it holds
    assert outcome.loss_shows_at() is None
    assert "Usually helps: check that the branch is trained" in (outcome.alerts[0].note or "")


def test_a_weight_that_becomes_nan_is_found_before_the_next_step(tmp_path: Path) -> None:
    fault = BY_NAME["a weight becomes NaN"]
    outcome = train(fault, tmp_path / "run", steps=153, period=160)
    assert outcome.loss_shows_at() == 150
    assert outcome.raised_at(("not_finite",)) == 151  # by the call that precedes the next forward


def test_a_jump_of_the_learning_rate_is_found_before_the_loss_shows_it(tmp_path: Path) -> None:
    outcome = train(BY_NAME["a jump of the learning rate"], tmp_path / "run", steps=155, period=160)
    found, shown = outcome.raised_at(("update_spike",)), outcome.loss_shows_at()
    assert found is not None
    assert shown is not None
    assert found < shown


def test_a_constant_target_is_found(tmp_path: Path) -> None:
    fault = BY_NAME["a constant target"]
    outcome = train(fault, tmp_path / "run", steps=81, period=20, rules=[constant_output(after=40)])
    assert outcome.raised_at(fault.expects) == 80


def test_a_young_healthy_training_raises_no_alarm(tmp_path: Path) -> None:
    assert train(HEALTHY[0], tmp_path / "run", steps=61, period=20).alerts == []


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_every_planted_fault_is_found(tmp_path: Path, fault: object) -> None:
    assert train(fault, tmp_path / "run").raised_at(fault.expects) is not None  # type: ignore


@pytest.mark.slow
def test_at_most_one_of_ten_healthy_trainings_raises_an_alarm(tmp_path: Path) -> None:
    fired = [{rule for _, rule in train(t, tmp_path / t.name, seed=i).raised} for i, t in enumerate(HEALTHY)]
    assert sum(bool(rules & STABILITY) for rules in fired) <= 1
    assert sum(bool(rules - STABILITY) for rules in fired) <= 1
