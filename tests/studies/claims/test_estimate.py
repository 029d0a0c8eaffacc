"""Estimates: their errors and intervals."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import scipy.stats

from anisoscope.studies.claims.estimate import NOT_NEGATIVE, SHARE, Estimate


def test_the_interval_is_that_of_student_t() -> None:
    values = [0.2, 0.5, 0.9, 0.4, 0.1]
    low, high = scipy.stats.t.interval(0.95, 4, np.mean(values), scipy.stats.sem(values))
    assert Estimate.over(values).interval == pytest.approx((low, high))


def test_a_jackknifed_mean_has_the_error_of_the_mean() -> None:
    values = np.array([0.2, 0.5, 0.9, 0.4, 0.1])
    without = [float(np.delete(values, place).mean()) for place in range(5)]
    made = Estimate.jackknifed(float(values.mean()), without)
    assert made.error == pytest.approx(scipy.stats.sem(values))


def test_an_interval_is_cut_off_at_the_possible_values() -> None:
    flags = Estimate.of_flags([True] * 3)
    assert flags.interval[1] > 1.2
    share = replace(flags, within=SHARE)
    assert share.interval == (flags.interval[0], 1.0)
    assert str(share).endswith(", 1] over 3 seeds")
    p = Estimate(0.2, 0.1, 3, within=SHARE)
    assert p.interval == (0.0, Estimate(0.2, 0.1, 3).interval[1])
    assert Estimate(5.0, 9.0, 3, within=NOT_NEGATIVE).interval[0] == 0
    assert Estimate(0.5, None, 1, within=SHARE).interval == SHARE


def test_cutting_off_an_interval_keeps_its_coverage() -> None:
    """The mean of three uniform numbers: the cut interval covers 0.5 exactly as often as the whole one."""
    draws = np.random.default_rng(0).random((500, 3))
    covered = []
    for row in draws:
        whole = Estimate.over([float(x) for x in row])
        low, high = whole.interval
        cut_low, cut_high = replace(whole, within=SHARE).interval
        assert (low <= 0.5 <= high) == (cut_low <= 0.5 <= cut_high)
        assert 0 <= cut_low <= cut_high <= 1
        covered.append(low <= 0.5 <= high)
    assert not all(covered)


def test_rounding_errors_are_shown_as_zero() -> None:
    assert str(Estimate(-5.6e-17, 1e-17, 4)) == "0 [0, 0] over 4 seeds"
    assert str(Estimate(1e-9, None, 1)) == "1e-09 (1 seed; an interval needs 3)"
    assert math.isfinite(Estimate(1.0, 0.1, 3).interval[0])
