"""Rules on the scalars of every step: each fires on its fault and stays silent on noise."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence

import pytest

from anisoscope import Record
from anisoscope.alerts import Rule, gradient_spike, large_updates, loss_spike, not_finite, update_spike
from anisoscope.alerts.rules import UsualRange


def loop(metric: str, values: Iterable[float | None], site: str = "loop") -> list[list[Record]]:
    return [[Record(site, metric, value, step=step)] for step, value in enumerate(values)]


def steps(rule: Rule, measured: Sequence[Sequence[Record]]) -> list[int]:
    return [found.step for records in measured for found in rule(records)]


def noise(n: int, seed: int = 0) -> list[float]:
    chance = random.Random(seed)
    return [1.0 + 0.1 * chance.gauss(0, 1) for _ in range(n)]


def test_a_spike_is_found_at_its_step_and_noise_is_not() -> None:
    for rule, metric in (
        (loss_spike(), "train_loss"),
        (gradient_spike(), "gradient_norm"),
        (update_spike(), "update_ratio"),
    ):
        assert steps(rule, loop(metric, [*noise(60), 9.0, *noise(20, 1)])) == [60]


def test_a_spike_needs_a_history() -> None:
    assert steps(loss_spike(), loop("train_loss", [1.0, 1.0, 9.0])) == []


def test_an_update_that_jumps_in_one_layer_names_the_layer() -> None:
    rule = update_spike()
    measured = loop("update_ratio", [*noise(60), 9.0], site="resid.3")
    (found,) = [found for records in measured for found in rule(records)]
    assert found.site == "resid.3"
    assert "times its median" in (found.note or "")
    assert "robust standard deviations" in (found.note or "")
    assert "Usually helps:" in (found.note or "")


def test_gradients_of_hidden_states_are_another_series() -> None:
    assert steps(gradient_spike(), loop("gradient_norm", [*noise(60), 9.0], site="grad.resid.3")) == []


def test_single_overflows_of_gradients_are_no_alert_and_five_in_a_row_are() -> None:
    assert steps(not_finite(), loop("gradient_norm", [1.0, None, 1.0, None, None])) == []
    assert steps(not_finite(), loop("gradient_norm", [1.0, *[None] * 5])) == [5]


@pytest.mark.parametrize("metric", ["train_loss", "validation_loss"])
def test_a_loss_that_is_not_finite_is_an_alert_at_once(metric: str) -> None:
    assert steps(not_finite(), loop(metric, [1.0, None])) == [1]


def test_large_updates_count_only_after_the_start_and_in_a_row() -> None:
    assert steps(large_updates(steps=3, after=2), loop("update_ratio", [1.0] * 5)) == [4]
    assert steps(large_updates(steps=3, after=0), loop("update_ratio", [1.0, 1.0, 0.001, 1.0, 1.0])) == []
    (found,) = large_updates(steps=1, after=0)([Record("loop", "update_ratio", 0.5)])
    assert "each step changes the weights by 50%" in (found.note or "")


def test_a_constant_history_does_not_make_small_changes_unusual() -> None:
    usual = UsualRange(least=3)
    for _ in range(5):
        usual.add(10.0)
    assert usual.score(10.5) == pytest.approx(2.5)
