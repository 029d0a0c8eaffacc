"""Records in, a chart out: specifications that render in HTML, notebooks, PNG and PDF alike."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import altair as alt
import pandas as pd

from anisoscope.errors import InputError
from anisoscope.records import Record
from anisoscope.report import lines, maps
from anisoscope.report.facts import sound
from anisoscope.report.lines import Look
from anisoscope.report.shapes import (
    KINDS,
    ORDERED,
    TableShape,
    colours_of,
    default_pick,
    distinct,
    field_named,
    picks_of,
    require_kind,
    shape_of,
    steep,
    wide,
)
from anisoscope.report.theme import COLOURS, config, save_chart, themed
from anisoscope.report.tidy import NONE, Depths, Row, claim_of, depths_of, of_metric, parse_site, rows_of, table_of
from anisoscope.store.run import Run

__all__ = ["clouds_chart", "plot", "save_chart", "themed"]

DRAWN: Mapping[str, Callable[[Look], Any]] = {
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
    "plane": maps.plane,
    "verdicts": maps.verdicts,
    "points": lines.points,
}
_LOG_AXIS = {"steps": "step", "curve": "index", "levels": "index"}  # the field that may span decades
_FLAT = 0.25  # values that vary by less than this share of their size are not drawn from 0


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
    """A chart of one metric of one or more runs; what kind is chosen by the shape of its records.

    `kind` names another that fits, `colour` the field to colour, `pick` the value of fields that are not drawn
    (`{"step": 1000, "layer": 5, "proxy": "pca"}`); of those not given the last step and the middle layer are shown.
    """
    whole = table_of(runs)
    depths = depths_of(whole)
    table, asked = _picked(of_metric(whole, metric), depths, pick or {})
    shape = shape_of(table, depths)
    chosen = require_kind(kind, shape)
    field = _require_colour(colour, chosen, shape)
    rows = rows_of(table, depths)
    defaults = {name: _default(name, rows, shape) for name in picks_of(chosen, shape, field)}
    rows = [row for row in rows if _at(row, defaults)]
    picked = {name: value for name, value in {**asked, **defaults}.items() if value != NONE}
    card = sound(runs[0].info)["metrics"].get(metric, {})
    spec = filled(spec_of(look_of(chosen, shape, field)), with_series(rows, chosen, field))
    size = {"width": width, "height": height}
    subtitle = [card["meaning"]] if "meaning" in card else []
    subtitle += [", ".join(f"{lines.title_of(f)} {_label(v)}" for f, v in picked.items())] if picked else []
    title = {"text": metric, "subtitle": subtitle}
    return alt.Chart.from_dict({**spec, **size, "title": title, "config": config(dark)})


def look_of(kind: str, shape: TableShape, colour: str | None) -> Look:
    """What the specification of a chart depends on, read off the shape."""
    low, high = shape.low or 0.0, shape.high or 0.0
    x = shape.values.get(_LOG_AXIS.get(kind, ""), ())
    places = shape.values.get("place", ())
    return Look(
        kind=kind,
        colour=colour,
        ordered=colour in ORDERED,
        log_x=wide(x) if x else kind == "against",
        first_x=min((each for each in x if each > 0), default=None) if 0 in x else None,
        log_y=kind == "against" or (kind == "curve" and steep(shape)),
        zero=not (low > 0 and high - low < _FLAT * high),
        signed=low < 0 < high,
        null=shape.has_null,
        dash=KINDS[kind].dash and colour != "tokens" and shape.has("tokens"),
        final=max(places) if any(parse_site(s).kind == "final" for s in shape.values.get("site", ())) else None,
    )


@lru_cache(maxsize=512)
def _cached_spec(look: Look) -> dict[str, Any]:
    # Without validation, which takes longer than all the rest: the tests validate every kind once.
    spec: dict[str, Any] = DRAWN[look.kind](look).to_dict(validate=False)
    spec.pop("config", None)
    return spec


def spec_of(look: Look) -> dict[str, Any]:
    """The Vega-Lite specification of a look, whose rows come under the name of `lines.ROWS`."""
    return copy.deepcopy(_cached_spec(look))


def filled(spec: Mapping[str, Any], rows: Sequence[Row]) -> dict[str, Any]:
    """A specification with its rows inside."""
    return {**spec, "datasets": {lines.ROWS: list(rows)}}


def with_series(rows: Sequence[Row], kind: str, colour: str | None) -> list[Row]:
    """Rows with what specifications read: `series` (the colour), `at` (the x in logs), `claim` and `effect`."""
    x = _LOG_AXIS.get(kind)
    positive = [row[x] for row in rows if x and row[x] and row[x] > 0]
    edge = min(positive, default=1) / 2  # a log axis has no 0: it stands half a step before the first
    extra = _verdict_fields if kind == "verdicts" else lambda row: {}
    return [
        {
            **row,
            "series": row["site"] if colour is None else row.get(colour),
            **({"at": (row[x] or edge) if positive else row[x]} if x else {}),
            **extra(row),
        }
        for row in rows
    ]


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


def _picked(table: pd.DataFrame, depths: Depths, wished: Mapping[str, Any]) -> tuple[pd.DataFrame, dict[str, Any]]:
    """The part of a table at the values asked for, and those values by field."""
    if not wished:
        return table, {}
    shape = shape_of(table, depths)
    asked = {field_named(name, shape): value for name, value in wished.items()}
    for field, value in asked.items():
        if value not in shape.values[field]:
            there = ", ".join(map(_label, shape.values[field]))
            raise InputError(f"no record has {lines.title_of(field)} {_label(value)}; there are: {there}")
    part = table[[_at(row, asked) for row in rows_of(table, depths)]]
    if not len(part):
        raise InputError(f"no record has all of {', '.join(f'{name} {_label(v)}' for name, v in wished.items())}")
    return part, asked


def _at(row: Row, picked: Mapping[str, Any]) -> bool:
    """Whether a row stands at the picked values, or has no such field."""
    return all(row.get(field) in (value, None) for field, value in picked.items())


def _default(field: str, rows: Sequence[Row], shape: TableShape) -> Any:
    return default_pick(field, _in_every_run(rows, field) or shape.values[field])


def _in_every_run(rows: Sequence[Row], field: str) -> tuple[Any, ...]:
    """The values of a field that every run has."""
    seen: dict[Any, set[str]] = {}
    for row in rows:
        seen.setdefault(row.get(field), set()).add(row["run"])
    runs = set().union(*seen.values())
    return distinct(value for value, those in seen.items() if those == runs)


def _label(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def clouds_chart(points: Sequence[Mapping[str, Any]], records: Mapping[str, Sequence[Record]]) -> Any:
    """Each cloud on its two strongest axes, with what the instrument says of it."""
    panels = []
    table = pd.DataFrame(list(points))
    for name, found in records.items():
        first = {record.metric: record.value for record in reversed(found)}
        said = [
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
            .properties(width=190, height=150, title=alt.TitleParams(name, subtitle=said, anchor="start"))
        )
    return themed(alt.concat(*panels, columns=4, spacing=18))


def _short(value: float | None, digits: int = 2) -> str:
    return "–" if value is None else f"{value:.{digits}f}"
