"""Intervals from standard errors."""

from __future__ import annotations

import pytest
from scipy import stats

from anisoscope.report.interval import half_width, interval


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 7, 15, 31, 100])
def test_the_half_width_of_an_interval_is_the_quantile_of_student_t(freedom: int) -> None:
    assert half_width(freedom + 1) == pytest.approx(stats.t.ppf(0.975, freedom), rel=1e-9)


def test_an_interval_does_not_leave_the_range_of_its_metric() -> None:
    assert interval(0.9, 0.6, "jackknife-4-documents", 0, 1) == (0, 1)
    low, high = interval(0.9, 0.6, "jackknife-4-documents")
    assert low < 0
    assert high > 1


def test_an_interval_contains_its_value_even_if_the_range_is_wrong() -> None:
    low, high = interval(5.0, 0.1, "jackknife-4-documents", 0, 1)
    assert low < 5.0 <= high
