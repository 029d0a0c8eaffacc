"""What all rules share: how an alert is made, which records a rule reads, and how unusual a value is."""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from anisoscope.records import Record, Site

Rule = Callable[[Sequence[Record]], Iterable[Record]]  # from the records of one measurement to alerts
YOUNG = 300  # steps in which everything changes fast; rules on the shape of rows wait for their end
_TO_SIGMA = 1.4826  # the standard deviation of normal values over their median absolute deviation
_SMALLEST = 0.02  # spread of a history whose values hardly differ


def alert(at: Record, rule: str, text: str, *, since: int | None = None, unusual: str = "", helps: str = "") -> Record:
    """Return the alert of a rule about a record.

    Args:
        at: The record that the alert is about; gives run, step, site, tokens, index and value.
        rule: The name of the rule.
        text: What happened, in one line.
        since: The step at which it began, if that is earlier than the record.
        unusual: How unusual it is in this run.
        helps: What usually helps.
    """
    begun = at.step if since is None else since
    note = "; ".join(part for part in (text, f"since step {begun:,}", unusual) if part)
    return Record(
        at.site,
        "alert",
        at.value,
        run=at.run,
        step=at.step,
        tokens=at.tokens,
        variant={"rule": rule, "since": begun},
        note=f"{note}. Usually helps: {helps}." if helps else note,
    )


def stop(rule: Rule) -> Rule:
    """Return the same rule, whose alerts also set `tracker.should_stop`; the integrations then end the training."""
    return lambda records: [replace(a, variant={**a.variant, "stop": True}) for a in rule(records)]


def call(rule: Rule, back: Callable[[Record], object]) -> Rule:
    """Return the same rule, which also passes each of its alerts to the function `back`."""

    def with_callback(records: Sequence[Record]) -> list[Record]:
        alerts = list(rule(records))
        for each in alerts:
            back(each)
        return alerts

    return with_callback


class UsualRange:
    """The recent values of one series, and how far a new one lies outside them.

    Args:
        window: How many values are remembered.
        least: How many are needed before any value counts as unusual.
    """

    def __init__(self, window: int = 100, least: int = 20) -> None:
        self._least = least
        self.values: deque[float] = deque(maxlen=window)

    def add(self, value: float) -> None:
        self.values.append(value)

    @property
    def is_known(self) -> bool:
        return len(self.values) >= self._least

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    def score(self, value: float) -> float:
        """Return (value − median)/σ with σ from the median absolute deviation; 0 while too little is known.

        σ is at least 2 % of the median, so that a constant history does not make every change unusual.

        >>> usual = UsualRange(least=3)
        >>> for past in (1.0, 2.0, 3.0):
        ...     usual.add(past)
        >>> round(usual.score(8.0), 1)
        4.0
        """
        if not self.is_known:
            return 0.0
        centre = self.median
        spread = _TO_SIGMA * statistics.median(abs(past - centre) for past in self.values)
        return (value - centre) / max(spread, _SMALLEST * abs(centre), 1e-12)


class Persistence:
    """Counts how often in a row something holds at a site, and since which step."""

    def __init__(self) -> None:
        self._held: dict[str, tuple[int, int]] = {}  # times in a row and the first step, by key

    def count(self, key: str, step: int, holds: bool) -> tuple[int, int]:
        """Return how many times in a row it holds, this time included, and since when."""
        times, since = self._held.get(key, (0, step))
        self._held[key] = (times + 1, since) if holds else (0, step)
        if holds and times == 0:
            self._held[key] = (1, step)
        return self._held[key]


def values(records: Sequence[Record], metric: str, tokens: str | None = None) -> Iterator[tuple[Record, float]]:
    """Yield the records of this metric that have a value, with the value; not those of gradients of hidden states."""
    for record in records:
        matches = record.metric == metric and tokens in (None, record.tokens) and not record.site.startswith("grad.")
        if matches and record.value is not None:
            yield record, record.value


def layers(records: Sequence[Record], metric: str, tokens: str) -> list[tuple[Record, float]]:
    """Return the records and values of residual layers, in the order of layers."""
    residual = [each for each in values(records, metric, tokens) if Site.parse(each[0].site).kind == "resid"]
    return sorted(residual, key=lambda each: Site.parse(each[0].site))


def log_of(value: float) -> float:
    """Return the logarithm of a positive value; of zero that of the smallest number."""
    return math.log(max(value, 1e-300))
