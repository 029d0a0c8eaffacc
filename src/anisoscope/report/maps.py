"""Charts whose value is a colour: heat maps of layers, steps and heads, and the panel of claims."""

from __future__ import annotations

from typing import Any

import altair as alt

from anisoscope.report.lines import ROWS, SHARE, SHORT, VALUE, ChartStyle, layer_names, title_of, tooltip
from anisoscope.report.theme import VERDICTS


def layer_steps(style: ChartStyle) -> Any:
    """Layers on the y axis, training steps on the x axis."""
    return _heat(style, _x_axis("step"), _y_axis("layer", style))


def heads(style: ChartStyle) -> Any:
    """Layers on the y axis, heads on the x axis."""
    return _heat(style, _x_axis("head"), _y_axis("layer", style))


def head_steps(style: ChartStyle) -> Any:
    """Heads of one layer on the y axis, training steps on the x axis."""
    return _heat(style, _x_axis("step"), _y_axis("head", style))


def pairs(style: ChartStyle) -> Any:
    """Layers of one model on the y axis, layers of another on the x axis, both in the order of a forward pass."""
    axis = alt.Axis(labelAngle=-45, labelOverlap="greedy")
    return _heat(
        style, alt.X("v_other:N", title="layer of the other model", sort=None, axis=axis), _y_axis("layer", style)
    )


def path(style: ChartStyle) -> Any:
    """The path of each layer over training on two fixed axes; a large point is the last step."""
    whole = alt.Legend(tickMinStep=1, format="d")
    colour = alt.Color("layer:Q", title="layer", scale=alt.Scale(range="ramp"), legend=whole)
    scale = alt.Scale(zero=False, padding=12)
    tips = [alt.Tooltip("site:N"), alt.Tooltip("step:Q", title="step"), alt.Tooltip("x:Q"), alt.Tooltip("y:Q")]
    points = (
        alt.Chart(alt.NamedData(ROWS))
        .transform_pivot("v_axis", value="value", groupby=["run", "site", "layer", "step"])
        .transform_calculate(x="datum['1']", y="datum['2']")
        .transform_filter("isValid(datum.x) && isValid(datum.y)")
        .transform_joinaggregate(last="max(step)", groupby=["run", "site"])
        .encode(
            x=alt.X("x:Q", title="axis 1", scale=scale),
            y=alt.Y("y:Q", title="axis 2", scale=scale),
            color=colour,
            tooltip=tips,
        )
    )
    return alt.layer(
        points.mark_line(strokeWidth=1.2, opacity=0.8).encode(order="step:Q", detail="site:N"),
        points.transform_filter("datum.step < datum.last").mark_point(size=14, filled=True, opacity=0.7),
        points.transform_filter("datum.step == datum.last").mark_point(size=80, filled=True, opacity=1),
    )


def verdicts(style: ChartStyle) -> Any:
    """One tile per claim and line: the verdict as colour, the effect with its error as text."""
    base = alt.Chart(alt.NamedData(ROWS)).encode(
        x=alt.X("v_line:N", title=None, sort=None, axis=alt.Axis(labelAngle=0, orient="top")),
        y=alt.Y("claim:N", title=None, sort=None),
    )
    scale = alt.Scale(domain=list(VERDICTS), range=list(VERDICTS.values()))
    tips = [alt.Tooltip(f"{field}:N") for field in ("claim", "v_line", "v_verdict", "value", "error", "note")]
    return alt.layer(
        base.mark_rect(cornerRadius=4, opacity=0.9).encode(
            color=alt.Color("v_verdict:N", title="verdict", scale=scale), tooltip=tips
        ),
        base.mark_text(color="white", fontSize=11).encode(text="effect:N"),
    )


def _heat(style: ChartStyle, x: alt.X, y: alt.Y) -> Any:
    scale = alt.Scale(range="diverging", domainMid=0) if style.signed else alt.Scale(range="heatmap")
    labels = alt.Legend(gradientLength=180, labelExpr=SHARE if style.percent else SHORT)
    colour = alt.Color("value:Q", title=VALUE, scale=scale, legend=labels)
    return alt.Chart(alt.NamedData(ROWS)).mark_rect().encode(x=x, y=y, color=colour, tooltip=tooltip())


def _x_axis(field: str) -> alt.X:
    return alt.X(f"{field}:O", title=title_of(field), axis=alt.Axis(labelAngle=0, labelOverlap="greedy"))


def _y_axis(field: str, style: ChartStyle) -> alt.Y:
    names = layer_names(style) if field == "layer" else "datum.label"
    axis = alt.Axis(labelExpr=names, labelOverlap="greedy")
    return alt.Y(f"{field}:O", title=title_of(field), sort="descending", axis=axis)
