"""Charts whose value is a height: layer profiles, trajectories over steps, curves by index, strata, points."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import altair as alt

from anisoscope.report.tables import NONE

ROWS = "rows"  # the name of the data in every specification
VALUE = "{value}"  # the title of the axis of values, which each chart replaces: metrics share specifications
TITLES = {
    "run": "run",
    "tokens": "tokens",
    "stream": "stream",
    "site": "site",
    "head": "head",
    "index": "index",
    "step": "training step",
}
# Labels of values; Vega leaves some labels of a log axis empty. PERCENT is the label of a share.
PLAIN = (
    "datum.label == '' ? '' : abs(datum.value) < 0.001 && datum.value != 0 ? format(datum.value, '~e') : "
    "format(datum.value, ',~g')"
)
PERCENT = "datum.label == '' ? '' : format(100 * datum.value, '~g') + ' %'"
# Labels of a scale of colours, whose ends are values and not round numbers.
SHORT = "format(datum.value, '.3~g')"
SHARE = "format(100 * datum.value, '.3~g') + ' %'"
_BAND = 0.18  # opacity of an interval
_POLICIES = "{'all': 'all tokens', 'no-sink': 'without first and massive tokens'}[datum.label] || datum.label"
_NUMBER = ".4~g"


@dataclass(frozen=True)
class ChartStyle:
    """What a specification depends on, besides its rows: metrics with the same style share one specification."""

    kind: str
    colour: str | None = None  # the field in `series`
    ordered: bool = False  # whether its colours form a scale
    log_x: bool = False
    first_x: float | None = None  # if 0 is one of its numbers: the smallest positive one, because a log axis has no 0
    log_y: bool = False
    zero: bool = True  # whether the axis of values starts at 0
    signed: bool = False  # values on both sides of 0
    null: bool = False  # whether some rows have a null value
    dash: bool = False  # whether the dash shows the token policy
    final: float | None = None  # the position of `final`
    percent: bool = False  # whether the axis of values is in percent
    runs: tuple[str, ...] = ()  # if runs have colours: all runs of the page, in the order of the colours
    present: tuple[str, ...] = ()  # those that have records of the metric
    ticks: tuple[float, ...] = ()  # of an axis of whole numbers
    marked: tuple[float, ...] = ()  # the values in the legend of ordered colours


def profile(style: ChartStyle) -> Any:
    """Value over layers with its interval; the null value is dotted."""
    x = alt.X("layer:Q", title="layer", scale=alt.Scale(nice=False, padding=8), axis=layer_axis(style))
    return _lines(style, x)


def steps(style: ChartStyle) -> Any:
    """Value over training steps, on a log axis if they span decades."""
    return _lines(style, _log_axis("training step", style))


def curve(style: ChartStyle) -> Any:
    """Value by index: a spectrum by rank, a dimension by scale, a score by the number of tokens removed."""
    return _lines(style, _log_axis("index", style))


def levels(style: ChartStyle) -> Any:
    """Value by index as one line, and one line per null; the shaded area spans the lowest and highest null."""
    base = _base(style).encode(x=_log_axis("index", style))
    ground = base.mark_area(opacity=0.12, color="#8a8a8a").encode(
        y=_y(style, "null", aggregate="min"), y2="max(null):Q"
    )
    named = base.transform_filter(f"datum.v_null != '{NONE}'")
    nulls = named.mark_line(strokeDash=[1, 3], strokeWidth=2, strokeCap="round", point={"size": 18}).encode(
        y=_y(style, "null"), color=alt.Color("v_null:N", title="null", sort=None), tooltip=tooltip()
    )
    # The value is the same for every null.
    one = base.transform_aggregate(
        value="mean(value)", low="min(low)", high="max(high)", top="max(value)", groupby=["at", "index", "site"]
    )
    band = one.mark_area(opacity=_BAND).encode(y=_y(style, "low"), y2="high:Q")
    line = one.mark_line(strokeWidth=2.4, point={"size": 30}).encode(y=_y(style))
    return alt.layer(ground, nulls, band, line)


def against(style: ChartStyle) -> Any:
    """Value against another metric at the same site and index, on log axes: energy against eigenvalue, slope β."""
    scale = alt.Scale(type="log", nice=False, padding=8) if style.log_x else alt.Scale(zero=False, padding=8)
    axis = alt.Axis(labelExpr=PLAIN, labelOverlap=True)
    x = alt.X("x:Q", title="share of variance along the axis", scale=scale, axis=axis)
    dots = (
        _base(style).mark_circle(size=26, opacity=0.8).encode(x=x, y=_y(style), color=series(style), tooltip=tooltip())
    )
    trend = (
        _base(style)
        .transform_filter("datum.x > 0 && datum.value > 0")
        .transform_regression("x", "value", method="pow" if style.log_x else "linear", groupby=["series"])
        .mark_line(strokeWidth=1.2, strokeDash=[5, 3])
        .encode(x=x, y=_y(style), color=series(style))
    )
    return alt.layer(dots, trend)


def spikes(style: ChartStyle) -> Any:
    """Value at indices that differ from layer to layer: the dimensions that stand out."""
    scale = alt.Scale(zero=False, nice=False, padding=8)
    x = alt.X("index:Q", title="index", scale=scale, axis=alt.Axis(**_whole(style), grid=False))
    base = _base(style).encode(x=x, y=_y(style), color=series(style))
    return alt.layer(
        base.mark_circle(size=44, opacity=0.75).encode(tooltip=tooltip()),
        _base(style)
        .mark_rule(strokeWidth=0.7, opacity=0.5)
        .encode(x=x, y=_y(style, aggregate="min"), y2="max(value):Q"),
    )


def strata(style: ChartStyle) -> Any:
    """Value by stratum with intervals, series next to each other; the null value is a tick."""
    x = alt.X("v_stratum:O", title="stratum", sort=None, axis=alt.Axis(labelAngle=0))
    offset = alt.XOffset("series:O")
    base = _base(style).encode(x=x, xOffset=offset, color=series(style))
    return alt.layer(
        base.mark_rule(strokeWidth=1.5).encode(y=_y(style, "low"), y2="high:Q"),
        base.mark_circle(size=60, opacity=1).encode(y=_y(style), tooltip=tooltip()),
        base.mark_tick(thickness=1.5, strokeDash=[2, 2]).encode(y=_y(style, "null")),
    )


def points(style: ChartStyle) -> Any:
    """Single numbers with their intervals, one per line; the null value is a tick."""
    y = alt.Y("series:N", title=None, axis=alt.Axis(labelLimit=260))
    axis = _value_axis(style)
    x = alt.X("value:Q", title=VALUE, scale=alt.Scale(zero=style.zero), axis=axis)
    base = _base(style).encode(y=y, color=series(style, legend=False))
    return alt.layer(
        base.mark_rule(strokeWidth=1.5).encode(x=alt.X("low:Q", title=VALUE, axis=axis), x2="high:Q"),
        base.mark_circle(size=70, opacity=1).encode(x=x, tooltip=tooltip()),
        base.mark_tick(thickness=1.5).encode(x=alt.X("null:Q", title=VALUE, axis=axis)),
    )


def _lines(style: ChartStyle, x: alt.X) -> Any:
    """Band, null value and line of each series; ordered series have no bands, because they would overlap."""
    base = _base(style).encode(x=x)
    separate = ["series:N", "tokens:N"]  # two token policies are two lines, whatever the colour shows
    layers: list[Any] = []
    if not style.ordered:
        band = base.mark_area(opacity=_BAND).encode(
            y=_y(style, "low"), y2="high:Q", color=series(style), detail=separate
        )
        layers.append(band)
    if style.null:
        dotted = base.mark_line(strokeDash=[1, 3], strokeWidth=1.5, strokeCap="round")
        layers.append(dotted.encode(y=_y(style, "null"), color=series(style), detail=separate))
    line = base.mark_line(strokeWidth=2 if not style.ordered else 1.4).encode(
        y=_y(style), color=series(style), detail=separate
    )
    dots = base.mark_circle(size=26 if not style.ordered else 14, opacity=1).encode(
        y=_y(style), color=series(style), detail=separate, tooltip=tooltip()
    )
    return alt.layer(*layers, line.encode(strokeDash=_dash()) if style.dash else line, dots)


def series(style: ChartStyle, legend: bool = True) -> alt.Color:
    """The colour of a series: a scale if its values have an order, otherwise one hue each."""
    if style.colour is None:
        return alt.Color("series:N", legend=None)
    title = title_of(style.colour)
    if not style.ordered:
        if not style.runs:
            return alt.Color("series:N", title=title, sort=None, legend=_legend(title) if legend else None)
        runs = alt.Legend(title=title, values=list(style.present)) if legend else None
        return alt.Color("series:N", title=title, scale=alt.Scale(domain=list(style.runs)), legend=runs)
    scale = alt.Scale(range="ramp", type="symlog" if style.colour == "step" else "linear")
    names = layer_names(style) if style.colour == "layer" else "datum.label"
    legends = alt.Legend(title=title, type="symbol", labelExpr=names, values=list(style.marked), format="~g")
    return alt.Color("series:Q", scale=scale, legend=legends)


def title_of(field: str) -> str:
    return TITLES.get(field, field.removeprefix("v_").replace("_", " "))


def layer_axis(style: ChartStyle) -> alt.Axis:
    """Layers by number, with the names embed and final at the ends."""
    return alt.Axis(labelExpr=layer_names(style), **_whole(style), grid=False)


def _whole(style: ChartStyle) -> dict[str, Any]:
    """The options of an axis of whole numbers. Vega's own smallest step still allows 0.5 if there are few numbers."""
    return {"values": list(style.ticks), "format": "d", "labelOverlap": True} if style.ticks else {"format": "d"}


