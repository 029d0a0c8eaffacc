"""The outline of a page: which charts fit which metric, and their specifications, as plain JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import pandas as pd

from anisoscope.report.charts import spec_of, style_of
from anisoscope.report.checked_info import checked_info
from anisoscope.report.lines import ChartStyle, title_of
from anisoscope.report.metric_titles import title
from anisoscope.report.picks import first_variant
from anisoscope.report.sentences import PHRASES
from anisoscope.report.shapes import KINDS, colours_of, fitting_kinds, log_values
from anisoscope.report.streams import UNNAMED, stream_label
from anisoscope.report.tables import Depths, by_metric, depths_of, parse_site, stream_of
from anisoscope.report.theme import config
from anisoscope.report.topics import OTHER, QUESTIONS, topic_of
from anisoscope.store.run import Run

KIND_TITLES = {
    "profile": "over layers",
    "steps": "over steps",
    "map": "layers × steps",
    "heads": "layers × heads",
    "head_steps": "heads × steps",
    "curve": "by index",
    "levels": "against nulls",
    "spikes": "by index",
    "strata": "by stratum",
    "against": "against eigenvalue",
    "verdicts": "verdicts",
    "points": "numbers",
    "pairs": "layers × layers",
    "path": "path of the mean",
}
_UNCHARTED = ("alert",)  # shown as text


def outline_of(table: pd.DataFrame, cards: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The charts of every metric of a table; metrics with charts of the same style share one specification."""
    depths = depths_of(table)
    runs = [str(run) for run in table["run"].unique()]
    specs: dict[str, Any] = {}
    charted = {
        name: group
        for name, group in by_metric(table).items()
        if name not in _UNCHARTED and group["value"].notna().any()
    }
    # The most important metrics come first.
    order = [*(name for name in PHRASES if name in charted), *(name for name in charted if name not in PHRASES)]
    views = [
        {
            "metric": metric,
            "title": title(metric),
            "topic": topic_of(metric),
            "family": str(cards.get(metric, {}).get("family", "other")),
            "meaning": str(cards.get(metric, {}).get("meaning", "")),
            "kinds": kinds_of(charted[metric], depths, specs, runs, cards.get(metric, {})),
        }
        for metric in order
    ]
    streams = {stream_of(parse_site(text)) for text in table["site"].unique()}
    return {
        "views": views,
        "questions": [*QUESTIONS.items(), (OTHER, "Other numbers")],
        "specs": specs,
        "streams": {stream: stream_label(stream) for stream in sorted(streams)},
        "unnamed": list(UNNAMED),
        "themes": {"light": config(), "dark": config(dark=True)},
    }


def kinds_of(
    group: pd.DataFrame, depths: Depths, specs: dict[str, Any], runs: Sequence[str], card: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """The kinds of chart that fit one metric; their specifications are added to `specs`."""
    metric = str(group["metric"].iloc[0])
    kinds = []
    for kind, (part, shape) in fitting_kinds(group, depths).items():
        colours = colours_of(kind, shape) or (None,)
        styles = {field: style_of(kind, shape, field, metric=metric, runs=runs) for field in colours}
        kinds.append(
            {
                "kind": kind,
                "title": KIND_TITLES[kind],
                "axes": list(KINDS[kind].axes),
                "dash": KINDS[kind].dash,
                "needs": list(KINDS[kind].needs),
                "positive": log_values(kind, shape.steep),
                "headline": first_variant(part, card),
                "colours": [_colour(field, style, specs) for field, style in styles.items()],
            }
        )
    return kinds


def cards_of(runs: Sequence[Run]) -> dict[str, Mapping[str, Any]]:
    """The metric cards of several runs; of several cards of one metric the first."""
    cards: dict[str, Mapping[str, Any]] = {}
    for run in runs:
        for name, card in checked_info(run.info)["metrics"].items():
            cards.setdefault(name, card)
    return cards


def _colour(field: str | None, style: ChartStyle, specs: dict[str, Any]) -> dict[str, Any]:
    facts = {name: value for name, value in asdict(style).items() if value not in (None, ()) and value is not False}
    key = ",".join(f"{name}={value}" for name, value in facts.items())
    specs.setdefault(key, spec_of(style))
    return {"field": field, "title": None if field is None else title_of(field), "spec": key}
