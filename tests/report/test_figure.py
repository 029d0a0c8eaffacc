"""Axes and labels of the figures of a report."""

from __future__ import annotations

from itertools import pairwise

import pytest

from anisoscope.report.figure import (
    TrainingAxis,
    ValueAxis,
    depth_ticks,
    layer_ticks,
    spread_labels,
    step_axis,
    value_axis,
)


def test_labels_never_overlap_and_stay_in_the_plot() -> None:
    axis, height = ValueAxis(0.0, 1.0), 200.0
    labels = [{"value": value, "text": ["a", "b"] if value == 0.5 else ["a"]} for value in (0.5, 0.5, 0.49, 0.01, 0.0)]
    placed = spread_labels(labels, axis, height)
    tops = sorted((axis.pixel(each["label_y"], height) - 6.5, 13 * len(each["text"])) for each in placed)
    for (top, size), (below, _) in pairwise(tops):
        assert top + size <= below + 1e-9
    assert tops[-1][0] + tops[-1][1] <= height + 13


@pytest.mark.parametrize("axis", [ValueAxis(0.0, 2.0), ValueAxis(0.01, 100.0, log=True)])
def test_a_position_gives_back_its_value(axis: ValueAxis) -> None:
    assert axis.value(axis.pixel(1.5, 100.0), 100.0) == pytest.approx(1.5)


def test_an_axis_starts_at_0_unless_the_values_are_far_from_it() -> None:
    assert value_axis([0.1, 0.5]).low == 0.0
    assert value_axis([100.0, 104.0]).low > 90
    assert value_axis([0.5, 0.99], percent=True).high <= 1.0
    assert value_axis([1.0, 900.0]).log
    assert not value_axis([-1.0, 900.0]).log


@pytest.mark.parametrize("values", [[0.0], [1e308, -1e308], [5.0, 5.0], [1e-320, 1e308]])
def test_an_axis_of_any_values_is_finite_and_not_empty(values: list[float]) -> None:
    axis = value_axis(values)
    assert -1e308 <= axis.low < axis.high <= 1e308


def test_ticks_of_layers_are_different_and_named_at_the_ends() -> None:
    for layers in (2, 6, 30, 126):
        axis = layer_ticks([-1.0, *map(float, range(layers)), float(layers)], float(layers))["axis"]
        assert len(set(axis["values"])) == len(axis["values"]) <= 16
        assert axis["values"][0] == -1.0
        assert axis["values"][-1] == layers
        assert "'embed'" in axis["labelExpr"]
        assert "'final'" in axis["labelExpr"]
    assert depth_ticks()["scale"]["domain"] == [0, 1]


def test_steps_that_span_decades_have_a_log_axis_with_a_place_for_step_0() -> None:
    axis = step_axis([0, 1, 10, 100])
    assert axis["scale"]["type"] == "log"
    assert axis["scale"]["domain"] == [0.5, 100]
    assert TrainingAxis([0, 1, 10, 100]).position(0) == 0.5
    assert "type" not in step_axis([5, 6, 7])["scale"]
