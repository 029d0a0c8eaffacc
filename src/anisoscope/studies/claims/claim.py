"""A claim, the evidence for it, and the rule that turns evidence into a verdict.

All claims use the same rule. A quantity whose 95 % interval lies entirely beyond its threshold supports the claim; one
whose interval lies entirely on the other side contradicts it; otherwise the claim stays open. Models that have learnt
nothing decide nothing. A verdict is a pure function of the evidence.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from anisoscope.records import Record
from anisoscope.studies.claims.estimate import UNBOUNDED, Estimate, Range

if TYPE_CHECKING:
    from anisoscope.studies.claims.subjects import Subjects

REPRODUCED, NOT_REPRODUCED, INCONCLUSIVE = "reproduced", "not reproduced", "inconclusive"
SMOKE_TEST = "smoke test"  # not judged: the run was too small to mean anything
SMOKE_TEST_NOTE = (
    "A smoke test: models this small have learnt nothing, so no claim is judged. It only shows that the commands work. "
    "For verdicts, use --size small."
)
PUBLISHED, CONTROL = "as published", "strongest control"
LAB, MODEL, SIMULATION = "lab", "model", "simulation"  # the sources of evidence


# --- evidence -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Evidence:
    """What was run, the measured quantities, and the records for the figures.

    Attributes:
        ran: Description of what was run.
        scale: The source: `LAB`, `MODEL` or `SIMULATION`.
        estimates: The measured quantities by name.
        left_out: Quantities that cannot exist for these subjects, with the reason; conditions on them are skipped.
            A quantity that is merely missing leaves the claim open.
        records: Records for the figures.
        smoke_test: The run was too small for its numbers to mean anything, so no claim is judged by it.
    """

    ran: str
    scale: str
    estimates: Mapping[str, Estimate]
    left_out: Mapping[str, str] = field(default_factory=dict)
    records: tuple[Record, ...] = ()
    smoke_test: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return everything except the records, which are stored in the run."""
        return {
            "ran": self.ran,
            "scale": self.scale,
            "estimates": {name: estimate.to_json() for name, estimate in self.estimates.items()},
            "left_out": dict(self.left_out),
            "smoke_test": self.smoke_test,
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any], records: Sequence[Record] = ()) -> Evidence:
        estimates = {name: Estimate.from_json(each) for name, each in values["estimates"].items()}
        left_out = {str(name): str(why) for name, why in values["left_out"].items()}
        ran, scale, smoke_test = str(values["ran"]), str(values["scale"]), bool(values.get("smoke_test", False))
        return cls(ran, scale, estimates, left_out, tuple(records), smoke_test)


# --- rules --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Condition:
    """A quantity, a threshold, and the side of it that the claim requires.

    A `gate` checks whether the test can decide anything: if it fails, the claim stays open. `within` are the possible
    values of the quantity.
    """

    name: str
    threshold: float
    description: str
    above: bool = True
    gate: bool = False
    within: Range = UNBOUNDED

    def estimate(self, evidence: Evidence) -> Estimate | None:
        """Return the measured quantity with its possible values; None if it was not measured."""
        measured = evidence.estimates.get(self.name)
        return None if measured is None else replace(measured, within=self.within)

    def outcome(self, estimate: Estimate | None) -> str:
        """Return the outcome of this condition alone."""
        if estimate is None:
            return INCONCLUSIVE
        low, high = estimate.interval if self.above else tuple(-end for end in reversed(estimate.interval))
        threshold = self.threshold if self.above else -self.threshold
        if low > threshold:
            return REPRODUCED
        return NOT_REPRODUCED if high <= threshold and not self.gate else INCONCLUSIVE

    @property
    def requirement(self) -> str:
        return f"{'>' if self.above else '<'} {self.threshold:g}"

    @property
    def quantity(self) -> str:
        """The quantity with what is required of it."""
        return f"{self.description} ({self.requirement})"

    def compared(self, estimate: Estimate | None) -> str:
        """Return the condition and the estimate as text."""
        value = "not measured" if estimate is None else estimate
        return f"{self.description}: {value} (required: {self.requirement})"


Rule = tuple[tuple[Condition, ...], ...]  # alternatives, each of them conditions that must all hold


def above(name: str, threshold: float, description: str, within: Range = UNBOUNDED) -> Condition:
    """Require a quantity above a threshold; `within` are its possible values."""
    return Condition(name, threshold, description, within=within)


