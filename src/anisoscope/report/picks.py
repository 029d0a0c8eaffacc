"""Which part of a metric's rows a chart shows: the fields that must be picked, their choices, and the first choice.

Choices depend on each other: a field offers only values that occur together with what is picked before it, so that no
choice leads to a chart without marks. `assets/chart.js` does the same in the browser.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import pandas as pd

from anisoscope.records import headline_variant
from anisoscope.report.shapes import KINDS, distinct
from anisoscope.report.tables import NONE, Row, parse_variant, variant_keys

# After the keys of the variant, in this order. Sites come last: most are known by their stream and layer.
_ORDER = ("stream", "run", "tokens", "step", "layer", "head", "index", "site")
_NUMBERED = ("layer", "head", "index")  # a row without such a number is shown first only if all are
_FIRST = {"tokens": "all", "stream": "resid", "index": 32}  # the preferred value; sentences report rank 32, too


@dataclass(frozen=True)
class Pick:
    """A field of which a chart shows one value: the values that can be picked, and the picked one."""

    field: str
    values: tuple[Any, ...]
    value: Any


def first_variant(table: pd.DataFrame, card: Mapping[str, Any]) -> dict[str, Any]:
    """The variant that is shown first: what the metric's card declares, otherwise that of the first record.

    Args:
        table: The records that a chart can draw.
        card: The metric's card; {} if the run has none.

    Returns:
        Values by field; fields have the prefix `v_`.
    """
    first = {**parse_variant(table["variant"].iloc[0]), **headline_variant(card)}
    return {f"v_{key}": first.get(key, NONE) for key in variant_keys(table["variant"].unique())}


def pick_rows(
    rows: Sequence[Row],
    kind: str,
    colour: str | None,
    headline: Mapping[str, Any],
    requested: Mapping[str, Any] = MappingProxyType({}),
) -> tuple[list[Pick], list[Row]]:
    """The picks of a chart, and the rows that it then shows.

    Args:
        rows: The rows of one metric that a chart of this kind can draw.
        kind: The kind of chart.
        colour: The field of its colours.
        headline: The preferred variant, from `first_variant`.
        requested: Values by field that replace the default if they are offered.
    """
    shown = [row for row in rows if colour is None or row.get(colour) is not None]
    picks = []
    for field in _undrawn(shown, kind, colour):
        values = values_of(shown, field)
        if len(values) > 1:
            value = requested.get(field)
            if value not in values:
                value = default_pick(field, values, shown, headline)
            picks.append(Pick(field, values, value))
            shown = [row for row in shown if field_value(row, field) == value]
    return picks, shown


def _undrawn(rows: Sequence[Row], kind: str, colour: str | None) -> list[str]:
    """The fields that neither an axis, nor the colour, nor the dash shows, in the order of picking."""
    drawn = {*KINDS[kind].axes, colour}
    if KINDS[kind].dash:
        drawn.add("tokens")
    if drawn & {"layer", "head"}:
        drawn.add("site")  # within a stream, layer and head determine it
    variants = sorted({key for row in rows for key in row if key.startswith("v_")})
    return [field for field in (*variants, *_ORDER) if field not in drawn]


def field_value(row: Row, field: str) -> Any:
    """A row's value of a field; a dash if it has none."""
    value = row.get(field)
    return NONE if value is None else value


def values_of(rows: Sequence[Row], field: str) -> tuple[Any, ...]:
    """The different values of a field, rows without one first."""
    return tuple(sorted(distinct(field_value(row, field) for row in rows), key=lambda value: value != NONE))


def default_pick(field: str, values: Sequence[Any], rows: Sequence[Row], headline: Mapping[str, Any]) -> Any:
    """The value that is shown first.

    Values that more runs have come first, then those with a number other than 0. Of these: the last step, the
    headline variant, all tokens, the residual stream, the layer with the largest number, or the value with most rows.
    """
    by_value: dict[Any, list[Row]] = {value: [] for value in values}
    for row in rows:
        by_value[field_value(row, field)].append(row)
    runs = {value: len({row["run"] for row in group}) for value, group in by_value.items()}
    best = [value for value in values if runs[value] == max(runs.values())]
    if field == "step":
        return best[-1]
    if field in _NUMBERED:
        best = [value for value in best if value != NONE] or best
    best = [value for value in best if any(row["value"] for row in by_value[value])] or best
    preferred = headline.get(field, _FIRST.get(field))
    if preferred in best:
        return preferred
    if field == "index":
        return best[-1]
    if field in ("run", "head"):
        return best[0]
    if field == "layer":
        return max(best, key=lambda value: max(abs(row["value"] or 0.0) for row in by_value[value]))
    return max(best, key=lambda value: len(by_value[value]))
