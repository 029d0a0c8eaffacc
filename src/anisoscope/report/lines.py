"""Charts whose value is a height: layer profiles, trajectories over steps, curves by index, strata, points."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import altair as alt

from anisoscope.report.tidy import NONE

ROWS = "rows"  # the name of the data in every specification
TITLES = {
    "run": "run",
    "tokens": "tokens",
    "stream": "where",
    "site": "site",
    "place": "layer",
    "head": "head",
    "index": "index",
    "step": "training step",
}
_BAND = 0.18  # opacity of an interval
_NUMBER = ".4~g"


@dataclass(frozen=True)
class Look:
    """All that a specification depends on besides its rows, so that metrics alike share one."""

    kind: str
    colour: str | None = None  # the field that `series` holds
    ordered: bool = False  # whether its colours form a scale
    log_x: bool = False
    first_x: float | None = None  # where 0 is among its numbers: the first after it, since a log axis has no 0
    log_y: bool = False
    zero: bool = True  # whether the axis of values starts at 0
    signed: bool = False  # values on both sides of 0
    null: bool = False  # whether some rows have a null level
    dash: bool = False  # whether tokens policies differ in their dash
    final: float | None = None  # the place to call "final"


def profile(look: Look) -> Any:
    """Value over layers with its interval; the null level dotted."""
    x = alt.X("place:Q", title="layer", scale=alt.Scale(nice=False, padding=8), axis=layer_axis(look))
    return _lines(look, x)


def steps(look: Look) -> Any:
    """Value over training steps, on a log axis where they span decades."""
    return _lines(look, _log_axis("training step", look))


def curve(look: Look) -> Any:
    """Value by index: a spectrum by rank, a dimension by scale, a score by the number of tokens removed."""
    return _lines(look, _log_axis("index", look))


def levels(look: Look) -> Any:
    """Value by index in one line, and the level that each null expects; the ground spans the lowest and the highest."""
    base = _base(look).encode(x=_log_axis("index", look))
    ground = base.mark_area(opacity=0.12, color="#8a8a8a").encode(y=alt.Y("min(null):Q", title=None), y2="max(null):Q")
    named = base.transform_filter(f"datum.v_null != '{NONE}'")
    nulls = named.mark_line(strokeDash=[1, 3], strokeWidth=2, strokeCap="round", point={"size": 18}).encode(
        y=_y(look, "null"), color=alt.Color("v_null:N", title="expected under", sort=None), tooltip=tooltip()
    )
    # The value is the same beside every null.
    one = base.transform_aggregate(
        value="mean(value)", low="min(low)", high="max(high)", top="max(value)", groupby=["at", "index", "site"]
    )
    band = one.mark_area(opacity=_BAND).encode(y=_y(look, "low"), y2="high:Q")
    line = one.mark_line(strokeWidth=2.4, point={"size": 30}).encode(y=_y(look))
    return alt.layer(ground, nulls, band, line)


def against(look: Look) -> Any:
    """Value against another metric's at the same place, on log axes: energy against eigenvalue, whose slope is β."""
    scale = alt.Scale(type="log", nice=False, padding=8) if look.log_x else alt.Scale(zero=False, padding=8)
    x = alt.X("x:Q", title="share of the activations' variance along the axis", scale=scale)
    dots = _base(look).mark_circle(size=26, opacity=0.8).encode(x=x, y=_y(look), color=series(look), tooltip=tooltip())
    trend = (
        _base(look)
        .transform_filter("datum.x > 0 && datum.value > 0")
        .transform_regression("x", "value", method="pow" if look.log_x else "linear", groupby=["series"])
        .mark_line(strokeWidth=1.2, strokeDash=[5, 3])
        .encode(x=x, y=_y(look), color=series(look))
    )
    return alt.layer(dots, trend)


def spikes(look: Look) -> Any:
    """Value at indices that differ from layer to layer: the dimensions that stand out."""
    x = alt.X("index:O", title="index", sort="ascending", axis=alt.Axis(labelOverlap=True))
    base = _base(look).encode(x=x, y=_y(look), color=series(look))
    return alt.layer(
        base.mark_circle(size=44, opacity=0.75).encode(tooltip=tooltip()),
        _base(look).mark_rule(strokeWidth=0.7, opacity=0.5).encode(x=x, y="min(value):Q", y2="max(value):Q"),
    )


def strata(look: Look) -> Any:
    """Value by stratum, side by side for each series, with intervals; the null level is a tick."""
    x = alt.X("v_stratum:O", title="stratum", sort=None, axis=alt.Axis(labelAngle=0))
    offset = alt.XOffset("series:O")
    some = _base(look).transform_filter(f"datum.v_stratum != '{NONE}'")  # the rest are over all tokens
    base = some.encode(x=x, xOffset=offset, color=series(look))
    return alt.layer(
        base.mark_rule(strokeWidth=1.5).encode(y=_y(look, "low"), y2="high:Q"),
        base.mark_circle(size=60, opacity=1).encode(y=_y(look), tooltip=tooltip()),
        base.mark_tick(thickness=1.5, strokeDash=[2, 2]).encode(y=_y(look, "null")),
    )


