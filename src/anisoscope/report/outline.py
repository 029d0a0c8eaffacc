"""The outline of a page: which charts fit which metric, and their specifications, as plain JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import pandas as pd

from anisoscope.report.charts import spec_of, style_of
from anisoscope.report.checked_info import checked_info
from anisoscope.report.lines import title_of
from anisoscope.report.sentences import PHRASES
from anisoscope.report.shapes import KINDS, TableShape, choose, colours_of, shape_of
from anisoscope.report.tables import Depths, by_metric, depths_of
from anisoscope.report.theme import config
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
}
_UNCHARTED = ("alert",)  # shown as text


def outline_of(table: pd.DataFrame, cards: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The charts of every metric of a table; metrics with charts of the same style share one specification."""
    depths = depths_of(table)
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
            "family": str(cards.get(metric, {}).get("family", "other")),
            "meaning": str(cards.get(metric, {}).get("meaning", "")),
            "kinds": kinds_of(charted[metric], depths, specs),
        }
        for metric in order
    ]
    return {"views": views, "specs": specs, "themes": {"light": config(), "dark": config(dark=True)}}


def kinds_of(group: pd.DataFrame, depths: Depths, specs: dict[str, Any]) -> list[dict[str, Any]]:
    """The kinds of chart that fit one metric; their specifications are added to `specs`."""
    shape = shape_of(group, depths)
    return [
        {
            "kind": kind,
            "title": KIND_TITLES[kind],
            "axes": list(KINDS[kind].axes),
            "dash": KINDS[kind].dash,
            "colours": [_colour(kind, shape, field, specs) for field in colours_of(kind, shape) or (None,)],
        }
        for kind in choose(shape)
    ]


def cards_of(runs: Sequence[Run]) -> dict[str, Mapping[str, Any]]:
    """The metric cards of several runs; of several cards of one metric the first."""
    cards: dict[str, Mapping[str, Any]] = {}
    for run in runs:
        for name, card in checked_info(run.info)["metrics"].items():
            cards.setdefault(name, card)
    return cards


def _colour(kind: str, shape: TableShape, field: str | None, specs: dict[str, Any]) -> dict[str, Any]:
    style = style_of(kind, shape, field)
    key = ",".join(f"{name}={value}" for name, value in asdict(style).items() if value not in (None, False))
    specs.setdefault(key, spec_of(style))
    return {"field": field, "title": None if field is None else title_of(field), "spec": key}
