"""A measured quantity with its standard error, its units and its possible values."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from anisoscope.stats.inference import jackknife, t_quantile

FEWEST = 3  # fewer units give no interval
Range = tuple[float, float]  # the smallest and the largest possible value of a quantity
UNBOUNDED: Range = (-math.inf, math.inf)
SHARE: Range = (0.0, 1.0)  # of shares, p-values and I
CORRELATION: Range = (-1.0, 1.0)  # of correlations and cosines
NOT_NEGATIVE: Range = (0.0, math.inf)
_ZERO = 1e-12  # below it a number is rounding error


@dataclass(frozen=True)
class Estimate:
    """A number with one standard error over n independent units: seeds of lab trainings, or blocks of documents.

    >>> [round(end, 3) for end in Estimate.over([1.0, 2.0, 3.0]).interval]
    [-0.484, 4.484]

    Attributes:
        value: The number.
        error: One standard error; None if there are too few units.
        n: Number of units.
        unit: What the units are.
        within: The possible values. The interval is cut off there: the true value cannot lie outside, so the interval
            covers it as often as before.
    """

    value: float
    error: float | None
    n: int
    unit: str = "seeds"
    within: Range = UNBOUNDED

    @classmethod
    def over(cls, values: Sequence[float], unit: str = "seeds") -> Estimate:
        """Return the mean of one value per unit, with its standard error."""
        error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None
        return cls(statistics.fmean(values), error, len(values), unit)

    @classmethod
    def jackknifed(cls, value: float, without: Sequence[float], unit: str = "documents") -> Estimate:
        """Return the value of all units, with its jackknife error from the values without one unit each."""
        n = len(without)
        return cls(value, jackknife(value, without) if n > 1 else None, n, unit)

    @classmethod
    def of_flags(cls, flags: Sequence[bool], unit: str = "seeds") -> Estimate:
        """Return the share of units whose flag is true.

        >>> Estimate.of_flags([True] * 12).interval[0] < 0.95 < Estimate.of_flags([True] * 80).interval[0]
        True
        """
        return cls.over([float(flag) for flag in flags], unit).of_answers(len(flags))

    def of_answers(self, answers: int) -> Estimate:
        """Return the estimate as a share of yes-or-no answers, so that unanimous units do not make it certain.

        The error is at least that of as many independent answers, by Agresti and Coull: two of each kind are added.
        """
        if self.error is None:
            return self
        shrunk = (self.value * answers + 2) / (answers + 4)
        return replace(self, error=max(self.error, math.sqrt(shrunk * (1 - shrunk) / (answers + 4))))

    @classmethod
    def exact(cls, value: float, unit: str = "") -> Estimate:
        """Return a number without error, such as a count or a measured loss.

        >>> Estimate.exact(12, "states").interval
        (12, 12)
        """
        return cls(value, 0.0, 0, unit)

    @property
    def is_exact(self) -> bool:
        """Whether the number has no error."""
        return self.n == 0

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval by Student's t with n − 1 degrees of freedom; all values if there are too few units."""
        return self.interval_at(0.05)

    def interval_at(self, alpha: float) -> tuple[float, float]:
        """Return the two-sided interval that misses the true value with probability `alpha`.

        >>> wide, narrow = (Estimate.over([1.0, 2.0, 3.0]).interval_at(alpha) for alpha in (0.01, 0.05))
        >>> wide[0] < narrow[0]
        True
        """
        if self.is_exact:
            return self.value, self.value
        if self.error is None or self.n < FEWEST:
            return self.within
        half = t_quantile(1 - alpha / 2, self.n - 1) * self.error
        least, most = self.within
        low, high = (min(max(end, least), most) for end in (self.value - half, self.value + half))
        return low, high

    def __str__(self) -> str:
        if self.is_exact:
            return f"{_short(self.value)} {self.unit}".rstrip()
        if self.error is None or self.n < FEWEST:
            unit = self.unit.removesuffix("s") if self.n == 1 else self.unit
            return f"{_short(self.value)} ({self.n} {unit}; an interval needs {FEWEST})"
        low, high = map(_short, self.interval)
        return f"{_short(self.value)} [{low}, {high}] over {self.n} {self.unit}"

    def to_json(self) -> dict[str, Any]:
        return {"value": self.value, "error": self.error, "n": self.n, "unit": self.unit}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Estimate:
        error = None if values["error"] is None else float(values["error"])
        return cls(float(values["value"]), error, int(values["n"]), str(values["unit"]))


def _short(value: float) -> str:
    return f"{0.0 if abs(value) < _ZERO else value:.3g}"