def points(look: Look) -> Any:
    """Single numbers with their intervals, one line each; the null level is a tick."""
    y = alt.Y("series:N", title=None, axis=alt.Axis(labelLimit=260))
    x = alt.X("value:Q", title=None, scale=alt.Scale(type="log" if look.log_y else "linear", zero=look.zero))
    base = _base(look).encode(y=y, color=series(look, legend=False))
    return alt.layer(
        base.mark_rule(strokeWidth=1.5).encode(x=alt.X("low:Q", title=None), x2="high:Q"),
        base.mark_circle(size=70, opacity=1).encode(x=x, tooltip=tooltip()),
        base.mark_tick(thickness=1.5).encode(x=alt.X("null:Q", title=None)),
    )


def _lines(look: Look, x: alt.X) -> Any:
    """Band, null and line of each series; many ordered series leave the bands out, which would cover each other."""
    base = _base(look).encode(x=x)
    apart = ["series:N", "tokens:N"]  # two token policies are two lines, whatever the colour
    layers: list[Any] = []
    if not look.ordered:
        band = base.mark_area(opacity=_BAND).encode(y=_y(look, "low"), y2="high:Q", color=series(look), detail=apart)
        layers.append(band)
    if look.null:
        dotted = base.mark_line(strokeDash=[1, 3], strokeWidth=1.5, strokeCap="round")
        layers.append(dotted.encode(y=_y(look, "null"), color=series(look), detail=apart))
    line = base.mark_line(strokeWidth=2 if not look.ordered else 1.4).encode(
        y=_y(look), color=series(look), detail=apart
    )
    dots = base.mark_circle(size=26 if not look.ordered else 14, opacity=1).encode(
        y=_y(look), color=series(look), detail=apart, tooltip=tooltip()
    )
    return alt.layer(*layers, line.encode(strokeDash=_dash()) if look.dash else line, dots)


def series(look: Look, legend: bool = True) -> alt.Color:
    """The colour of a series: a scale where its values have an order, else one hue each."""
    if look.colour is None:
        return alt.Color("series:N", legend=None)
    title = title_of(look.colour)
    if not look.ordered:
        return alt.Color("series:N", title=title, sort=None, legend=alt.Legend(title=title) if legend else None)
    scale = alt.Scale(range="ramp", type="symlog" if look.colour == "step" else "linear")
    names = layer_names(look) if look.colour == "place" else "datum.label"
    return alt.Color("series:Q", scale=scale, legend=alt.Legend(title=title, type="symbol", labelExpr=names))


def title_of(field: str) -> str:
    return TITLES.get(field, field.removeprefix("v_").replace("_", " "))


def layer_axis(look: Look) -> alt.Axis:
    """Layers by number, with names for what stands before the first and behind the last."""
    return alt.Axis(labelExpr=layer_names(look), tickMinStep=1, format="d", grid=False, labelOverlap=True)


def layer_names(look: Look) -> str:
    """The expression that names a place among the layers."""
    final = "" if look.final is None else f"datum.value == {look.final:g} ? 'final' : "
    return f"datum.value == -1 ? 'embed' : {final}datum.label"


def tooltip() -> list[alt.Tooltip]:
    """Everything a reader may ask about a mark."""
    texts = [alt.Tooltip(f"{field}:N", title=title_of(field)) for field in ("run", "site", "tokens")]
    wholes = [alt.Tooltip(f"{field}:Q", title=title_of(field)) for field in ("step", "head", "index")]
    numbers = [
        alt.Tooltip(f"{field}:Q", title=title, format=_NUMBER)
        for field, title in (("value", "value"), ("low", "95 % from"), ("high", "to"), ("null", "without structure"))
    ]
    return [*texts, *wholes, *numbers, alt.Tooltip("n:Q", format=","), alt.Tooltip("note:N")]


def _base(look: Look) -> Any:
    chart = alt.Chart(alt.NamedData(ROWS))
    if not look.log_y:
        return chart
    # A log axis has no place for 0, nor for a band that reaches below it; the rounding of a 0 would only stretch it.
    return (
        chart.transform_joinaggregate(top="max(value)")
        .transform_filter("datum.value > 1e-7 * datum.top")
        .transform_calculate(
            low="isValid(datum.low) ? max(datum.low, datum.value / 10) : null",
            null="datum.null > 1e-7 * datum.top ? datum.null : null",
        )
    )


def _y(look: Look, field: str = "value") -> alt.Y:
    scale = alt.Scale(type="log", nice=False) if look.log_y else alt.Scale(zero=look.zero)
    return alt.Y(f"{field}:Q", title=None, scale=scale, axis=alt.Axis(tickCount=6))


def _log_axis(title: str, look: Look) -> alt.X:
    """An axis of whole numbers, in logs where they span decades; `at` holds them with 0 moved to the left edge."""
    if not look.log_x:
        return alt.X("at:Q", title=title, scale=alt.Scale(zero=False, nice=False, padding=8))
    names = "datum.label"
    if look.first_x is not None:
        title += " (0 at the left edge)"
        names = f"datum.value < {look.first_x:g} ? '' : datum.label"
    axis = alt.Axis(format="~s", labelExpr=names, labelOverlap=True, grid=False)
    return alt.X("at:Q", title=title, scale=alt.Scale(type="log", nice=False, padding=8), axis=axis)


def _dash() -> alt.StrokeDash:
    scale = alt.Scale(domain=["all", "no-sink"], range=[[1, 0], [6, 3]])
    return alt.StrokeDash("tokens:N", scale=scale, legend=alt.Legend(title="tokens", symbolStrokeWidth=2))
