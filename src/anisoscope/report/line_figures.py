"""Figures whose value is a height: profiles over layers, curves by index, losses and trajectories over steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from anisoscope.report.figure import (
    GHOST,
    GREY,
    Figure,
    TrainingAxis,
    ValueAxis,
    depth_ticks,
    label_layer,
    layer_ticks,
    number_text,
    step_axis,
    step_position,
    tips,
    tooltip_fields,
    value_axis,
)
from anisoscope.report.layer_curves import LayerCurves
from anisoscope.report.tables import Row

ALL, MAIN, NULL = "all tokens", "without first and massive tokens", "no structure"
_MAIN_LINES = ["without first and", "massive tokens"]
WIDE_MARGIN = 58  # space to the right of figures over steps, for the legend of a map: so they share their axis
_ROUNDING = 1e-7  # values below this share of the largest are rounding errors of a 0
_NAME = 18  # letters of a run's name at the end of its line
_WIDEST = 0.4  # how far an interval may stretch the axis, as a share of its range
_DOTS = 40  # a line over steps with more points than this has no dots
_LEFT = 0.62  # share of the axis beyond which a note stands to the left of its mark


def layer_figure(
    curves: Mapping[str, LayerCurves],
    title: str,
    alt: str,
    *,
    percent: bool = False,
    height: int = 220,
    note: str | None = None,
    order: Sequence[str] = (),
    labelled: bool = False,
) -> Figure:
    """A metric over layers, one colour per run: solid without sink tokens, pale over all tokens, grey the null.

    Args:
        curves: The curves by run.
        title: Of the figure.
        alt: Its text for screen readers.
        percent: Whether values are percentages.
        height: Of the plot.
        note: Written next to the widest gap between the two policies of the only run.
        order: All runs of the page, in the order of their colours.
        labelled: Whether the lines of a single run are named at their ends; a small figure has a legend instead.
    """
    relative = len({curve.final or max(curve.main) for curve in curves.values()}) > 1
    rows = [row for run, curve in curves.items() for row in _curve_rows(run, curve, relative, percent)]
    axis = value_axis(_extent(rows, null=len(curves) == 1), percent=percent)
    first = next(iter(curves.values()))
    x = depth_ticks() if relative else layer_ticks([row["x"] for row in rows], first.final)
    names = list(curves)
    labels = _several_runs(names, rows) if len(names) > 1 else _one_run(names[0], rows, first) if labelled else []
    texts, margin = label_layer(labels, axis, height)
    layers = [
        _null_layer(axis, first.low, single=len(names) == 1),
        _line({"strokeWidth": 6, "opacity": GHOST, "strokeCap": "round"}, "datum.pale"),
        _band(),
        _line({"strokeWidth": 2.2}, "!datum.pale"),
        _points(axis, tooltip_fields(*([("series", "run")] if len(names) > 1 else []), ("site", "site"), ("of", "of"))),
        *([] if note is None else _gap_layers(first, note, axis, relative)),
        texts,
    ]
    return Figure(title, first.metric, alt, _spec(layers, rows, x, axis, order or names, margin), height)


def _extent(rows: Sequence[Row], *, null: bool) -> list[float]:
    """The values that an axis must show: all values, and intervals as far as they do not dwarf the values."""
    values = [value for row in rows for value in _drawn(row, null)]
    low, high = min(values), max(values)
    room = _WIDEST * ((high - low) or abs(high))
    ends = [row[end] for row in rows for end in ("low", "high") if row[end] is not None and not row["pale"]]
    return [*values, *(min(max(end, low - room), high + room) for end in ends)]


def _drawn(row: Row, null: bool) -> list[float]:
    values = [row["value"], *([row["null"]] if null and not row["pale"] else [])]
    return [value for value in values if value is not None]


def _curve_rows(run: str, curve: LayerCurves, relative: bool, percent: bool) -> list[Row]:
    policies = [(MAIN if curve.sinks_out else ALL, curve.main, False)]
    if curve.sinks_out:
        policies.append((ALL, curve.all, True))
    last = curve.final or max(curve.main)
    return [
        {
            "series": run,
            "of": name,
            "pale": pale,
            "x": (layer + 1) / (last + 1) if relative else layer,
            "value": row["value"],
            "low": row["low"],
            "high": row["high"],
            "null": None if pale else row["null"],
            **tips(row, percent),
        }
        for name, by_layer, pale in policies
        for layer, row in by_layer.items()
    ]


def _ends(rows: Sequence[Row]) -> dict[tuple[str, bool], Row]:
    return {(row["series"], row["pale"]): row for row in sorted(rows, key=lambda row: row["x"])}


def _one_run(run: str, rows: Sequence[Row], curve: LayerCurves) -> list[Row]:
    """The names of the lines of one run."""
    ends = _ends(rows)
    main = ends[run, False]
    labels = []
    if curve.sinks_out:
        labels = [{"x": main["x"], "value": main["value"], "text": _MAIN_LINES, "series": run}]
        if (run, True) in ends:
            labels.append({"x": main["x"], "value": ends[run, True]["value"], "text": [ALL], "series": run})
    elif curve.main and next(iter(curve.main.values()))["layer"] is not None:
        labels = [{"x": main["x"], "value": main["value"], "text": [ALL], "series": run}]
    if main["null"] is not None:
        labels.append({"x": main["x"], "value": main["null"], "text": [NULL], "series": None})
    return labels


def _several_runs(runs: Sequence[str], rows: Sequence[Row]) -> list[Row]:
    ends = _ends(rows)
    mains = {run: ends[run, False] for run in runs if (run, False) in ends}
    right = max(row["x"] for row in mains.values())
    return [{"x": right, "value": row["value"], "text": [short(run)], "series": run} for run, row in mains.items()]


def short(name: str) -> str:
    """A name that fits at the end of a line.

    >>> short("a-model-with-a-very-long-name")
    'a-model-with-a-ve…'
    """
    return name if len(name) <= _NAME else name[: _NAME - 1] + "…"


def _spec(
    layers: Sequence[Mapping[str, Any]],
    rows: Sequence[Row],
    x: Mapping[str, Any],
    axis: ValueAxis,
    order: Sequence[str],
    margin: int = 0,
) -> dict[str, Any]:
    """Layers over the same rows, axes and colours; `margin` is the space for labels on the right."""
    colour = {"field": "series", "type": "nominal", "scale": {"domain": list(order)}, "legend": None}
    return {
        "data": {"values": list(rows)},
        "encoding": {"x": dict(x), "color": colour},
        "layer": [
            {**layer, "encoding": {"y": axis.encoding(), **layer.get("encoding", {})}}
            for layer in layers
        ],
        "usermeta": {"margin": margin},
    }  # fmt: skip


def _line(mark: Mapping[str, Any], test: str) -> dict[str, Any]:
    return {
        "transform": [{"filter": test}],
        "mark": {"type": "line", "clip": True, **mark},
        "encoding": {"detail": {"field": "of", "type": "nominal"}},
    }


def _band() -> dict[str, Any]:
    return {
        "transform": [{"filter": "!datum.pale && isValid(datum.low)"}],
        "mark": {"type": "area", "opacity": 0.18, "clip": True},
        "encoding": {"y": {"field": "low", "type": "quantitative"}, "y2": {"field": "high"}},
    }


def _points(axis: ValueAxis, tooltip: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "mark": {"type": "circle", "size": 30, "clip": True},
        "encoding": {
            "opacity": {"condition": {"test": "datum.pale", "value": 0.55}, "value": 1},
            "tooltip": tooltip,
        },
    }


def _unseen_points(tooltip: list[dict[str, Any]]) -> dict[str, Any]:
    """Points that show their tooltip and nothing else, for lines of many points."""
    return {
        "mark": {"type": "circle", "size": 60, "clip": True},
        "encoding": {"opacity": {"value": 0}, "tooltip": tooltip},
    }


def _null_layer(axis: ValueAxis, low: bool, *, single: bool) -> dict[str, Any]:
    """The null values: a grey area on the side of structureless rows for one run, dotted lines for several."""
    known = [{"filter": "isValid(datum.null)"}]
    if not single:
        mark = {"type": "line", "strokeDash": [1, 3], "strokeWidth": 1.5, "strokeCap": "round", "opacity": 0.8}
        return {"transform": known, "mark": {**mark, "clip": True}, "encoding": {"y": axis.encoding("null")}}
    return {
        "transform": known,
        "mark": {"type": "area", "color": GREY, "opacity": 0.22, "clip": True, "line": {"color": GREY, "opacity": 0.6}},
        "encoding": {
            "y": axis.encoding("null"),
            "y2": {"datum": axis.high if low else axis.low},
            "color": {"value": GREY},
        },
    }


def _gap_layers(curve: LayerCurves, note: str, axis: ValueAxis, relative: bool) -> list[dict[str, Any]]:
    """A mark at the layer with the widest gap between the two policies, and a note next to it."""
    gaps = curve.gaps()
    layer = max(gaps, key=lambda each: abs(gaps[each]))
    last = curve.final or max(curve.main)
    first = min(curve.main)
    x = (layer + 1) / (last + 1) if relative else layer
    ends = sorted((curve.all[layer]["value"], curve.main[layer]["value"]))
    share = (layer - first) / ((last - first) or 1)
    left = share > _LEFT
    rows = [{"x": x, "value": ends[0], "top": ends[1], "middle": sum(ends) / 2, "note": note.split("\n")}]
    text = {"type": "text", "align": "right" if left else "left", "dx": -8 if left else 8, "baseline": "middle"}
    return [
        {
            "data": {"values": rows},
            "mark": {"type": "rule", "strokeDash": [3, 2], "strokeWidth": 1.4, "color": GREY},
            "encoding": {"y2": {"field": "top"}, "color": {"value": GREY}},
        },
        {
            "data": {"values": rows},
            "mark": {**text, "fontSize": 12, "lineHeight": 15},
            "encoding": {"y": axis.encoding("middle"), "text": {"field": "note"}, "color": {"value": GREY}},
        },
    ]


def index_figure(
    series: Mapping[str, Sequence[Row]],
    title: str,
    alt: str,
    *,
    x_title: str,
    percent: bool = False,
    null: bool = True,
    height: int = 220,
    metric: str = "",
) -> Figure:
    """A value by index, one line per series: a spectrum by rank, a dimension by scale, a share by tokens removed."""
    indices = sorted({row["index"] for rows in series.values() for row in rows})
    positive = [index for index in indices if index > 0] or [1]
    rows = [
        {
            "series": name,
            "of": name,
            "pale": False,
            "at": step_position(row["index"], min(positive)),
            "index": row["index"],
            "value": row["value"],
            "low": row["low"],
            "high": row["high"],
            "null": row["null"] if null else None,
            **tips(row, percent),
        }
        for name, group in series.items()
        for row in group
    ]
    top = max(row["value"] for row in rows)
    rows = [row for row in rows if row["value"] > _ROUNDING * top] or rows
    one = len(series) == 1
    values = [v for row in rows for v in _drawn(row, one)]
    steep = _is_steep([row["value"] for row in rows])
    axis = value_axis(values if steep else _extent(rows, null=one), percent=percent, log=steep or None)
    ends = {row["series"]: row for row in sorted(rows, key=lambda row: row["at"])}
    right = max(row["at"] for row in rows)
    labels = [{"x": right, "value": row["value"], "text": [name], "series": name} for name, row in ends.items()]
    if one:
        labels = [label for label in labels if label["text"] != [""]]
        end = next(iter(ends.values()))
        if end["null"] is not None:
            labels.append({"x": right, "value": end["null"], "text": [NULL], "series": None})
    labels = [{**label, "at": label["x"]} for label in labels]
    texts, margin = label_layer(labels, axis, height)
    x = step_axis(indices, x_title)
    texts["encoding"]["x"] = x
    layers = [
        _null_layer(axis, False, single=one),
        _band(),
        _line({"strokeWidth": 2.2}, "true"),
        _points(axis, tooltip_fields(("of", "line"), ("index", x_title))),
        texts,
    ]
    return Figure(title, metric, alt, _spec(layers, rows, x, axis, list(series), margin), height)


def _is_steep(values: Sequence[float]) -> bool:
    return min(values) > 0 and max(values) / min(values) > 100


def steps_figure(
    series: Mapping[str, Sequence[tuple[int, float]]],
    title: str,
    alt: str,
    training: TrainingAxis,
    *,
    metric: str,
    pale: Sequence[str] = (),
    percent: bool = False,
    height: int = 150,
) -> Figure:
    """Values over training steps, one line per series, with alerts as marks.

    Args:
        series: (step, value) of each line.
        title: Of the figure.
        alt: Its text for screen readers.
        training: The axis of steps, with the alerts.
        metric: The name in small type.
        pale: Series that are drawn pale, in the colour of the others: single steps, below their smooth counterpart.
        percent: Whether values are percentages.
        height: Of the plot.
    """
    rows: list[Row] = [
        {
            "series": title if pale else name,
            "of": name,
            "pale": name in pale,
            "dense": len(points) > _DOTS,
            "at": training.position(step),
            "step": step,
            "value": value,
            "value_text": number_text(value, percent),
        }
        for name, points in series.items()
        for step, value in points
    ]
    axis = value_axis([row["value"] for row in rows], percent=percent)
    tooltip = tooltip_fields(("of", "line"), ("step", "step"))[:3]
    layers = [
        _line({"strokeWidth": 3, "opacity": GHOST}, "datum.pale"),
        _line({"strokeWidth": 2}, "!datum.pale"),
        {**_points(axis, tooltip), "transform": [{"filter": "!datum.pale && !datum.dense"}]},
        {**_unseen_points(tooltip), "transform": [{"filter": "datum.dense && !datum.pale"}]},
        *([alert_layer(training)] if training.alerts else []),
    ]
    order = list(dict.fromkeys(row["series"] for row in rows))
    spec = _spec(layers, rows, training.encoding(), axis, order, WIDE_MARGIN)
    return Figure(title, metric, alt, spec, height, wide=True)


def alert_layer(training: TrainingAxis) -> dict[str, Any]:
    """Alerts as vertical marks; a tooltip has the text."""
    rows = [{"at": training.position(step), "step": step, "alert": text} for step, text in training.alerts]
    return {
        "data": {"values": rows},
        "mark": {"type": "rule", "color": "#D55E00", "strokeWidth": 2, "strokeDash": [5, 3]},
        "encoding": {
            "y": {"value": 0},
            "y2": {"value": "height"},
            "color": {"value": "#D55E00"},
            "tooltip": [{"field": "step", "type": "quantitative"}, {"field": "alert", "type": "nominal"}],
        },
    }
