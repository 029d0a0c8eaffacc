"""A claim, the evidence for it, and the verdict on it: a pure function of the evidence.

All claims are judged in the same way, from the conditions of their rules (see `conditions`). A gate that is not met
makes a claim untestable here, whatever the numbers say. "Not reproduced" also needs a rule that would have noticed the
effect: its power, in simulated worlds at the noise of the evidence, must be at least 80 %.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from anisoscope.records import Record
from anisoscope.studies.claims.conditions import (
    INCONCLUSIVE,
    NOT_REPRODUCED,
    REPRODUCED,
    UNTESTABLE,
    Condition,
    Rule,
    effects,
)
from anisoscope.studies.claims.estimate import Estimate

if TYPE_CHECKING:
    from anisoscope.studies.claims.subjects import Subjects

SMOKE_TEST = "smoke test"  # not judged: the run was too small to mean anything
SMOKE_TEST_NOTE = (
    "A smoke test: models this small have learnt nothing, so no claim is judged. It only shows that the commands work. "
    "For verdicts, use --size small."
)
PUBLISHED, CONTROL = "as published", "strongest control"
LAB, MODEL, SIMULATION = "lab", "model", "simulation"  # the sources of evidence
LEAST_POWER = 0.8  # with less, a rule cannot contradict a claim


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
        plain: The claim in words that need no background, for the table that visitors read first.
        found: What the paper found, in a few words.
        gates: Conditions for testing the claim at all, for both lines.
        scope: What the claim is about, if the lab cannot be it, such as "large models".
        existential: The claim says that something can happen; not finding it here does not contradict it.
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
    sources: tuple[str, ...] = ()
    revisions: str | None = None
    plain: str = ""
    found: str = ""
    gates: tuple[Condition, ...] = ()
    scope: str = ""
    existential: bool = False

    @property
    def needs(self) -> str:
        return " or ".join(self.ways)

    @property
    def conditions(self) -> list[Condition]:
        """Every condition of both rules."""
        return [condition for conditions in (*self.published, *self.control) for condition in conditions]

    @property
    def all_gates(self) -> tuple[Condition, ...]:
        """The gates of both lines, and those of one line only."""
        return (*self.gates, *(condition for condition in self.conditions if condition.gate))

    def rule(self, line: str) -> Rule:
        """Return the rule of a line, each alternative with the gates of the claim."""
        return tuple((*self.gates, *each) for each in (self.published if line == PUBLISHED else self.control))


@dataclass(frozen=True)
class Power:
    """How a rule judges simulated worlds at the number of units and the noise of the evidence.

    Attributes:
        power: Share of worlds in which the claim holds that are judged "reproduced".
        false_alarms: Share of worlds in which it does not hold that are judged "reproduced".
        refuted: Share of worlds in which it does not hold that are judged "not reproduced".
    """

    power: float
    false_alarms: float
    refuted: float


@dataclass(frozen=True)
class Verdict:
    """The outcome of one line of a claim, the quantity that decided it, and the reasons.

    Attributes:
        claim: Id of the claim.
        line: `PUBLISHED` or `CONTROL`.
        outcome: `REPRODUCED`, `NOT_REPRODUCED`, `INCONCLUSIVE` or `UNTESTABLE`; `SMOKE_TEST` if the run was too small.
        effect: The estimate that decided; None if it was not measured.
        reasons: One sentence per condition, then what would settle the claim and what was run.
        quantity: Description of the effect.
        power: How the rule judges simulated worlds; None if the evidence gives no noise to simulate with.
    """

    claim: str
    line: str
    outcome: str
    effect: Estimate | None
    reasons: Reasons
    quantity: str = ""
    power: Power | None = None

    @property
    def reason(self) -> str:
        """All reasons as one text."""
        return str(self.reasons)

    def to_record(self) -> Record:
        """Return the verdict as a record."""
        effect = self.effect
        variant: dict[str, Any] = {"claim": self.claim, "line": self.line, "verdict": self.outcome}
        variant["quantity"] = self.quantity
        if self.power is not None:
            variant |= asdict(self.power)
        return Record(
            "vectors",
            "verdict",
            None if effect is None else effect.value,
            variant=variant,
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


def unjudged(claim: Claim, reason: str) -> tuple[Verdict, Verdict]:
    """Return both verdicts of a claim without evidence."""
    reasons = Reasons((reason.removesuffix("."),), claim.settle)
    return (
        Verdict(claim.id, PUBLISHED, INCONCLUSIVE, None, reasons),
        Verdict(claim.id, CONTROL, INCONCLUSIVE, None, reasons),
    )


def measured(condition: Condition, evidence: Evidence) -> Estimate | None:
    """Return the measured quantity of a condition with its possible values.

    Returns:
        None if it was not measured; a value or error that is not finite counts as not measured.
    """
    estimate = evidence.estimates.get(condition.name)
    if estimate is None or not math.isfinite(estimate.value + (estimate.error or 0.0)):
        return None
    return replace(estimate, within=condition.within)


def outcome_of(rule: Rule, evidence: Evidence) -> tuple[str, int, Condition | None]:
    """Judge the alternatives of a rule.

    Returns:
        The outcome, the number of the alternative that decides, and its condition that decides.
    """
    judged = [_alternative(conditions, evidence) for conditions in rule]
    outcomes = [outcome for outcome, _ in judged]
    order = (REPRODUCED, INCONCLUSIVE)  # one alternative is enough; one that is open leaves the rule open
    mixed = INCONCLUSIVE if NOT_REPRODUCED in outcomes and UNTESTABLE in outcomes else outcomes[0]
    outcome = next((each for each in order if each in outcomes), mixed)
    number = outcomes.index(outcome) if outcome in outcomes else outcomes.index(UNTESTABLE)
    return outcome, number, judged[number][1]


def _alternative(conditions: Sequence[Condition], evidence: Evidence) -> tuple[str, Condition | None]:
    """Return the outcome of conditions that must all hold, and the condition that decides; gates come first."""
    applicable = [c for c in conditions if c.name not in evidence.left_out]
    number = effects(applicable)
    judged = [(c.outcome(measured(c, evidence), number), c) for c in sorted(applicable, key=lambda each: not each.gate)]
    for wanted in (UNTESTABLE, NOT_REPRODUCED, INCONCLUSIVE):
        for outcome, condition in judged:
            if outcome == wanted:
                return wanted, condition
    decider = next((condition for _, condition in judged if not condition.gate), None)
    return (INCONCLUSIVE if decider is None else REPRODUCED), decider
