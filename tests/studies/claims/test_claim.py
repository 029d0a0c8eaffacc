"""Estimates, rules and verdicts."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest

from anisoscope.records import Record
from anisoscope.report.theme import VERDICTS
from anisoscope.studies.claims.claim import (
    CONTROL,
    LAB,
    LEAST_POWER,
    MODEL,
    PUBLISHED,
    SMOKE_TEST,
    Claim,
    Evidence,
    Verdict,
    shared_context,
    unjudged,
)
from anisoscope.studies.claims.conditions import (
    EFFECT,
    INCONCLUSIVE,
    NOT_REPRODUCED,
    P_VALUE,
    REPRODUCED,
    UNTESTABLE,
    Condition,
    Rule,
    above,
    below,
    either,
    every,
    gate,
    significant,
)
from anisoscope.studies.claims.estimate import Estimate
from anisoscope.studies.claims.judging import judge
from anisoscope.studies.claims.run_sizes import SIZES, cells
from anisoscope.studies.claims.runner import CLAIMS

FAR: dict[str, Any] = {"holds": 9.0, "fails": -9.0}


def rule_of(claim: Claim, line: str) -> Rule:
    return claim.rule(line)


def verdict_of(
    claim: Claim, line: str, values: Mapping[str, float], error: float = 1e-4, scale: str = MODEL
) -> Verdict:
    """The verdict on a line whose quantities have these values, each over ten units."""
    found = {name: Estimate(value, error, 10) for name, value in values.items()}
    return judge(claim, Evidence("made up", scale, found))[line == CONTROL]


def firm(condition: Condition, holds: bool) -> float:
    """A value far on one side of the threshold."""
    far = 1 + abs(condition.threshold)
    return condition.threshold + (far if condition.above == holds else -far)


def holding(conditions: tuple[Condition, ...]) -> dict[str, float]:
    """Values with which all of these conditions hold; two thresholds on one quantity are met in the middle."""
    by_name: dict[str, list[Condition]] = {}
    for condition in conditions:
        by_name.setdefault(condition.name, []).append(condition)
    return {
        name: firm(those[0], True) if len(those) == 1 else sum(c.threshold for c in those) / len(those)
        for name, those in by_name.items()
    }


def completed(rule: Rule, fixed: dict[str, float], wanted: str, claim: Claim, line: str) -> dict[str, float]:
    """The fixed values, and values for the quantities of other alternatives that give the outcome wanted."""
    others = {c.name: c for alternative in rule for c in alternative if c.name not in fixed}
    free = [c for c in others.values() if not c.gate]
    patterns = itertools.product((True, False), repeat=len(free)) if len(free) < 4 else [[False] * len(free)]
    for gates_met, pattern in itertools.product((True, False), list(patterns)):
        made = {c.name: firm(c, met) for c, met in zip(free, pattern, strict=True)}
        made |= {c.name: firm(c, gates_met) for c in others.values() if c.gate}
        if verdict_of(claim, line, {**made, **fixed}).outcome == wanted:
            return {**made, **fixed}
    raise AssertionError(f"{claim.id}, {line}: no evidence gives {wanted}")


def alternatives() -> Iterator[tuple[Claim, str, int]]:
    for claim in CLAIMS:
        for line in (PUBLISHED, CONTROL):
            for place in range(len(rule_of(claim, line))):
                yield claim, line, place


EVERY = [pytest.param(*each, id="-".join(map(str, (each[0].id, *each[1:])))) for each in alternatives()]


@pytest.mark.parametrize(("claim", "line", "place"), EVERY)
def test_evidence_for_a_claim_reproduces_it(claim: Claim, line: str, place: int) -> None:
    rule = rule_of(claim, line)
    found = verdict_of(claim, line, holding(rule[place]))  # what other alternatives ask for is not measured
    assert found.outcome == REPRODUCED
    assert found.effect is not None
    assert found.effect.value in holding(rule[place]).values()


@pytest.mark.parametrize(("claim", "line", "place"), EVERY)
def test_reversing_any_quantity_reverses_the_verdict(claim: Claim, line: str, place: int) -> None:
    rule = rule_of(claim, line)
    against = INCONCLUSIVE if claim.existential else NOT_REPRODUCED
    for condition in rule[place]:
        turned = {**holding(rule[place]), condition.name: firm(condition, False)}
        wanted = UNTESTABLE if condition.gate else INCONCLUSIVE if condition.kind == P_VALUE else against
        values = completed(rule, turned, wanted, claim, line)
        found = verdict_of(claim, line, values)
        assert found.outcome == wanted
        assert condition.description in found.reason


@pytest.mark.parametrize(("claim", "line", "place"), EVERY)
def test_a_quantity_whose_interval_spans_its_threshold_leaves_the_claim_open(
    claim: Claim, line: str, place: int
) -> None:
    conditions = rule_of(claim, line)[place]
    for condition in conditions:
        values = {**holding(conditions), condition.name: condition.threshold}
        wanted = UNTESTABLE if condition.gate else INCONCLUSIVE
        assert verdict_of(claim, line, values).outcome in (wanted, INCONCLUSIVE)


@pytest.mark.parametrize(("claim", "line", "place"), EVERY)
def test_a_missing_quantity_leaves_the_claim_open(claim: Claim, line: str, place: int) -> None:
    conditions = rule_of(claim, line)[place]
    for condition in conditions:
        values = {name: value for name, value in holding(conditions).items() if name != condition.name}
        found = verdict_of(claim, line, values)
        assert found.outcome in ((UNTESTABLE, INCONCLUSIVE) if condition.gate else (INCONCLUSIVE,))
        assert "not measured" in found.reason
        assert claim.settle in found.reason


def test_the_claims_are_those_of_the_papers() -> None:
    counts = (("T", 7), ("S", 6), ("A", 7), ("N", 6), ("C", 2), ("P", 2))
    wanted = [f"{paper}{n}" for paper, count in counts for n in range(1, count + 1)]
    assert [claim.id for claim in CLAIMS] == wanted
    for claim in CLAIMS:
        assert claim.control
        assert claim.ways
        assert claim.plain
        assert claim.found
        assert set(claim.cells) <= set(cells(SIZES["tiny"]))
        assert bool(claim.cells) == ("lab" in claim.ways)


@pytest.mark.parametrize("large", [c for c in CLAIMS if c.scope], ids=lambda claim: claim.id)
def test_a_claim_about_large_models_is_untestable_in_the_lab(large: Claim) -> None:
    values = holding(large.rule(PUBLISHED)[0])
    assert verdict_of(large, PUBLISHED, values, scale=MODEL).outcome == REPRODUCED
    found = verdict_of(large, PUBLISHED, values, scale=LAB)
    assert found.outcome == UNTESTABLE
    assert "large models" in found.reason
    assert "pythia-410m" in found.reason


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.id)
def test_every_effect_declares_a_world_in_which_it_holds_and_one_in_which_it_does_not(claim: Claim) -> None:
    for condition in claim.conditions:
        if condition.kind == EFFECT:
            sign = 1 if condition.above else -1
            assert sign * condition.holds > sign * condition.threshold, condition.description
            pair = [c for c in claim.conditions if c.name == condition.name and c.above != condition.above]
            assert pair or sign * condition.fails <= sign * condition.threshold, condition.description


TOY = Claim("X", "nobody2026", "x is large", {}, every(above("x", 1.0, "x", holds=2.0, fails=0.0)), (), "measure x", ())


@pytest.mark.parametrize(
    ("values", "outcome"),
    [
        ([1.5, 1.6, 1.7, 1.6], REPRODUCED),
        ([0.5, 0.6, 0.7, 0.6], NOT_REPRODUCED),
        ([0.9, 1.2, 1.0, 1.3], INCONCLUSIVE),
        ([9.0, 9.1], INCONCLUSIVE),  # two seeds make no interval
        ([1.0, 1.0, 1.0], NOT_REPRODUCED),  # at the threshold is not beyond it
    ],
)
def test_the_interval_decides(values: list[float], outcome: str) -> None:
    published, _ = judge(TOY, Evidence("toy", LAB, {"x": Estimate.over(values)}))
    assert published.outcome == outcome


def test_below_mirrors_above() -> None:
    for value in (-2.0, 0.3, 0.5, 0.7, 2.0):
        estimate = Estimate(value, 0.05, 8)
        turned = Estimate(-value, 0.05, 8)
        mirrored = above("x", -0.5, "", holds=0, fails=-1).outcome(turned)
        assert below("x", 0.5, "", holds=0, fails=1).outcome(estimate) == mirrored


def test_one_of_several_alternatives_is_enough() -> None:
    rule = either(every(above("x", 0, "x", **FAR)), every(above("y", 0, "y", **FAR)))
    claim = Claim("X", "p", "s", {}, rule, (), "", ())
    assert verdict_of(claim, PUBLISHED, {"x": -1, "y": 1}).outcome == REPRODUCED
    assert verdict_of(claim, PUBLISHED, {"x": -1, "y": -1}).outcome == NOT_REPRODUCED
    assert verdict_of(claim, PUBLISHED, {"x": -1}).outcome == INCONCLUSIVE


def test_a_failed_gate_makes_a_claim_untestable_in_both_directions() -> None:
    claim = Claim("X", "p", "s", {}, every(gate("g", 0, "g"), above("x", 0, "x", **FAR)), (), "", ())
    assert verdict_of(claim, PUBLISHED, {"g": 1, "x": 1}).outcome == REPRODUCED
    assert verdict_of(claim, PUBLISHED, {"g": 1, "x": -1}).outcome == NOT_REPRODUCED
    for x in (1, -1):
        found = verdict_of(claim, PUBLISHED, {"g": -1, "x": x})
        assert found.outcome == UNTESTABLE
        assert "a condition for testing it is not met: g (> 0)" in found.reason
    assert verdict_of(claim, PUBLISHED, {"x": 1}).outcome == UNTESTABLE  # a gate that nobody measured is not met


def test_an_unmet_gate_of_one_alternative_does_not_refute_with_the_other() -> None:
    rule = either(every(gate("g", 0, "g"), above("x", 0, "x", **FAR)), every(above("y", 0, "y", **FAR)))
    claim = Claim("X", "p", "s", {}, rule, (), "", ())
    assert verdict_of(claim, PUBLISHED, {"g": -1, "x": 1, "y": -1}).outcome == INCONCLUSIVE
    assert verdict_of(claim, PUBLISHED, {"g": -1, "x": 1, "y": 1}).outcome == REPRODUCED


def test_a_p_value_never_argues_against_a_claim() -> None:
    claim = Claim("X", "p", "s", {}, every(significant("p", 0.01, "p")), (), "", ())
    assert verdict_of(claim, PUBLISHED, {"p": 0.001}, error=1e-4).outcome == REPRODUCED
    assert verdict_of(claim, PUBLISHED, {"p": 0.9}).outcome == INCONCLUSIVE


def test_one_of_many_conditions_refutes_only_at_a_stricter_level() -> None:
    """At 95 % the interval of x lies below 0; with six conditions it must do so at 99.2 %."""
    x = Estimate(-0.025, 0.01, 10)
    assert above("x", 0, "x", **FAR).outcome(x, 1) == NOT_REPRODUCED
    assert above("x", 0, "x", **FAR).outcome(x, 6) == INCONCLUSIVE
    rule = every(*(above(name, 0, name, **FAR) for name in "xabcde"))
    claim = Claim("X", "p", "s", {}, rule, (), "", ())
    values = {name: Estimate(1.0, 0.01, 10) for name in "abcde"} | {"x": x}
    assert judge(claim, Evidence("r", MODEL, values))[0].outcome == INCONCLUSIVE


def test_an_existential_claim_is_not_refuted_by_not_finding_it() -> None:
    claim = replace(TOY, existential=True)
    found = verdict_of(claim, PUBLISHED, {"x": 0.0})
    assert found.outcome == INCONCLUSIVE
    assert "not found here" in found.reason


def test_a_test_of_low_power_refutes_nothing() -> None:
    """The quantity is clearly short of 1, but a true 1.05 would hardly ever be noticed at this noise."""
    weak = replace(TOY, published=every(above("x", 1.0, "x", holds=1.05, fails=0.0)))
    evidence = Evidence("r", LAB, {"x": Estimate(0.5, 0.1, 6)})
    found, sure = judge(weak, evidence)[0], judge(TOY, evidence)[0]
    assert found.power is not None
    assert sure.power is not None
    assert found.power.power < LEAST_POWER < sure.power.power
    assert (found.outcome, sure.outcome) == (INCONCLUSIVE, NOT_REPRODUCED)
    assert "power of this test is too low" in found.reason


def test_quantities_that_cannot_exist_are_left_out_and_reported() -> None:
    rule = every(above("x", 0, "the x", **FAR), above("y", 0, "the y", **FAR))
    claim = Claim("X", "p", "s", {}, rule, (), "", ())
    found = judge(claim, Evidence("r", MODEL, {"x": Estimate(1, 0.1, 5)}, {"y": "nobody gave one"}))[0]
    assert found.outcome == REPRODUCED
    assert found.reason.startswith("only part of the claim was tested")
    assert "nobody gave one" in found.reason
    nothing = judge(claim, Evidence("r", MODEL, {}, {"x": "none", "y": "none"}))[0]
    assert nothing.outcome == INCONCLUSIVE


def test_a_verdict_becomes_a_record() -> None:
    record = verdict_of(TOY, PUBLISHED, {"x": 3.0}).to_record()
    assert (record.site, record.metric, record.value, record.error) == ("vectors", "verdict", 3.0, 1e-4)
    wanted = {"claim": "X", "line": "as published", "verdict": "reproduced", "quantity": "x (> 1)"}
    assert record.variant == {**wanted, "power": 1.0, "false_alarms": 0.0, "refuted": 1.0}
    assert record.error_kind == "spread-10-seeds"
    missing = unjudged(TOY, "no weights")[0].to_record()
    assert missing.value is None
    assert "no weights. To settle it: measure x" in str(missing.note)


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.id)
def test_the_possible_values_of_a_quantity_cannot_change_its_verdict(claim: Claim) -> None:
    """An interval that is cut off at the possible values lies on the same sides of a threshold strictly inside them."""
    for condition in claim.conditions:
        low, high = condition.within
        assert low < condition.threshold < high
        for value, error in ((condition.threshold, 0.2), (condition.threshold + 0.1, 0.01), (high, 9.0), (low, 9.0)):
            if math.isfinite(value):
                plain = Estimate(value, error, 3)
                assert condition.outcome(replace(plain, within=condition.within)) == condition.outcome(plain)


def test_shares_p_values_and_correlations_declare_their_possible_values() -> None:
    bounded = ("share of", "p of", "p under", "p against", "correlation", "I of", "cosine of hidden")
    named = [
        c for claim in CLAIMS for c in claim.conditions if any(f" {word}" in f" {c.description}" for word in bounded)
    ]
    assert len(named) > 30
    differences = [c.description for c in named if " − " in c.description]
    assert {c.description for c in named if math.isinf(c.within[0])} <= set(differences)


def test_an_interval_in_a_reason_stays_within_the_possible_values() -> None:
    rule = every(above("x", 0.5, "share of layers", (0.0, 1.0), holds=0.9, fails=0.1))
    claim = Claim("X", "p", "s", {}, rule, rule, "", ())
    published, _ = judge(claim, Evidence("r", MODEL, {"x": Estimate(0.9, 0.3, 3)}))
    assert published.reasons.conditions == ("share of layers: 0.9 [0, 1] over 3 seeds (required: > 0.5)",)
    assert str(published.effect) == "0.9 [0, 1] over 3 seeds"


def test_a_smoke_test_is_not_judged() -> None:
    evidence = Evidence("r", LAB, {"x": Estimate(3.0, 0.01, 5)}, smoke_test=True)
    for claim in (TOY, replace(TOY, published=(), control=TOY.published), replace(TOY, scope="large models")):
        assert {verdict.outcome for verdict in judge(claim, evidence)} == {SMOKE_TEST}
    assert judge(TOY, replace(evidence, smoke_test=False))[0].outcome == REPRODUCED
    assert "x: 3 [2.97, 3.03]" in judge(TOY, evidence)[0].reason  # what was measured is still shown


def test_every_outcome_has_its_own_colour_in_charts() -> None:
    assert set(VERDICTS) == {REPRODUCED, NOT_REPRODUCED, INCONCLUSIVE, UNTESTABLE, SMOKE_TEST}
    assert len(set(VERDICTS.values())) == 5


def test_what_was_run_is_stated_once_for_both_verdicts() -> None:
    claim = replace(TOY, control=every(above("x", 2.0, "x", holds=3.0, fails=1.0)))
    verdicts = judge(claim, Evidence("the lab", LAB, {"x": Estimate(1.5, 0.3, 5)}))
    assert shared_context(verdicts) == ["To settle it: measure x", "Run: the lab"]


def test_evidence_survives_json() -> None:
    quantities = {"x": Estimate(0.1, 0.2, 3), "y": Estimate(1.0, None, 1, "models")}
    evidence = Evidence("r", LAB, quantities, {"z": "why"}, smoke_test=True)
    assert Evidence.from_json(json.loads(json.dumps(evidence.to_json()))) == evidence


def record(site: str, value: float | None, metric: str = "isoscore", **more: object) -> Record:
    return Record(site, metric, value, **more)  # type: ignore[arg-type]
