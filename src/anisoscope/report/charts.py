"""Charts of records: Vega-Lite specifications for HTML, notebooks, PNG and PDF."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import altair as alt
import pandas as pd

from anisoscope.errors import InputError
from anisoscope.records import Record
from anisoscope.report import lines, maps
from anisoscope.report.checked_info import checked_info
from anisoscope.report.lines import ChartStyle
from anisoscope.report.picks import field_value, first_variant, pick_rows
from anisoscope.report.sentences import PHRASES
from anisoscope.report.shapes import (
    KINDS,
    ORDERED,
    TableShape,
    colours_of,
    field_named,
    fitting_kinds,
    log_values,
    require_kind,
    shape_of,
    wide,
)
from anisoscope.report.streams import metric_title, stream_label
from anisoscope.report.tables import (
    NONE,
    Depths,
    Row,
    claim_of,
    depths_of,
    of_metric,
    parse_site,
    rows_of,
    run_labels,
    table_of,
)
from anisoscope.report.theme import COLOURS, config, save_chart, themed
from anisoscope.store.run import Run

__all__ = ["clouds_chart", "plot", "save_chart", "themed"]

DRAWN: Mapping[str, Callable[[ChartStyle], Any]] = {
    "profile": lines.profile,
    "steps": lines.steps,
    "map": maps.layer_steps,
    "heads": maps.heads,
    "head_steps": maps.head_steps,
    "curve": lines.curve,
    "levels": lines.levels,
    "spikes": lines.spikes,
    "strata": lines.strata,
    "against": lines.against,
    "verdicts": maps.verdicts,
    "points": lines.points,
    "pairs": maps.pairs,
    "path": maps.path,
}
_LOG_AXIS = {"steps": "step", "curve": "index", "levels": "index"}  # the field that may have a log axis
_MOST_TICKS = 16
_FLAT = 0.25  # if values vary by less than this share of their size, the axis does not start at 0


def plot(
    runs: Sequence[Run],
    metric: str,
    *,
    kind: str | None = None,
    colour: str | None = None,
    pick: Mapping[str, Any] | None = None,
    dark: bool = False,
    width: int = 520,
    height: int = 300,
) -> Any:
    """Draw one metric of one or more runs; the kind of chart is chosen by the shape of the records.

    Args:
        runs: The runs.
        metric: The metric's name.
        kind: Another kind of chart that fits the records.
        colour: The field to colour by.
        pick: Values of fields that are not drawn: `{"step": 1000, "layer": 5, "proxy": "pca"}`. By default the last
            step and the layer with the largest number are shown.
        dark: Use a dark background.
        width: Of the plot, in pixels.
        height: Of the plot, in pixels.

    Returns:
        An Altair chart.

    Raises:
        InputError: No such metric, kind, field or value; the message lists what exists.
    """
    whole = table_of(runs)
    depths = depths_of(whole)
    table, requested = _picked(of_metric(whole, metric), depths, pick or {})
    fitting = fitting_kinds(table, depths)
    if not fitting:
        raise InputError(f"{metric} has no value in these runs, so there is nothing to draw")
    chosen = require_kind(kind, fitting)
    part, shape = fitting[chosen]
    field = _require_colour(colour, chosen, shape)
    card = checked_info(runs[0].info)["metrics"].get(metric, {})
    picks, rows = pick_rows(rows_of(part, depths), chosen, field, first_variant(part, card))
    picked = {**requested, **{each.field: each.value for each in picks}}
    style = style_of(chosen, shape, field, metric=metric, runs=run_labels(runs))
    title = metric_title(metric, _only_stream(rows))
    spec = filled(spec_of(style), with_series(rows, chosen, field), title)
    size = {"width": width, "height": height}
    subtitle = [card["meaning"]] if "meaning" in card else []
    words = [_pick_text(f, value) for f, value in picked.items() if value != NONE]
    subtitle += [", ".join(words)] if words else []
    return alt.Chart.from_dict({**spec, **size, "title": {"text": title, "subtitle": subtitle}, "config": config(dark)})


def style_of(
    kind: str, shape: TableShape, colour: str | None, *, metric: str = "", runs: Sequence[str] = ()
) -> ChartStyle:
    """The style of a chart for records of this shape; `runs` are all runs of the page in the order of their colours."""
    low, high = shape.low or 0.0, shape.high or 0.0
    x = shape.values.get(_LOG_AXIS.get(kind, ""), ())
    layers = shape.values.get("layer", ())
    return ChartStyle(
        kind=kind,
        colour=colour,
        ordered=colour in ORDERED,
        log_x=wide(x) if x else kind == "against",
        first_x=min((each for each in x if each > 0), default=None) if 0 in x else None,
        log_y=log_values(kind, shape.steep),
        zero=not (low > 0 and high - low < _FLAT * high),
        signed=low < 0 < high,
        null=shape.has_null,
        dash=KINDS[kind].dash and colour != "tokens" and shape.has("tokens"),
        final=max(layers) if any(parse_site(s).kind == "final" for s in shape.values.get("site", ())) else None,
        percent=is_percent(metric),
        runs=tuple(runs) if colour == "run" else (),
        present=tuple(shape.values["run"]) if colour == "run" else (),
        ticks=_ticks(kind, shape),
        marked=_spread(shape.values[colour]) if colour in ORDERED else (),
    )


def _ticks(kind: str, shape: TableShape) -> tuple[float, ...]:
    """The ticks of an axis of whole numbers: layers or indices, every one if there are few."""
    if kind == "profile":
        layers = shape.values["layer"]
        low, high = math.floor(layers[0]), math.ceil(layers[-1])
        step = next(each for each in (1, 2, 5, 10, 20, 50, 100, 1000, 10**9) if (high - low) / each <= _MOST_TICKS)
        return tuple(sorted({low, high, *(t for t in range(low, high + 1, step) if step == 1 or t % step == 0)}))
    index = shape.values.get("index", ())
    if kind in ("curve", "levels", "spikes") and index and (kind == "spikes" or not wide(index)):
        return _spread(index)
    return ()


def _spread(values: Sequence[float], most: int = 8) -> tuple[float, ...]:
    """At most `most` of these numbers, evenly spread, with the first and the last."""
    if len(values) <= most:
        return tuple(values)
    return tuple(values[round(i * (len(values) - 1) / (most - 1))] for i in range(most))


def is_percent(metric: str) -> bool:
    """Whether sentences and tables report a metric in percent: then its axis is in percent, too."""
    return metric in PHRASES and PHRASES[metric].percent


@lru_cache(maxsize=512)
def _cached_spec(style: ChartStyle) -> dict[str, Any]:
    # Without validation, which is slow: the tests validate every kind once.
    spec: dict[str, Any] = DRAWN[style.kind](style).to_dict(validate=False)
    spec.pop("config", None)
    return spec


def spec_of(style: ChartStyle) -> dict[str, Any]:
    """The Vega-Lite specification of a style; its data has the name `lines.ROWS`."""
    return copy.deepcopy(_cached_spec(style))


def filled(spec: Mapping[str, Any], rows: Sequence[Row], title: str) -> dict[str, Any]:
    """A specification with its rows and the title of the axis of values."""
    return {**_titled(spec, title), "datasets": {lines.ROWS: list(rows)}}


def _titled(part: Any, title: str) -> Any:
    if isinstance(part, Mapping):
        return {k: title if (k, v) == ("title", lines.VALUE) else _titled(v, title) for k, v in part.items()}
    return [_titled(each, title) for each in part] if isinstance(part, list) else part


def with_series(rows: Sequence[Row], kind: str, colour: str | None) -> list[Row]:
    """Rows with the fields that specifications use: `series` (colour), `at` (x on a log axis), `claim` and `effect`."""
    x = _LOG_AXIS.get(kind)
    positive = [row[x] for row in rows if x and row[x] and row[x] > 0]
    edge = min(positive, default=1) / 2  # a log axis has no 0: it is drawn left of the first value
    extra = _verdict_fields if kind == "verdicts" else lambda row: {}
    return [
        {
            **row,
            "series": _series(row, colour),
            **({"at": (row[x] or edge) if positive else row[x]} if x else {}),
            **extra(row),
        }
        for row in rows
    ]


def _series(row: Row, colour: str | None) -> Any:
    if colour is None:
        return row["site"]
    return stream_label(row["stream"]) if colour == "stream" else row.get(colour)


def _only_stream(rows: Sequence[Row]) -> str | None:
    """The stream that all rows have in common."""
    streams = {row["stream"] for row in rows}
    return streams.pop() if len(streams) == 1 else None


def _verdict_fields(row: Row) -> Row:
    effect = "–" if row["value"] is None else f"{row['value']:.3g}"
    if row["error"] is not None:
        effect += f" ± {row['error']:.2g}"
    return {"claim": claim_of(row), "effect": effect}


def _require_colour(colour: str | None, kind: str, shape: TableShape) -> str | None:
    possible = colours_of(kind, shape)
    if colour is None:
        return possible[0] if possible else None
    field = field_named(colour, shape)
    if field not in possible:
        names = ", ".join(map(lines.title_of, possible)) or "nothing"
        raise InputError(f"{kind} cannot be coloured by {colour!r}; possible: {names}")
    return field


def _picked(table: pd.DataFrame, depths: Depths, pick: Mapping[str, Any]) -> tuple[pd.DataFrame, dict[str, Any]]:
    """The rows with the picked values, and those values by field."""
    if not pick:
        return table, {}
    shape = shape_of(table, depths)
    picked = {field_named(name, shape): value for name, value in pick.items()}
    for field, value in picked.items():
        if value not in shape.values[field]:
            existing = ", ".join(f"{each:g}" if isinstance(each, float) else str(each) for each in shape.values[field])
            raise InputError(f"no record has {lines.title_of(field)} {value}; existing values: {existing}")
    part = table[[_at(row, picked) for row in rows_of(table, depths)]]
    if not len(part):
        raise InputError(f"no record has all of {', '.join(f'{name} {v}' for name, v in pick.items())}")
    return part, picked


def _at(row: Row, picked: Mapping[str, Any]) -> bool:
    """Whether a row has the picked values."""
    return all(field_value(row, field) == value for field, value in picked.items())


def _pick_text(field: str, value: Any) -> str:
    """A picked value for a reader."""
    if field == "stream":
        return stream_label(value)
    return f"{lines.title_of(field)} {value:g}" if isinstance(value, float) else f"{lines.title_of(field)} {value}"


def clouds_chart(points: Sequence[Mapping[str, Any]], records: Mapping[str, Sequence[Record]]) -> Any:
    """Each cloud on its two axes of largest variance, with its main results."""
    panels = []
    table = pd.DataFrame(list(points))
    for name, results in records.items():
        first = {record.metric: record.value for record in reversed(results)}
        subtitle = [
            f"cosine {_short(first.get('mean_cosine'))}   top share {_short(first.get('spectral_anisotropy'))}",
            f"IsoScore {_short(first.get('isoscore'))}   dimension {_short(first.get('two_nn'), 1)}",
        ]
        hidden = alt.Axis(labels=False, ticks=False, grid=False, domain=False)
        scale = alt.Scale(domain=[-1.7, 1.7], nice=False)
        panels.append(
            alt.Chart(table[table["cloud"] == name])
            .mark_circle(size=7, opacity=0.5, color=COLOURS[0], clip=True)
            .encode(
                x=alt.X("x:Q", axis=hidden, scale=scale, title=None),
                y=alt.Y("y:Q", axis=hidden, scale=scale, title=None),
            )
            .properties(width=190, height=150, title=alt.TitleParams(name, subtitle=subtitle, anchor="start"))
        )
    return themed(alt.concat(*panels, columns=4, spacing=18))


def _short(value: float | None, digits: int = 2) -> str:
    return "–" if value is None else f"{value:.{digits}f}"
