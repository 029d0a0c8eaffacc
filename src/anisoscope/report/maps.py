"""Charts whose value is a colour or a place: heat maps of layers, steps and heads, planes, the panel of claims."""

from __future__ import annotations

from typing import Any

import altair as alt

from anisoscope.report.lines import ROWS, Look, layer_names, title_of, tooltip
from anisoscope.report.theme import VERDICTS


def layer_steps(look: Look) -> Any:
    """Layers up, training steps to the right."""
    return _heat(look, _across("step"), _up("place", look))


def heads(look: Look) -> Any:
    """Layers up, heads to the right."""
    return _heat(look, _across("head"), _up("place", look))


def head_steps(look: Look) -> Any:
    """Heads of one layer up, training steps to the right."""
    return _heat(look, _across("step"), _up("head", look))


def plane(look: Look) -> Any:
    """Where each layer's cloud goes over training on two fixed axes: its mean as a path, its tokens as dots."""
    colour = alt.Color("place:Q", title="layer", scale=alt.Scale(range="ramp"))
    scale = alt.Scale(zero=False, padding=12)
    x, y = alt.X("x:Q", title="first axis", scale=scale), alt.Y("y:Q", title="second axis", scale=scale)
    tips = [alt.Tooltip("site:N"), alt.Tooltip("step:Q", title="training step"), alt.Tooltip("index:Q", title="token")]
    both = (
        alt.Chart(alt.NamedData(ROWS))
        .transform_pivot("v_axis", value="value", groupby=["run", "site", "place", "step", "index", "v_of"])
        .transform_calculate(x="datum['1']", y="datum['2']")
        .encode(x=x, y=y, color=colour, tooltip=tips)
    )
    mean = both.transform_filter("datum.v_of != 'token'")
    latest = mean.transform_joinaggregate(last="max(step)", groupby=["site"])
    return alt.layer(
        both.transform_filter("datum.v_of == 'token'").mark_circle(size=9, opacity=0.25),
        mean.mark_line(strokeWidth=1.2, opacity=0.8).encode(order="step:Q", detail="site:N"),
        latest.transform_filter("datum.step < datum.last").mark_point(size=14, filled=True, opacity=0.7),
        latest.transform_filter("datum.step == datum.last").mark_point(size=90, filled=True, opacity=1),
    )


def verdicts(look: Look) -> Any:
    """One tile a claim and line: the verdict as colour, the effect with its error as text."""
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


def _heat(look: Look, x: alt.X, y: alt.Y) -> Any:
    scale = alt.Scale(range="diverging", domainMid=0) if look.signed else alt.Scale(range="heatmap")
    colour = alt.Color("value:Q", title=None, scale=scale, legend=alt.Legend(gradientLength=180, format="~g"))
    return alt.Chart(alt.NamedData(ROWS)).mark_rect().encode(x=x, y=y, color=colour, tooltip=tooltip())


def _across(field: str) -> alt.X:
    return alt.X(f"{field}:O", title=title_of(field), axis=alt.Axis(labelAngle=0, labelOverlap="greedy"))


def _up(field: str, look: Look) -> alt.Y:
    names = layer_names(look) if field == "place" else "datum.label"
    axis = alt.Axis(labelExpr=names, labelOverlap="greedy")
    return alt.Y(f"{field}:O", title=title_of(field), sort="descending", axis=axis)