def below(name: str, threshold: float, description: str, within: Range = UNBOUNDED) -> Condition:
    """Require a quantity below a threshold; `within` are its possible values."""
    return Condition(name, threshold, description, above=False, within=within)


def gate(name: str, threshold: float, description: str, within: Range = UNBOUNDED) -> Condition:
    """Require a quantity above a threshold before anything else is decided; `within` are its possible values."""
    return Condition(name, threshold, description, gate=True, within=within)


def every(*conditions: Condition) -> Rule:
    """Require all conditions."""
    return (conditions,)


def either(*rules: Rule) -> Rule:
    """Require one of several rules."""
    return tuple(alternative for rule in rules for alternative in rule)


# The quantity that tells whether lab trainings have learnt anything: the loss of counting tokens (for decoders, pairs
# of tokens) minus that of the models, in nats per token. Models that counts could replace decide nothing.
LEARNT = "learnt"


# --- claims and verdicts ------------------------------------------------------------------------------------------

Gather = Callable[["Subjects"], Evidence]


@dataclass(frozen=True)
class Claim:
    """A published statement, how to gather evidence for it, and the rules that judge it.

    Attributes:
        id: Short name, such as `S1`.
        paper: Name of the paper.
        statement: The claim in one sentence.
        ways: Functions that gather evidence, by what they need: "nothing", "lab", "model" or "checkpoints".
        published: The rule of the paper: its quantity against its threshold.
        control: The rule under the strongest control.
        settle: What to run if the claim stays open.
        figure: Metrics of its records, the most informative first.
        cells: The lab trainings that it measures.
        seconds: Measuring time per seed in size small, without training.
        large: The claim is about large models, so the lab cannot settle it.
        sources: Models by hub id that size paper uses.
        revisions: Checkpoints of these models.
    """

    id: str
    paper: str
    statement: str
    ways: Mapping[str, Gather]
    published: Rule
    control: Rule
    settle: str
    figure: tuple[str, ...]
    cells: tuple[str, ...] = ()
    seconds: float = 1.0
    large: bool = False
    sources: tuple[str, ...] = ()
    revisions: str | None = None

    @property
    def needs(self) -> str:
        return " or ".join(self.ways)

    @property
    def conditions(self) -> list[Condition]:
        """Every condition of both rules."""
        return [condition for conditions in (*self.published, *self.control) for condition in conditions]


@dataclass(frozen=True)
class Verdict:
    """The outcome of one line of a claim, the quantity that decided it, and the reasons.

    Attributes:
        claim: Id of the claim.
        line: `PUBLISHED` or `CONTROL`.
        outcome: `REPRODUCED`, `NOT_REPRODUCED` or `INCONCLUSIVE`; `SMOKE_TEST` if the run was too small to judge.
        effect: The estimate that decided; None if it was not measured.
        reasons: One sentence per condition, then what would settle the claim and what was run.
        quantity: Description of the effect.
    """

    claim: str
    line: str
    outcome: str
    effect: Estimate | None
    reasons: Reasons
    quantity: str = ""

    @property
    def reason(self) -> str:
        """All reasons as one text."""
        return str(self.reasons)

    def to_record(self) -> Record:
        """Return the verdict as a record."""
        effect = self.effect
        return Record(
            "vectors",
            "verdict",
            None if effect is None else effect.value,
            variant={"claim": self.claim, "line": self.line, "verdict": self.outcome, "quantity": self.quantity},
            error=None if effect is None else effect.error,
            error_kind=None if effect is None or effect.error is None else f"spread-{effect.n}-{effect.unit}",
            n=None if effect is None else effect.n,
            note=self.reason,
        )


@dataclass(frozen=True)
class Reasons:
    """Why a verdict is as it is."""

    conditions: tuple[str, ...]  # each with its estimate
    settle: str = ""  # what to run if the claim is open
    ran: str = ""  # what was run

    @property
    def context(self) -> tuple[str, ...]:
        """What would settle the claim, and what was run: one line each."""
        settle = (f"To settle it: {self.settle}",) if self.settle else ()
        ran = (f"Run: {self.ran}",) if self.ran else ()
        return (*settle, *ran)

    def __str__(self) -> str:
        return ". ".join(("; ".join(self.conditions), *self.context))


