"""Rules: conditions on measured quantities, and which verdict each condition alone allows.

A condition is one of three kinds. An *effect* supports a claim if its 95 % interval lies entirely beyond the threshold,
and contradicts it if the interval lies entirely on the other side. A *p-value* supports a claim if it is small, and
never argues against it: a large p-value only means that the test saw nothing. A *gate* checks that the claim can be
tested at all; if it is not met, nothing is decided, in either direction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from anisoscope.studies.claims.estimate import SHARE, UNBOUNDED, Estimate, Range

REPRODUCED, NOT_REPRODUCED, INCONCLUSIVE = "reproduced", "not reproduced", "inconclusive"
UNTESTABLE = "untestable here"  # a condition for testing the claim is not met
EFFECT, P_VALUE, GATE = "effect", "p-value", "gate"
ALPHA = 0.05  # of an interval


@dataclass(frozen=True)
class Condition:
    """A quantity, a threshold, and the side of it that the claim requires.

    Attributes:
        name: Name of the quantity in the evidence.
        threshold: The threshold.
        description: The quantity in words.
        above: Whether the quantity must lie above the threshold.
        kind: `EFFECT`, `P_VALUE` or `GATE`.
        within: The possible values of the quantity.
        holds: Its true value in a simulated world in which the claim holds: the published effect, or the smallest that
            would be of interest.
        fails: Its true value in a world in which the claim does not hold.
    """

    name: str
    threshold: float
    description: str
    above: bool = True
    kind: str = EFFECT
    within: Range = UNBOUNDED
    holds: float = 0.0
    fails: float = 0.0

    @property
    def gate(self) -> bool:
        """Whether this condition checks if the claim can be tested."""
        return self.kind == GATE

    def outcome(self, estimate: Estimate | None, conditions: int = 1) -> str:
        """Return the outcome of this condition alone.

        Args:
            estimate: The measured quantity; None if it was not measured.
            conditions: Number of conditions of the rule. One that fails is enough to contradict the claim, so each
                is tested at the level 0.05 divided by this number (Bonferroni).
        """
        if estimate is None:
            return UNTESTABLE if self.gate else INCONCLUSIVE
        if self._beyond(estimate.interval):
            return REPRODUCED
        if self.gate:
            return UNTESTABLE
        if self.kind == P_VALUE or not self._short_of(estimate.interval_at(ALPHA / conditions)):
            return INCONCLUSIVE
        return NOT_REPRODUCED

    def _beyond(self, interval: tuple[float, float]) -> bool:
        low, high = interval
        return low > self.threshold if self.above else high < self.threshold

    def _short_of(self, interval: tuple[float, float]) -> bool:
        low, high = interval
        return high <= self.threshold if self.above else low >= self.threshold

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


def above(
    name: str, threshold: float, description: str, within: Range = UNBOUNDED, *, holds: float, fails: float
) -> Condition:
    """Require an effect above a threshold; see `Condition` for the other arguments.

    >>> above("bell", 0.0, "height of the bell", holds=0.1, fails=-0.1).quantity
    'height of the bell (> 0)'
    """
    return Condition(name, threshold, description, True, EFFECT, within, holds, fails)


def below(
    name: str, threshold: float, description: str, within: Range = UNBOUNDED, *, holds: float, fails: float
) -> Condition:
    """Require an effect below a threshold; see `Condition` for the other arguments."""
    return Condition(name, threshold, description, False, EFFECT, within, holds, fails)


def significant(name: str, alpha: float, description: str) -> Condition:
    """Require a p-value below `alpha`. A larger one leaves the claim open and never contradicts it."""
    return Condition(name, alpha, description, False, P_VALUE, SHARE, alpha / 10, 0.5)


def gate(name: str, threshold: float, description: str, *, below: bool = False, within: Range = UNBOUNDED) -> Condition:
    """Require a quantity beyond a threshold before anything else is decided, for or against the claim."""
    return Condition(name, threshold, description, not below, GATE, within)


def every(*conditions: Condition) -> Rule:
    """Require all conditions."""
    return (conditions,)


def either(*rules: Rule) -> Rule:
    """Require one of several rules."""
    return tuple(alternative for rule in rules for alternative in rule)


def effects(conditions: Sequence[Condition]) -> int:
    """Return how many conditions can contradict a claim, at least 1."""
    return max(1, sum(condition.kind == EFFECT for condition in conditions))