def layer_names(style: ChartStyle) -> str:
    """The Vega expression that names a position on the axis of layers."""
    final = "" if style.final is None else f"datum.value == {style.final:g} ? 'final' : "
    return f"datum.value == -1 ? 'embed' : {final}datum.label"


def tooltip() -> list[alt.Tooltip]:
    """All fields of a mark."""
    texts = [alt.Tooltip(f"{field}:N", title=title_of(field)) for field in ("run", "site", "tokens")]
    wholes = [alt.Tooltip(f"{field}:Q", title=title_of(field)) for field in ("step", "head", "index")]
    numbers = [
        alt.Tooltip(f"{field}:Q", title=title, format=_NUMBER)
        for field, title in (("value", "value"), ("low", "95 % from"), ("high", "to"), ("null", "null value"))
    ]
    return [*texts, *wholes, *numbers, alt.Tooltip("n:Q", format=","), alt.Tooltip("note:N")]


def _base(style: ChartStyle) -> Any:
    chart = alt.Chart(alt.NamedData(ROWS))
    if not style.log_y:
        return chart
    # A log axis cannot show 0, a band below 0, or the rounding error of a 0.
    return (
        chart.transform_joinaggregate(top="max(value)")
        .transform_filter("datum.value > 1e-7 * datum.top")
        .transform_calculate(
            low="isValid(datum.low) ? max(datum.low, datum.value / 10) : null",
            null="datum.null > 1e-7 * datum.top ? datum.null : null",
        )
    )


