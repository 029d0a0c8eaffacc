"""All that a page shows of some runs: which charts fit which metric, and their specifications, as plain JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import pandas as pd

from anisoscope.report.charts import look_of, spec_of
from anisoscope.report.facts import sound
from anisoscope.report.lines import title_of
from anisoscope.report.reading import PHRASES
from anisoscope.report.shapes import KINDS, TableShape, choose, colours_of, shape_of
from anisoscope.report.theme import config
from anisoscope.report.tidy import Depths, by_metric, depths_of
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
    "plane": "in the plane",
    "verdicts": "verdicts",
    "points": "numbers",
}
_UNCHARTED = ("alert",)  # told in words


def outline_of(table: pd.DataFrame, cards: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The charts of every metric of a table; metrics whose charts look alike share one specification."""
    depths = depths_of(table)
    specs: dict[str, Any] = {}
    charted = {
        name: group
        for name, group in by_metric(table).items()
        if name not in _UNCHARTED and group["value"].notna().any()
    }
    # What a reader asks first stands first.
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
    """The cards of all metrics of some runs, the first run's where several have one."""
    found: dict[str, Mapping[str, Any]] = {}
    for run in runs:
        for name, card in sound(run.info)["metrics"].items():
            found.setdefault(name, card)
    return found


def _colour(kind: str, shape: TableShape, field: str | None, specs: dict[str, Any]) -> dict[str, Any]:
    look = look_of(kind, shape, field)
    key = ",".join(f"{name}={value}" for name, value in asdict(look).items() if value not in (None, False))
    specs.setdefault(key, spec_of(look))
    return {"field": field, "title": None if field is None else title_of(field), "spec": key}
