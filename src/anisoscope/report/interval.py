"""From a standard error to a 95 % interval: Student's t, because errors rest on few blocks."""

from __future__ import annotations

import math
import re
from functools import lru_cache

from anisoscope.stats.inference import t_quantile


def interval(
    value: float, error: float, error_kind: str | None, low: float | None = None, high: float | None = None
) -> tuple[float, float]:
    """The 95 % interval of a value, limited to the range of its metric.

    The true value lies in the range, so the limited interval contains it exactly as often.

    Args:
        value: The value.
        error: One standard error.
        error_kind: How the error was found, as in the record.
        low: The smallest possible value; None if there is none.
        high: The largest possible value; None if there is none.

    >>> [round(end, 3) for end in interval(0.9, 0.1, "jackknife-16-documents", 0, 1)]
    [0.687, 1]
    """
    half = error * t_factor(error_kind)
    start, end = value - half, value + half
    # A value outside the range (a card of another version) stays in its interval.
    return (start if low is None else max(start, min(low, value))), (
        end if high is None else min(end, max(high, value))
    )


@lru_cache(maxsize=256)
def t_factor(error_kind: str | None) -> float:
    """Half the width of a 95 % interval in standard errors, for the `error_kind` of a record.

    >>> round(t_factor("jackknife-16-documents"), 3), round(t_factor(None), 3)
    (2.131, 1.96)
    """
    blocks = re.search(r"\d{1,9}", error_kind or "")
    return half_width(None if blocks is None else int(blocks[0]))


@lru_cache(maxsize=256)
def half_width(blocks: int | None) -> float:
    """The 97.5 % quantile of Student's t with blocks − 1 degrees of freedom; of the normal law if that is unknown."""
    return t_quantile(0.975, math.inf if blocks is None or blocks < 2 else blocks - 1)
