"""Runs as one table, and its rows as charts need them: with a layer, a head and an interval for every number."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import pandas as pd

from anisoscope.errors import unknown
from anisoscope.records import COLUMNS, Record, Site
from anisoscope.report.checked_info import checked_info
from anisoscope.report.interval import interval
from anisoscope.store.run import Run

Row = dict[str, Any]  # one record for a chart, with one `v_<key>` for each key of its variant
Depths = Mapping[tuple[str, str], int]  # the number of layers by (run, stack)

NONE = "–"  # the value of a variant's key that other records of the metric have and this one lacks
# Curves whose x is another metric's value at the same site, step and index: energy against variance, axis by axis.
_X = {"gradient_along_axis": "variance_along_axis"}
_STREAM = {"embed": "resid", "final.in": "resid", "final": "resid"}  # sites of the residual stream
RANGE = ("least", "most")  # columns for the range of the metric, so that no interval leaves it
BEHIND = ("final.in", "final")  # sites whose position depends on the number of layers


def table_of(runs: Sequence[Run]) -> pd.DataFrame:
    """The records of one or more runs as one table; the column `run` is different for every run."""
    return joined([with_range(run.table(), run) for run in runs], run_labels(runs))


def with_range(table: pd.DataFrame, run: Run) -> pd.DataFrame:
    """The records of a run with the range of their metrics, in the columns of `RANGE`."""
    cards = checked_info(run.info)["metrics"]
    limits = {
        column: {name: card.get(key) for name, card in cards.items()}
        for column, key in zip(RANGE, ("low", "high"), strict=True)
    }
    return table.assign(**{column: table["metric"].map(of).astype(float) for column, of in limits.items()})


def joined(frames: Sequence[pd.DataFrame], labels: Sequence[str]) -> pd.DataFrame:
    """The tables of several runs as one, with these labels in the column `run`."""
    named = [frame.assign(run=label) for frame, label in zip(frames, labels, strict=True)]
    return with_x(pd.concat([frame for frame in named if len(frame)] or named[:1], ignore_index=True))


def with_x(table: pd.DataFrame) -> pd.DataFrame:
    """The table with a column `x` if some curve is drawn against another metric."""
    same = ["run", "step", "site", "tokens", "index", "variant"]
    for metric, against in _X.items():
        curve, other = table[table["metric"] == metric], table[table["metric"] == against]
        if len(curve) and len(other):
            x = curve[same].merge(other[[*same, "value"]].drop_duplicates(same), on=same, how="left")["value"]
            table = table.assign(x=pd.Series(x.to_numpy(), index=curve.index).reindex(table.index))
    return table


def run_labels(runs: Sequence[Run]) -> list[str]:
    """A unique label for each run: its name, if necessary with its folder, or with a number.

    Two runs `a/exp` and `b/exp` are called `a/exp` and `b/exp`.
    """
    names = [run.name for run in runs]
    shared = {name for name in names if names.count(name) > 1}
    names = [f"{run.path.parent.name}/{run.name}" if run.name in shared else run.name for run in runs]
    return [
        name if names.count(name) == 1 else f"{name} ({names[: position + 1].count(name)})"
        for position, name in enumerate(names)
    ]


def of_metric(table: pd.DataFrame, metric: str) -> pd.DataFrame:
    """The rows of one metric; an unknown name is an InputError with similar names."""
    known = list(table["metric"].unique())
    if metric not in known:
        raise unknown("metric of this run", metric, known)
    return table[table["metric"] == metric]


def by_metric(table: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """The parts of a table by metric, in first-seen order."""
    return {str(metric): group for metric, group in table.groupby("metric", sort=False)}


def first_and_last(table: pd.DataFrame) -> pd.DataFrame:
    """The records of the first and of the last step of each run and metric."""
    steps = table.groupby(["run", "metric"])["step"]
    return table[(table["step"] == steps.transform("min")) | (table["step"] == steps.transform("max"))]


def last_tests(table: pd.DataFrame) -> pd.DataFrame:
    """The records of the last step at which gradients were tested; none if they never were."""
    tested = table[table["metric"] == "gradient_q"]
    return table[table["step"] == tested["step"].max()] if len(tested) else table[:0]


def records_of(table: pd.DataFrame) -> list[Record]:
    """The records of a table."""
    rows = zip(*(_objects(table[name]) for name in COLUMNS), strict=True)
    return [_record(dict(zip(COLUMNS, row, strict=True))) for row in rows]


def _record(values: Row) -> Record:
    return Record(**{**values, "variant": json.loads(values["variant"])})


def _objects(column: pd.Series[Any]) -> pd.Series[Any]:
    """A column as Python values, None if missing."""
    return column.astype(object).where(column.notna(), None)


def rows_of(table: pd.DataFrame, depths: Depths | None = None) -> list[Row]:
    """The rows of a table of one metric as charts need them.

    `depths` is the number of layers by (run, stack), which gives the position of `final`; by default it comes from
    the table.
    """
    known = depths_of(table) if depths is None else depths
    names = [*COLUMNS, *(name for name in ("x", *RANGE) if name in table)]
    columns = [_objects(table[name]) for name in names]
    keys = variant_keys(table["variant"].unique())
    return [_row(dict(zip(names, values, strict=True)), known, keys) for values in zip(*columns, strict=True)]


def variant_keys(texts: Iterable[str]) -> list[str]:
    """The keys of these variants, in order."""
    return sorted({key for text in texts for key in parse_variant(text)})


def late_rows(table: pd.DataFrame) -> list[Row]:
    """Rows for a page that is already open: with their metric, and what the page needs to find their position."""
    late = []
    for metric, group in by_metric(with_x(table)).items():
        for row in rows_of(group, {}):
            site = parse_site(row["site"])
            late.append({**row, "metric": metric, "behind": site.kind in BEHIND, "stack": site.stack})
    return late


def depths_of(table: pd.DataFrame) -> dict[tuple[str, str], int]:
    """The number of layers by (run, stack)."""
    depths: dict[tuple[str, str], int] = {}
    for run, text in table[["run", "site"]].drop_duplicates().itertuples(index=False):
        site = parse_site(text)
        if site.layer is not None:
            depths[run, site.stack] = max(depths.get((run, site.stack), 0), site.layer + 1)
    return depths


def _row(values: Row, depths: Depths, keys: Sequence[str]) -> Row:
    site = parse_site(values["site"])
    heads = site.kind == "pattern"  # there the index is a head
    ends: tuple[float | None, float | None] = (None, None)
    if values["value"] is not None and values["error"] is not None:
        least, most = (values.get(name) for name in RANGE)
        low, high = interval(values["value"], values["error"], values["error_kind"], least, most)
        ends = (low, high) if math.isfinite(low) and math.isfinite(high) else ends
    variant = parse_variant(values["variant"])
    return {
        "run": values["run"],
        "tokens": values["tokens"],
        "stream": stream_of(site),
        "site": values["site"],
        "layer": layer_position(site, depths.get((values["run"], site.stack))),
        "head": values["index"] if heads else site.head,
        "index": None if heads else values["index"],
        "step": values["step"],
        "value": values["value"],
        "low": ends[0],
        "high": ends[1],
        "error": values["error"],
        "null": values["null"],
        "n": values["n"],
        "note": values["note"],
        "x": values.get("x"),
        **{f"v_{key}": variant.get(key, NONE) for key in keys},
    }


def claim_of(row: Row) -> str:
    """The claim's id: the variant's `claim`, or the name in the site."""
    claim = row.get("v_claim", NONE)
    return str(claim) if claim != NONE else parse_site(row["site"]).name or str(row["site"])


def stream_of(site: Site) -> str:
    """What a curve over layers follows: `resid` from embed to final, `attn`, `grad.resid`, `enc.mlp`, `weight`, …"""
    parts = ["grad"] if site.grad else []
    parts += [site.stack] if site.stack else []
    return ".".join([*parts, _STREAM.get(site.kind, site.kind)])


def layer_position(site: Site, depth: int | None) -> float | None:
    """The position of a site on the axis of layers: embed −1, layer i at i, final after the last; None if it has none.

    >>> [layer_position(Site.parse(text), 12) for text in ("resid.3", "final", "vectors")]
    [3.0, 12.0, None]
    """
    if site.layer is not None:
        return float(site.layer)
    last = 0 if depth is None else depth
    return {"embed": -1.0, "final.in": last - 0.5, "final": float(last)}.get(site.kind)


# Cached: many records repeat few texts.
parse_site = lru_cache(maxsize=4096)(Site.parse)


@lru_cache(maxsize=4096)
def parse_variant(text: str) -> Mapping[str, Any]:
    """A variant's keys and plain values; other values as their JSON text."""
    plain = (str, int, float, bool)
    return {
        key: value if isinstance(value, plain) else json.dumps(value)
        for key, value in json.loads(text).items()
        if value is not None
    }
