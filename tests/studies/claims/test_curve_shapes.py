"""Shapes of curves as numbers."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats

from anisoscope.stats.inference import spearman, spearman_p
from anisoscope.studies.claims.curve_shapes import (
    bell,
    half_time,
    interior_peak,
    parallel_drift,
    partial_slope,
    peak_depth,
    rise_and_fall,
    slope,
    span,
)


def test_a_bell_is_high_in_the_middle_and_a_ramp_is_not_a_bell() -> None:
    assert bell([0, 0, 1, 1, 0, 0]) == 1
    assert bell([0, 0, 1, 1, 0, 0.5]) == 0.5
    assert bell([0, 1, 2, 3, 4, 5]) < 0
    assert bell([3.0] * 12) == 0
    assert bell([0, 0] + [1] * 8 + [0, 0]) == 1
    assert peak_depth([0, 1, 2, 3, 4, 5]) == 1
    assert peak_depth([0, 0, 1, 1, 0, 0]) == 0.5  # the middle of a plateau
    assert span([0.2, 0.5, 0.1]) == pytest.approx(0.4)


def test_other_curves_choose_an_interior_peak() -> None:
    hill, ramp = [1.0, 4.0, 2.0], [1.0, 2.0, 4.0]
    assert rise_and_fall([hill, hill]) == [(3, 2), (3, 2)]
    assert all(fall < 0 for _, fall in rise_and_fall([ramp, ramp]))
    assert all(rise < 0 for rise, _ in rise_and_fall([ramp[::-1]] * 2))
    assert interior_peak([9.0, 1.0, 2.0, 8.0]) == 2  # the ends are not peaks
    assert interior_peak([1.0, 2.0]) == 0


def test_half_time_is_late_if_the_change_comes_late() -> None:
    steps = [0, 25, 50, 75, 100]
    assert half_time(steps, [0, 0, 0, 0, 1]) == 0.875
    assert half_time(steps, [0, 1, 1, 1, 1]) == 0.125
    assert half_time(steps, [1, 1, 1, 1, 0]) == 0.875
    assert half_time(steps, [2, 2, 2, 2, 2]) == 0


def test_parallel_drift_needs_both_changes_in_the_same_head() -> None:
    before = {(0, 0): 0.1, (0, 1): -0.1}
    after = {(0, 0): 0.5, (0, 1): -0.6}
    sharp, even = {(0, 0): 0.4, (0, 1): 0.9}, {(0, 0): 0.8, (0, 1): 0.8}
    assert parallel_drift([before, after], [even, sharp]) == [True, False]
    assert parallel_drift([after, before], [even, sharp]) == [False, False]


def test_rank_correlations_agree_with_scipy() -> None:
    draw = np.random.default_rng(0)
    x, y = draw.normal(size=9).round(1), draw.normal(size=9).round(1)  # rounded: there are ties
    known = scipy.stats.spearmanr(x, y)
    assert spearman(list(x), list(y)) == pytest.approx(known.statistic)
    assert spearman_p(list(x), list(y)) == pytest.approx(known.pvalue)
    assert spearman([1, 2, 3], [5.0, 5.0, 5.0]) == 0


def test_a_partial_slope_is_that_of_a_regression() -> None:
    draw = np.random.default_rng(1)
    x, z = draw.normal(size=20), draw.normal(size=20)
    y = 2 * x - 3 * z + 1
    assert partial_slope(list(y), list(x), list(z)) == pytest.approx(2)
    assert slope(list(x), list(2 * x)) == pytest.approx(2)
