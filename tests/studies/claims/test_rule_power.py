"""The power of rules in simulated worlds."""

from __future__ import annotations

import numpy as np
import pytest

from anisoscope.studies.claims.claim import CONTROL, MODEL, PUBLISHED, Claim, Evidence, outcome_of
from anisoscope.studies.claims.conditions import EFFECT, NOT_REPRODUCED, REPRODUCED, above, every, gate
from anisoscope.studies.claims.estimate import Estimate
from anisoscope.studies.claims.rule_power import power_of
from anisoscope.studies.claims.runner import CLAIMS

RULE = every(above("x", 0.0, "x", holds=1.0, fails=0.0))


def test_power_rises_with_units_and_falls_with_noise() -> None:
    def power(error: float, n: int) -> float:
        found = power_of(RULE, Evidence("r", MODEL, {"x": Estimate(0.3, error, n)}))
        assert found is not None
        return found.power

    assert power(0.05, 5) > 0.95
    assert power(1.0, 5) < 0.3
    assert power(0.4, 3) < power(0.4 * (3 / 12) ** 0.5, 12)  # the same spread of a unit


def test_a_false_world_at_the_threshold_is_called_true_in_one_of_forty_cases() -> None:
    """A two-sided interval of 95 % leaves 2.5 % above; 400 worlds have a standard error of 0.8 %."""
    found = power_of(RULE, Evidence("r", MODEL, {"x": Estimate(0.3, 0.2, 8)}), repetitions=400)
    assert found is not None
    assert 0.0 <= found.false_alarms < 0.06
    assert found.refuted < 0.06


def test_power_needs_an_interval_and_does_not_depend_on_gates() -> None:
    assert power_of(RULE, Evidence("r", MODEL, {})) is None
    assert power_of(RULE, Evidence("r", MODEL, {"x": Estimate(1.0, 0.1, 2)})) is None
    gated = ((gate("g", 0, "g"), *RULE[0]),)
    found = power_of(gated, Evidence("r", MODEL, {"x": Estimate(1.0, 0.1, 5)}))
    assert found == power_of(RULE, Evidence("r", MODEL, {"x": Estimate(1.0, 0.1, 5)}))


def test_simulated_verdicts_are_those_of_the_judge() -> None:
    """The slow way: every world as evidence, judged one by one. Both ways draw their own worlds."""
    rule = every(above("x", 0.0, "x", holds=0.5, fails=-0.5), above("y", 0.0, "y", holds=0.4, fails=-0.4))
    found = power_of(rule, Evidence("r", MODEL, {n: Estimate(0.1, 0.2, 5) for n in "xy"}), repetitions=2000)
    random = np.random.default_rng(5)
    counts = {True: [0, 0], False: [0, 0]}
    for holds in (True, False):
        sign = 1 if holds else -1
        for _ in range(1000):
            units = {n: random.normal(sign * t, 0.2 * 5**0.5, 5).tolist() for n, t in (("x", 0.5), ("y", 0.4))}
            evidence = Evidence("r", MODEL, {name: Estimate.over(each) for name, each in units.items()})
            outcome = outcome_of(rule, evidence)[0]
            counts[holds][0] += outcome == REPRODUCED
            counts[holds][1] += outcome == NOT_REPRODUCED
    assert found is not None
    close = pytest.approx  # 1,000 and 2,000 worlds: three standard errors are below 0.06
    assert found.power == close(counts[True][0] / 1000, abs=0.06)
    assert found.false_alarms == close(counts[False][0] / 1000, abs=0.06)
    assert found.refuted == close(counts[False][1] / 1000, abs=0.06)


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.id)
def test_every_rule_tells_its_two_worlds_apart_if_there_is_little_noise(claim: Claim) -> None:
    for line in (PUBLISHED, CONTROL):
        for conditions in claim.rule(line):
            distance = {c.name: abs(c.holds - c.threshold) for c in conditions if not c.gate}
            error = {c.name: distance[c.name] / 12 for c in conditions if not c.gate}
            estimates = {c.name: Estimate(c.holds, error[c.name], 8) for c in conditions if not c.gate}
            found = power_of((conditions,), Evidence("r", MODEL, estimates), repetitions=40)
            assert found is not None
            assert found.power > 0.8
            assert found.false_alarms < 0.1
            if all(c.kind == EFFECT and c.fails != c.threshold for c in conditions if not c.gate):
                assert found.refuted > 0.8
