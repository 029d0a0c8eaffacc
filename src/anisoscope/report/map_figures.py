"""Figures whose value is a colour: layers × steps on a log axis of steps, layers × heads."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from anisoscope.report.figure import Figure, TrainingAxis, is_log, number_text, step_position
from anisoscope.report.line_figures import WIDE_MARGIN, alert_layer
from anisoscope.report.lines import SHARE, SHORT
from anisoscope.report.tables import Row

MOST_STEPS = 80  # columns of a map; of more steps an even selection is drawn
_CELL = 16  # height of a layer in pixels
_HEIGHTS = (110, 260)


def step_map(
    rows: Sequence[Row],
    title: str,
    alt: str,
    training: TrainingAxis,
    *,
    metric: str,
    percent: bool = False,
    final: float | None = None,
    height: int | None = None,
) -> Figure:
    """Layers on the y axis, training steps on the x axis, the value as colour.

    Args:
        rows: One row per layer and step.
        title: Of the figure.
        alt: Its text for screen readers.
        training: The axis of steps, with the alerts.
        metric: The name in small type.
        percent: Whether values are percentages.
        final: The position of `final`.
        height: Of the plot; by default as the number of layers needs.
    """
    own = sorted({row["step"] for row in rows})
    kept = thinned(own)
    edges = step_edges(kept, training.steps)
    layers = sorted({row["layer"] for row in rows})
    cells = [
        {
            "at": edges[row["step"]][0],
            "end": edges[row["step"]][1],
            "layer": row["layer"],
            "step": row["step"],
            "value": row["value"],
            "site": row["site"],
            "value_text": number_text(row["value"], percent),
        }
        for row in rows
        if row["step"] in edges
    ]
    marks: list[dict[str, Any]] = [
        {
            "mark": {"type": "rect", "clip": True, "x2Offset": 0.6},  # without gaps between cells
            "encoding": {
                "x2": {"field": "end"},
                "y": _layer_rows(final, None),
                "color": colour_of_value([cell["value"] for cell in cells], percent),
                "tooltip": [
                    {"field": "site", "type": "nominal"},
                    {"field": "step", "type": "quantitative"},
                    {"field": "value_text", "type": "nominal", "title": "value"},
                ],
            },
        }
    ]
    if training.alerts:
        marks.append(alert_layer(training))
    spec = {
        "data": {"values": cells},
        "encoding": {"x": training.encoding()},
        "layer": marks,
        "usermeta": {"margin": WIDE_MARGIN},
    }
    low, high = _HEIGHTS
    # The title names the axes: titles next to them would shift the plot against those above and below.
    named = f"{title}, layer by training step"
    return Figure(named, metric, alt, spec, height or min(high, max(low, _CELL * len(layers))), wide=True)


def thinned(steps: Sequence[int], most: int = MOST_STEPS) -> list[int]:
    """At most `most` of these steps, even on the axis that they are drawn on, with the first and the last."""
    if len(steps) <= most:
        return list(steps)
    if not is_log(steps):
        return sorted({steps[round(i * (len(steps) - 1) / (most - 1))] for i in range(most)})
    scale = [math.log(max(step, 0.5)) for step in steps]
    wanted = [scale[0] + i * (scale[-1] - scale[0]) / (most - 1) for i in range(most)]
    return sorted({min(steps, key=lambda step: abs(math.log(max(step, 0.5)) - each)) for each in wanted})


def step_edges(steps: Sequence[int], axis_steps: Sequence[int]) -> dict[int, tuple[float, float]]:
    """Where the column of each step starts and ends: half way to its neighbours, on the axis that is drawn.

    >>> step_edges([1, 2, 4], [1, 2, 4])[2]
    (1.5, 3.0)
    """
    log = is_log(axis_steps)
    first = min((step for step in axis_steps if step > 0), default=1)
    at = [step_position(step, first) if log else float(step) for step in steps]
    middles = [math.sqrt(a * b) if log else (a + b) / 2 for a, b in pairwise(at)]
    if not middles:
        return {steps[0]: (at[0], at[0] * 1.2 if log else at[0] + 1)}
    return dict(zip(steps, zip([at[0], *middles], [*middles, at[-1]], strict=True), strict=True))


def _layer_rows(final: float | None, title: str | None) -> dict[str, Any]:
    ends = "" if final is None else f"datum.value == {final:g} ? 'final' : "
    axis = {
        "labelExpr": f"datum.value == -1 ? 'embed' : {ends}datum.label",
        "labelOverlap": "greedy",
        "minExtent": 48,
        "format": "~g",
    }
    return {"field": "layer", "type": "ordinal", "title": title, "sort": "descending", "axis": axis}


def colour_of_value(values: Sequence[float], percent: bool) -> dict[str, Any]:
    """The encoding of the field `value` as a colour, with a legend to the right of the plot."""
    signed = min(values) < 0 < max(values)
    scale: dict[str, Any] = {"range": "diverging", "domainMid": 0} if signed else {"range": "heatmap"}
    if max(values) - min(values) < 1e-9:  # one colour: a gradient without a range would repeat its label
        scale["domain"] = [min(values) - 0.5, max(values) + 0.5]
    legend = {
        "labelExpr": SHARE if percent else SHORT,
        "gradientLength": {"expr": "height"},
        "gradientThickness": 10,
        "tickCount": 3,
        "title": None,
        # The legend must not move the plot, so that figures above each other share their axis of steps.
        "orient": "none",
        "legendX": {"expr": "width + 12"},
        "legendY": 0,
    }
    return {"field": "value", "type": "quantitative", "scale": scale, "legend": legend}


def head_map(rows: Sequence[Row], title: str, alt: str, *, metric: str, percent: bool = False) -> Figure:
    """Layers on the y axis, heads on the x axis, the value as colour."""
    heads = sorted({row["head"] for row in rows})
    layers = sorted({row["layer"] for row in rows})
    cells = [
        {
            "head": row["head"],
            "layer": row["layer"],
            "value": row["value"],
            "site": row["site"],
            "value_text": number_text(row["value"], percent),
        }
        for row in rows
    ]
    axis = {"labelAngle": 0, "labelOverlap": "greedy", "format": "~g"}
    spec: dict[str, Any] = {
        "data": {"values": cells},
        "mark": "rect",
        "encoding": {
            "x": {"field": "head", "type": "ordinal", "title": "head", "axis": axis},
            "y": _layer_rows(None, "layer"),
            "color": colour_of_value([cell["value"] for cell in cells], percent),
            "tooltip": [
                {"field": "site", "type": "nominal"},
                {"field": "head", "type": "ordinal"},
                {"field": "value_text", "type": "nominal", "title": "value"},
            ],
        },
        "usermeta": {"margin": WIDE_MARGIN},
    }
    low, high = _HEIGHTS
    return Figure(title, metric, alt, spec, min(high, max(low, _CELL * len(layers))), wide=len(heads) > 24)


def cells_of(rows: Sequence[Row], by: Sequence[str]) -> list[Row]:
    """One row per combination of these fields: the mean of the values."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[field] for field in by), []).append(row)
    return [{**group[0], "value": sum(row["value"] for row in group) / len(group)} for group in groups.values()]
