"""Which steps to measure. A schedule is a function step -> bool; you can pass your own.

>>> early_then_often = any_of(log_spaced(until=200), every(200))
>>> [step for step in range(1000) if early_then_often(step)]
[0, 1, 2, 4, 8, 16, 32, 64, 128, 200, 400, 600, 800]
"""

from __future__ import annotations

import math
from collections.abc import Callable

from anisoscope.errors import InputError

Schedule = Callable[[int], bool]


def every(period: int, *, start: int = 0) -> Schedule:
    """Return a schedule of every `period`-th step from `start` on.

    >>> [step for step in range(10) if every(4, start=1)(step)]
    [1, 5, 9]
    """
    if period < 1:
        raise InputError(f"every({period}): the period must be at least 1.")
    return lambda step: step >= start and (step - start) % period == 0


def log_spaced(factor: float = 2.0, *, until: int | None = None) -> Schedule:
    """Return a schedule of steps 0, 1 and then each about `factor` times the previous one, up to and including `until`.

    >>> [step for step in range(100) if log_spaced(3)(step)]
    [0, 1, 3, 9, 27, 81]
    """
    if not factor > 1:
        raise InputError(f"log_spaced({factor}): the factor must be greater than 1.")
    width = math.log(factor)

    def due(step: int) -> bool:
        if step < 1 or (until is not None and step > until):
            return step == 0
        return step == round(factor ** round(math.log(step) / width))

    return due


def at(*steps: int) -> Schedule:
    """Return a schedule of exactly these steps.

    >>> at(0, 500)(500), at(0, 500)(501)
    (True, False)
    """
    return frozenset(steps).__contains__


def any_of(*schedules: Schedule) -> Schedule:
    """Return a schedule of the steps that any of the schedules includes."""
    return lambda step: any(due(step) for due in schedules)


def all_of(*schedules: Schedule) -> Schedule:
    """Return a schedule of the steps that all of the schedules include.

    >>> [step for step in range(20) if all_of(every(2), every(3))(step)]
    [0, 6, 12, 18]
    """
    return lambda step: all(due(step) for due in schedules)


def default() -> Schedule:
    """Return the default schedule: log-spaced up to step 400, while everything changes fast, then every 400 steps."""
    return any_of(log_spaced(until=400), every(400))
