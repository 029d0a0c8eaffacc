"""A claim, the evidence for it, and the rule that makes a verdict of the evidence.

The rule is the same for all: a quantity whose 95 % interval lies wholly beyond its threshold speaks for the claim,
wholly short of it against the claim, else it leaves the claim open. A judgement is a pure function of the evidence.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from scipy.special import stdtrit

from anisoscope.records import Record

if TYPE_CHECKING:
    from anisoscope.studies.claims.bench import Bench

REPRODUCED, NOT_REPRODUCED, INCONCLUSIVE = "reproduced", "not reproduced", "inconclusive"
PUBLISHED, CONTROL = "as published", "strongest control"
LAB, MODEL, SIMULATION = "lab", "model", "simulation"  # what evidence may come from
FEWEST = 3  # units below which there is no interval


# --- evidence -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Estimate:
    """A number with one standard error over n independent units: seeds in the lab, blocks of documents else.

    >>> [round(end, 3) for end in Estimate.over([1.0, 2.0, 3.0]).interval]
    [-0.484, 4.484]
    """

    value: float
    error: float | None
    n: int
    unit: str = "seeds"

    @classmethod
    def over(cls, values: Sequence[float], unit: str = "seeds") -> Estimate:
        """The mean of one value a unit, with its standard error."""
        error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None
        return cls(statistics.fmean(values), error, len(values), unit)

    @classmethod
    def jackknifed(cls, value: float, without: Sequence[float], unit: str = "documents") -> Estimate:
        """A value of everything, with its error from the values without each of the units: √((B − 1)/B Σ(v_b − v̄)²)."""
        n = len(without)
        if n < 2:
            return cls(value, None, n, unit)
        centre = statistics.fmean(without)
        return cls(value, math.sqrt((n - 1) / n * sum((v - centre) ** 2 for v in without)), n, unit)

    @classmethod
    def of_flags(cls, flags: Sequence[bool], unit: str = "seeds") -> Estimate:
        """The share of units that say yes.

        >>> Estimate.of_flags([True] * 12).interval[0] < 0.95 < Estimate.of_flags([True] * 80).interval[0]
        True
        """
        return cls.over([float(flag) for flag in flags], unit).of_answers(len(flags))

    def of_answers(self, answers: int) -> Estimate:
        """The same for a share of some yes-or-no answers: units that all agree do not make it certain.

        The error is at least that of as many independent answers, by Agresti and Coull: two of either kind are added.
        """
        if self.error is None:
            return self
        shrunk = (self.value * answers + 2) / (answers + 4)
        return replace(self, error=max(self.error, math.sqrt(shrunk * (1 - shrunk) / (answers + 4))))

    @property
    def interval(self) -> tuple[float, float]:
        """95 % by Student's t with n − 1 degrees of freedom; everything, where there are too few units."""
        if self.error is None or self.n < FEWEST:
            return -math.inf, math.inf
        half = float(stdtrit(self.n - 1, 0.975)) * self.error
        return self.value - half, self.value + half

    def __str__(self) -> str:
        if self.error is None or self.n < FEWEST:
            return f"{self.value:.3g} (no interval: {self.n} {self.unit}, at least {FEWEST} are needed)"
        low, high = self.interval
        return f"{self.value:.3g} [{low:.3g}, {high:.3g}] over {self.n} {self.unit}"

    def to_json(self) -> dict[str, Any]:
        return {"value": self.value, "error": self.error, "n": self.n, "unit": self.unit}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Estimate:
        error = None if values["error"] is None else float(values["error"])
        return cls(float(values["value"]), error, int(values["n"]), str(values["unit"]))


@dataclass(frozen=True)
class Evidence:
    """What was run, the quantities that came out, and the records that a figure is drawn from.

    `scale` says what it comes from: the lab, a model given, or a simulation. A quantity that cannot exist here is
    `left_out` with the reason, and so are the conditions on it; one that merely is missing leaves the claim open.
    """

    ran: str
    scale: str
    estimates: Mapping[str, Estimate]
    left_out: Mapping[str, str] = field(default_factory=dict)
    records: tuple[Record, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """All but the records, which a run keeps as what they are."""
        return {
            "ran": self.ran,
            "scale": self.scale,
            "estimates": {name: estimate.to_json() for name, estimate in self.estimates.items()},
            "left_out": dict(self.left_out),
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any], records: Sequence[Record] = ()) -> Evidence:
        estimates = {name: Estimate.from_json(each) for name, each in values["estimates"].items()}
        left_out = {str(name): str(why) for name, why in values["left_out"].items()}
        return cls(str(values["ran"]), str(values["scale"]), estimates, left_out, tuple(records))


# --- rules --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Condition:
    """One quantity and the side of a threshold on which the claim wants it.

    A `gate` asks whether the test can tell at all: unless it is passed, the claim stays open.
    """

    name: str
    threshold: float
    says: str
    above: bool = True
    gate: bool = False

    def outcome(self, estimate: Estimate | None) -> str:
        """Wholly beyond the threshold, wholly short of it, or neither."""
        if estimate is None:
            return INCONCLUSIVE
        low, high = estimate.interval if self.above else tuple(-end for end in reversed(estimate.interval))
        threshold = self.threshold if self.above else -self.threshold
        if low > threshold:
            return REPRODUCED
        return NOT_REPRODUCED if high <= threshold and not self.gate else INCONCLUSIVE

    @property
    def asked(self) -> str:
        return f"{'>' if self.above else '<'} {self.threshold:g}"

    def seen(self, estimate: Estimate | None) -> str:
        return f"{self.says}: {'not measured' if estimate is None else estimate} (asked: {self.asked})"