def shared_context(verdicts: Sequence[Verdict]) -> list[str]:
    """Return what would settle a claim and what was run, each once for all verdicts."""
    return list(dict.fromkeys(line for verdict in verdicts for line in verdict.reasons.context))


def judge(claim: Claim, evidence: Evidence) -> tuple[Verdict, Verdict]:
    """Judge both lines of a claim.

    A quantity with a value or error that is not finite counts as not measured.

    Returns:
        The verdict as published, and the verdict under the strongest control.
    """
    finite = {name: e for name, e in evidence.estimates.items() if math.isfinite(e.value + (e.error or 0.0))}
    evidence = replace(evidence, estimates=finite)
    return _line(claim, PUBLISHED, claim.published, evidence), _line(claim, CONTROL, claim.control, evidence)


def unjudged(claim: Claim, reason: str) -> tuple[Verdict, Verdict]:
    """Return both verdicts of a claim without evidence."""
    reasons = Reasons((reason.removesuffix("."),), claim.settle)
    return (
        Verdict(claim.id, PUBLISHED, INCONCLUSIVE, None, reasons),
        Verdict(claim.id, CONTROL, INCONCLUSIVE, None, reasons),
    )


def _line(claim: Claim, line: str, rule: Rule, evidence: Evidence) -> Verdict:
    if not rule:
        reasons = Reasons(("an open question: nothing was published to compare with",))
        return Verdict(claim.id, line, SMOKE_TEST if evidence.smoke_test else INCONCLUSIVE, None, reasons)
    judged = [_alternative(conditions, evidence) for conditions in rule]
    outcomes = [outcome for outcome, _ in judged]
    outcome = REPRODUCED if REPRODUCED in outcomes else INCONCLUSIVE if INCONCLUSIVE in outcomes else NOT_REPRODUCED
    decider = judged[outcomes.index(outcome)][1]
    effect = None if decider is None else decider.estimate(evidence)
    quantity = "" if decider is None else decider.quantity
    same = tuple(conditions for conditions, each in zip(rule, outcomes, strict=True) if each == outcome)
    shown = same[:1] if outcome == REPRODUCED else same  # one alternative is enough; all that fail or stay open count
    texts = tuple(
        f"{'or ' if number and not index else ''}{_compared(condition, evidence)}"
        for number, conditions in enumerate(shown)
        for index, condition in enumerate(conditions)
    )
    if any(c.name in evidence.left_out for conditions in shown for c in conditions):
        texts = ("only part of the claim was tested", *texts)
    if evidence.smoke_test:
        return Verdict(claim.id, line, SMOKE_TEST, effect, Reasons(texts, "", evidence.ran), quantity)
    learnt = evidence.estimates.get(LEARNT)
    if learnt is not None and learnt.value <= 0:
        loss = f"their loss is {-learnt.value:.2g} nats per token above that of counting tokens"
        texts, outcome = (f"the models have not learnt enough: {loss}", *texts), INCONCLUSIVE
    if claim.large and evidence.scale == LAB:
        settle = f"the lab cannot, because the claim is about large models. {claim.settle}"
        return Verdict(claim.id, line, INCONCLUSIVE, effect, Reasons(texts, settle), quantity)
    settle = claim.settle if outcome == INCONCLUSIVE else ""
    return Verdict(claim.id, line, outcome, effect, Reasons(texts, settle, evidence.ran), quantity)


def _alternative(conditions: Sequence[Condition], evidence: Evidence) -> tuple[str, Condition | None]:
    """Return the outcome of conditions that must all hold, and the condition that decides; gates come first."""
    applicable = [c for c in conditions if c.name not in evidence.left_out]
    judged = [(c.outcome(c.estimate(evidence)), c) for c in sorted(applicable, key=lambda c: not c.gate)]
    for outcome, condition in judged:
        if condition.gate and outcome != REPRODUCED:
            return INCONCLUSIVE, condition
    for wanted in (NOT_REPRODUCED, INCONCLUSIVE):
        for outcome, condition in judged:
            if outcome == wanted:
                return wanted, condition
    decider = next((condition for _, condition in judged if not condition.gate), None)
    return (INCONCLUSIVE if decider is None else REPRODUCED), decider


def _compared(condition: Condition, evidence: Evidence) -> str:
    if condition.name in evidence.left_out:
        return f"{condition.description}: left out, {evidence.left_out[condition.name]}"
    return condition.compared(condition.estimate(evidence))
