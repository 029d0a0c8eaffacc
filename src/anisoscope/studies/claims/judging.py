"""Judge a claim: from its rules and its evidence to two verdicts, each with the power of its rule."""

from __future__ import annotations

from anisoscope.studies.claims.claim import (
    CONTROL,
    LAB,
    LEAST_POWER,
    PUBLISHED,
    SMOKE_TEST,
    Claim,
    Evidence,
    Power,
    Reasons,
    Verdict,
    measured,
    outcome_of,
)
from anisoscope.studies.claims.conditions import INCONCLUSIVE, NOT_REPRODUCED, REPRODUCED, UNTESTABLE, Condition, Rule
from anisoscope.studies.claims.rule_power import power_of


def judge(claim: Claim, evidence: Evidence) -> tuple[Verdict, Verdict]:
    """Judge both lines of a claim.

    Returns:
        The verdict as published, and the verdict under the strongest control.
    """
    return _line(claim, PUBLISHED, evidence), _line(claim, CONTROL, evidence)


def _line(claim: Claim, line: str, evidence: Evidence) -> Verdict:
    rule = claim.rule(line)
    if not rule:
        reasons = Reasons(("an open question: nothing was published to compare with",))
        return Verdict(claim.id, line, SMOKE_TEST if evidence.smoke_test else INCONCLUSIVE, None, reasons)
    outcome, number, decider = outcome_of(rule, evidence)
    effect = None if decider is None else measured(decider, evidence)
    quantity = "" if decider is None else decider.quantity
    texts = _texts(rule, number, outcome, evidence)
    if evidence.smoke_test:
        return Verdict(claim.id, line, SMOKE_TEST, effect, Reasons(texts, "", evidence.ran), quantity)
    power = power_of(rule, evidence)
    outcome, why = _with_safeguards(claim, evidence, outcome, decider, power)
    settle = claim.settle if outcome in (INCONCLUSIVE, UNTESTABLE) else ""
    return Verdict(claim.id, line, outcome, effect, Reasons((*why, *texts), settle, evidence.ran), quantity, power)


def _with_safeguards(
    claim: Claim, evidence: Evidence, outcome: str, decider: Condition | None, power: Power | None
) -> tuple[str, tuple[str, ...]]:
    """The outcome that may be reported, and why if it is weaker than that of the rule."""
    if claim.scope and evidence.scale == LAB:
        return UNTESTABLE, (f"the claim is about {claim.scope}, which the lab does not have",)
    if outcome == UNTESTABLE and decider is not None:
        return UNTESTABLE, (f"a condition for testing it is not met: {decider.quantity}",)
    if outcome != NOT_REPRODUCED:
        return outcome, ()
    if claim.existential:
        return INCONCLUSIVE, ("not found here, which does not exclude that it exists",)
    if power is None or power.power < LEAST_POWER:
        share = "unknown" if power is None else f"{power.power:.0%}"
        return INCONCLUSIVE, (f"the quantity falls short, but the power of this test is too low to tell ({share})",)
    return outcome, ()


def _texts(rule: Rule, number: int, outcome: str, evidence: Evidence) -> tuple[str, ...]:
    """One text per condition of the alternatives that matter: the one that holds, or all if none does."""
    shown = (rule[number],) if outcome == REPRODUCED else rule
    texts = tuple(
        dict.fromkeys(
            f"{'or ' if index and not position and len(shown) > 1 else ''}{_compared(condition, evidence)}"
            for index, conditions in enumerate(shown)
            for position, condition in enumerate(conditions)
        )
    )
    if any(c.name in evidence.left_out for conditions in shown for c in conditions):
        texts = ("only part of the claim was tested", *texts)
    return texts


def _compared(condition: Condition, evidence: Evidence) -> str:
    if condition.name in evidence.left_out:
        return f"{condition.description}: left out, {evidence.left_out[condition.name].removesuffix('.')}"
    return condition.compared(measured(condition, evidence))