def _y(style: ChartStyle, field: str = "value", aggregate: str | None = None) -> alt.Y:
    scale = alt.Scale(type="log", nice=False) if style.log_y else alt.Scale(zero=style.zero)
    name = field if aggregate is None else f"{aggregate}({field})"
    return alt.Y(f"{name}:Q", title=VALUE, scale=scale, axis=_value_axis(style))


def _value_axis(style: ChartStyle) -> alt.Axis:
    """The axis of values: numbers near 0 and large ones have exponents; shares are in percent, as in the tables."""
    return alt.Axis(tickCount=6, labelExpr=PERCENT if style.percent else PLAIN)


def _log_axis(title: str, style: ChartStyle) -> alt.X:
    """An axis of whole numbers, logarithmic if they span decades; in `at` 0 is moved to the left edge."""
    if not style.log_x:
        scale = alt.Scale(zero=False, nice=False, padding=8)
        # Steps may still grow on a live page, so their ticks are not fixed: those between two numbers are not named.
        names = "datum.value % 1 == 0 ? format(datum.value, ',') : ''"
        axis = alt.Axis(**_whole(style)) if style.ticks else alt.Axis(tickMinStep=1, labelExpr=names, labelOverlap=True)
        return alt.X("at:Q", title=title, scale=scale, axis=axis)
    names = "datum.label"
    if style.first_x is not None:
        title += " (0 at the left edge)"
        names = f"datum.value < {style.first_x:g} ? '' : datum.label"
    axis = alt.Axis(format="~s", labelExpr=names, labelOverlap=True, grid=False)
    return alt.X("at:Q", title=title, scale=alt.Scale(type="log", nice=False, padding=8), axis=axis)


def _dash() -> alt.StrokeDash:
    scale = alt.Scale(domain=["no-sink", "all"], range=[[1, 0], [2, 3]])
    return alt.StrokeDash("tokens:N", scale=scale, legend=_legend("tokens", symbolStrokeWidth=2))


def _legend(title: str, **options: Any) -> alt.Legend:
    """A legend of names; token policies are written in words."""
    words: dict[str, Any] = {"labelExpr": _POLICIES, "labelLimit": 260} if title == "tokens" else {}
    return alt.Legend(title=title, **words, **options)
