"""Intervals from standard errors."""

from __future__ import annotations

import pytest
from scipy import stats

from anisoscope.report.interval import half_width


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 7, 15, 31, 100])
def test_the_half_width_of_an_interval_is_the_quantile_of_student_t(freedom: int) -> None:
    assert half_width(freedom + 1) == pytest.approx(stats.t.ppf(0.975, freedom), rel=1e-9)
