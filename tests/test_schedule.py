"""Schedules are functions of the step, and combine."""

from __future__ import annotations

import pytest

from anisoscope import InputError
from anisoscope.schedule import Schedule, all_of, any_of, at, default, every, log_spaced


def due(schedule: Schedule, until: int) -> list[int]:
    return [step for step in range(until) if schedule(step)]


def test_the_default_is_log_spaced_at_first_and_then_every_400_steps() -> None:
    steps = due(default(), 2001)
    assert steps[:10] == [0, 1, 2, 4, 8, 16, 32, 64, 128, 256]
    assert steps[10:] == list(range(400, 2001, 400))


@pytest.mark.parametrize("factor", [1.1, 1.5, 2.0, 10.0])
def test_log_spaced_steps_grow_by_about_the_factor(factor: float) -> None:
    steps = due(log_spaced(factor), 20_000)
    expected = {0, *(round(factor**k) for k in range(200) if round(factor**k) < 20_000)}
    assert steps == sorted(expected)


def test_log_spaced_ends_at_its_last_step() -> None:
    assert due(log_spaced(2, until=16), 100) == [0, 1, 2, 4, 8, 16]


def test_schedules_combine() -> None:
    assert due(any_of(at(3), every(5)), 11) == [0, 3, 5, 10]
    assert due(all_of(log_spaced(2), every(4)), 40) == [0, 4, 8, 16, 32]
    assert due(every(5, start=2), 13) == [2, 7, 12]


@pytest.mark.parametrize("make", [lambda: every(0), lambda: log_spaced(1.0)])
def test_an_impossible_schedule_is_an_error(make: object) -> None:
    assert callable(make)
    with pytest.raises(InputError, match=r"every\(0\)|log_spaced\(1"):
        make()