Rule = tuple[tuple[Condition, ...], ...]  # alternatives, each of them conditions that must all hold


def above(name: str, threshold: float, says: str) -> Condition:
    return Condition(name, threshold, says)


def below(name: str, threshold: float, says: str) -> Condition:
    return Condition(name, threshold, says, above=False)


def gate(name: str, threshold: float, says: str) -> Condition:
    return Condition(name, threshold, says, gate=True)


def every(*conditions: Condition) -> Rule:
    """All conditions must hold."""
    return (conditions,)


def either(*rules: Rule) -> Rule:
    """One of several rules must hold."""
    return tuple(alternative for rule in rules for alternative in rule)


# --- claims and verdicts ------------------------------------------------------------------------------------------

Gather = Callable[["Bench"], Evidence]


@dataclass(frozen=True)
class Claim:
    """What a paper says, how it is run on what is at hand, and how it is judged.

    `ways` holds how evidence is gathered by what is needed for it: "nothing", "lab", "model" or "checkpoints". `cells`
    are the trainings of the lab that it looks at. A `large` claim is about large models: the lab cannot settle it.
    """

    id: str
    paper: str
    statement: str
    ways: Mapping[str, Gather]
    published: Rule
    control: Rule
    settle: str
    figure: tuple[str, ...]  # metrics of its records, most telling first
    cells: tuple[str, ...] = ()
    seconds: float = 1.0  # a seed, besides training, in size small
    large: bool = False
    sources: tuple[str, ...] = ()  # models by hub id that size paper runs it on
    revisions: str | None = None  # and their checkpoints

    @property
    def needs(self) -> str:
        return " or ".join(self.ways)


@dataclass(frozen=True)
class Verdict:
    """The outcome of one line of a claim, the quantity that decided it, and the reason in words."""

    claim: str
    line: str
    outcome: str
    effect: Estimate | None
    reason: str
    quantity: str = ""  # what the effect is, in words

    def to_record(self) -> Record:
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


def judge(claim: Claim, evidence: Evidence) -> tuple[Verdict, Verdict]:
    """Both lines of a claim: as published, and under the strongest control.

    A quantity that is no number, or whose error is none, was not measured.
    """
    found = {name: e for name, e in evidence.estimates.items() if math.isfinite(e.value + (e.error or 0.0))}
    evidence = replace(evidence, estimates=found)
    return _line(claim, PUBLISHED, claim.published, evidence), _line(claim, CONTROL, claim.control, evidence)


def unjudged(claim: Claim, reason: str) -> tuple[Verdict, Verdict]:
    """Both lines of a claim for which no evidence could be had."""
    why = f"{reason}; {claim.settle}"
    return (
        Verdict(claim.id, PUBLISHED, INCONCLUSIVE, None, why),
        Verdict(claim.id, CONTROL, INCONCLUSIVE, None, why),
    )


def _line(claim: Claim, line: str, rule: Rule, evidence: Evidence) -> Verdict:
    if not rule:
        return Verdict(claim.id, line, INCONCLUSIVE, None, "an open question: nothing was published to compare with")
    tried = [_alternative(conditions, evidence) for conditions in rule]
    outcomes = [outcome for outcome, _ in tried]
    outcome = REPRODUCED if REPRODUCED in outcomes else INCONCLUSIVE if INCONCLUSIVE in outcomes else NOT_REPRODUCED
    place = outcomes.index(outcome)
    decider = tried[place][1]
    effect = None if decider is None else evidence.estimates.get(decider.name)
    quantity = "" if decider is None else f"{decider.says} ({decider.asked})"
    same = tuple(conditions for conditions, each in zip(rule, outcomes, strict=True) if each == outcome)
    shown = same[:1] if outcome == REPRODUCED else same  # one alternative is enough; all that fail or stay open count
    reason = "; or ".join(_in_words(conditions, evidence) for conditions in shown)
    if any(c.name in evidence.left_out for conditions in shown for c in conditions):
        reason = f"As far as was given: {reason}"
    if claim.large and evidence.scale == LAB:
        why = f"{reason}. The lab cannot settle it: {claim.settle}"
        return Verdict(claim.id, line, INCONCLUSIVE, effect, why, quantity)
    if outcome == INCONCLUSIVE:
        reason += f". To settle it: {claim.settle}"
    return Verdict(claim.id, line, outcome, effect, f"{reason}. Run: {evidence.ran}", quantity)


def _alternative(conditions: Sequence[Condition], evidence: Evidence) -> tuple[str, Condition | None]:
    """The outcome of conditions that must all hold, and the one that decides it; gates come first."""
    asked = [c for c in conditions if c.name not in evidence.left_out]
    tried = [(c.outcome(evidence.estimates.get(c.name)), c) for c in sorted(asked, key=lambda c: not c.gate)]
    for outcome, condition in tried:
        if condition.gate and outcome != REPRODUCED:
            return INCONCLUSIVE, condition
    for wanted in (NOT_REPRODUCED, INCONCLUSIVE):
        for outcome, condition in tried:
            if outcome == wanted:
                return wanted, condition
    decider = next((condition for _, condition in tried if not condition.gate), None)
    return (INCONCLUSIVE if decider is None else REPRODUCED), decider


def _in_words(conditions: Sequence[Condition], evidence: Evidence) -> str:
    told = [
        f"{c.says}: left out, {evidence.left_out[c.name]}"
        if c.name in evidence.left_out
        else c.seen(evidence.estimates.get(c.name))
        for c in conditions
    ]
    return "; ".join(told)
