"""The shape of a metric's records (layers, steps, heads, indices, variants) and the charts that fit it.

No chart knows a metric: what varies in the records decides.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from anisoscope.errors import InputError, unknown
from anisoscope.report.tables import (
    NONE,
    Depths,
    depths_of,
    layer_position,
    parse_site,
    parse_variant,
    stream_of,
    variant_keys,
)

_WIDE = 8.0  # steps or indices that span more than this factor are drawn on a log axis
_STEEP = 100.0  # so are positive values that span more than this
_PROBABILITIES = ("gradient_p", "gradient_q")  # a log axis would hide those that are 0, which matter most
_FALLS = 0.2  # share of falling indices below which the records still are a curve
_FEW_POINTS = 3  # an index with fewer values than this is a choice, not an axis


@dataclass(frozen=True)
class TableShape:
    """What varies in the records of one metric: the distinct values of each field, and the range of the numbers."""

    values: Mapping[str, tuple[Any, ...]]
    low: float | None  # smallest and largest value
    high: float | None
    steep: bool  # whether positive values span decades
    has_null: bool
    has_x: bool  # whether the records are drawn against another metric
    rising: bool  # whether indices rise from record to record, as along a curve; in a list of the largest they do not

    @property
    def many(self) -> tuple[str, ...]:
        """The fields with two or more values."""
        return tuple(field for field, values in self.values.items() if len(values) > 1)

    def has(self, *fields: str) -> bool:
        return all(field in self.many for field in fields)


@dataclass(frozen=True)
class ChartKind:
    """A kind of chart: the fields of its axes, and whether the dash shows the tokens.

    `colours` are the fields that may be its colour; `needs` are those without which a row has no mark.
    """

    axes: tuple[str, ...]
    colours: tuple[str, ...] = ()
    dash: bool = False
    needs: tuple[str, ...] = ("value",)


_VARIANTS = "v_*"  # stands for every key of the variant
_SERIES = ("run", "tokens", _VARIANTS, "stream")
KINDS: Mapping[str, ChartKind] = {
    "profile": ChartKind(("layer", "site"), (*_SERIES, "step", "head", "index"), dash=True, needs=("value", "layer")),
    "steps": ChartKind(("step",), ("run", "layer", "site", "head", *_SERIES[1:], "index"), dash=True),
    "map": ChartKind(("layer", "site", "step"), needs=("value", "layer")),
    "heads": ChartKind(("layer", "site", "head"), needs=("value", "layer", "head")),
    "head_steps": ChartKind(("head", "step"), needs=("value", "head")),
    "curve": ChartKind(("index",), ("run", "layer", "site", "step", *_SERIES[1:]), needs=("value", "index")),
    "levels": ChartKind(("index", "v_null"), needs=("value", "index")),
    "spikes": ChartKind(("index",), ("layer", "site", "step", *_SERIES), needs=("value", "index")),
    "strata": ChartKind(("v_stratum",), ("run", "layer", "site", "step", *_SERIES[1:]), needs=("value", "v_stratum")),
    "against": ChartKind(("index",), ("run", "layer", "site", "step", *_SERIES[1:]), needs=("value", "index", "x")),
    "verdicts": ChartKind(("site", "v_claim", "v_line", "v_verdict"), needs=()),
    "points": ChartKind(("site",), (*_SERIES, "index")),
    "pairs": ChartKind(("layer", "site", "v_other"), needs=("value", "layer", "v_other")),
    "path": ChartKind(("layer", "site", "step", "v_axis"), needs=("value", "layer", "v_axis")),
}
ORDERED = ("layer", "step", "index", "head")  # fields whose colours form a scale


def shape_of(table: pd.DataFrame, depths: Depths | None = None) -> TableShape:
    """The shape of a table of records of one metric."""
    known = depths_of(table) if depths is None else depths
    pairs = [(run, parse_site(text)) for run, text in _unique(table, "run", "site")]
    patterns = [text for text in table["site"].unique() if parse_site(text).kind == "pattern"]
    heads = table["site"].isin(patterns).astype(bool)  # for these sites the index is a head
    texts = table["variant"].unique()
    variants = [parse_variant(text) for text in texts]
    fields = {
        "run": distinct(table["run"].unique()),
        "tokens": distinct(table["tokens"].unique()),
        "stream": distinct(stream_of(site) for _, site in pairs),
        "site": distinct(str(site) for _, site in sorted(pairs, key=lambda pair: pair[1])),
        "layer": distinct(layer_position(site, known.get((run, site.stack))) for run, site in pairs),
        "head": distinct([*table["index"][heads].dropna().unique(), *(site.head for _, site in pairs)]),
        "index": distinct(table["index"][~heads].dropna().unique()),
        "step": distinct(table["step"].unique()),
        **{f"v_{key}": _with_none_first(v.get(key, NONE) for v in variants) for key in variant_keys(texts)},
    }
    value = table["value"].dropna()
    jumps = table[~heads].groupby(["run", "site", "step", "tokens", "variant"], sort=False)["index"].diff().dropna()
    return TableShape(
        values={field: values for field, values in fields.items() if values},
        low=float(value.min()) if len(value) else None,
        high=float(value.max()) if len(value) else None,
        steep=_steep(table),
        has_null=bool(table["null"].notna().any()),
        has_x="x" in table and bool(table["x"].notna().any()),
        # Some falls are allowed: records of a metric that was computed again come after the others.
        rising=bool((jumps < 0).sum() <= _FALLS * len(jumps)),
    )


def _unique(table: pd.DataFrame, *columns: str) -> list[tuple[Any, ...]]:
    return list(table[list(columns)].drop_duplicates().itertuples(index=False, name=None))


def distinct(values: Iterable[Any]) -> tuple[Any, ...]:
    """The different values that are not None: numbers in order, then texts as first seen.

    >>> distinct([3, None, "b", 1, "a", 3])
    (1, 3, 'b', 'a')
    """
    seen = [value for value in dict.fromkeys(values) if value is not None]
    numbers = [value for value in seen if not isinstance(value, str)]
    return (*sorted(_plain(value) for value in numbers), *(value for value in seen if isinstance(value, str)))


def _with_none_first(values: Iterable[Any]) -> tuple[Any, ...]:
    return tuple(sorted(distinct(values), key=lambda value: value != NONE))


def _plain(value: Any) -> Any:
    """A numpy number as a Python number, for JSON."""
    return value.item() if hasattr(value, "item") else value


def choose(shape: TableShape) -> tuple[str, ...]:
    """The kinds of chart that fit records of this shape, the best first."""
    if "v_verdict" in shape.values:
        return ("verdicts",)
    # An index with few values is a choice, as a variant is; a curve needs more.
    indexed = len(shape.values.get("index", ())) >= _FEW_POINTS
    rules = (
        ("pairs", shape.has("layer", "v_other")),
        ("path", shape.has("layer", "step") and {1, 2} <= set(shape.values.get("v_axis", ()))),
        ("against", indexed and shape.has_x),
        ("levels", indexed and shape.has_null and shape.has("v_null")),
        ("curve", indexed and shape.rising),
        ("strata", shape.has("v_stratum")),
        ("spikes", indexed and not shape.rising),
        ("heads", shape.has("head", "layer")),
        ("profile", shape.has("layer")),
        ("steps", shape.has("step")),
        ("map", shape.has("layer", "step")),
        ("head_steps", shape.has("head", "step")),
    )
    return tuple(kind for kind, fits in rules if fits) or ("points",)


def drawable(table: pd.DataFrame, kind: str) -> pd.DataFrame:
    """The rows of a table that have a mark in a chart of this kind: nothing that it needs is missing."""
    keep = pd.Series(True, index=table.index)
    for field in KINDS[kind].needs:
        keep &= _present(table, field)
    part = table[keep]
    # A log axis has no place for 0 and below.
    return part[part["value"] > 0] if log_values(kind, _steep(part)) else part


def _present(table: pd.DataFrame, field: str) -> pd.Series[bool]:
    """Whether each row has a value of this field."""
    if field.startswith("v_"):
        key = field.removeprefix("v_")
        return _mapped(table["variant"], lambda text: key in parse_variant(text))
    if field == "layer":
        return _mapped(table["site"], lambda text: layer_position(parse_site(text), 0) is not None)
    patterns = _mapped(table["site"], lambda text: parse_site(text).kind == "pattern")  # there the index is a head
    if field == "head":
        named = _mapped(table["site"], lambda text: parse_site(text).head is not None)
        return named | (patterns & table["index"].notna())
    if field == "index":
        return table["index"].notna() & ~patterns
    if field == "x":
        return table["x"] > 0 if "x" in table else pd.Series(False, index=table.index)
    return table[field].notna()


def _mapped(column: pd.Series[Any], holds: Callable[[str], bool]) -> pd.Series[bool]:
    """A test of every text of a column, made once for each different text."""
    return column.map({text: holds(text) for text in column.unique()}).astype(bool)


def fitting_kinds(table: pd.DataFrame, depths: Depths | None = None) -> dict[str, tuple[pd.DataFrame, TableShape]]:
    """The kinds of chart that fit records of one metric, the best first; with the rows that each can draw.

    A kind that could draw nothing is left out.
    """
    shape = shape_of(table, depths)
    kinds: dict[str, tuple[pd.DataFrame, TableShape]] = {}
    for kind in (*choose(shape), "points"):
        part = drawable(table, kind)
        if len(part) and not (kind == "points" and kinds):
            kinds[kind] = (part, shape if len(part) == len(table) else shape_of(part, depths))
    return kinds


def require_kind(kind: str | None, fitting: Collection[str]) -> str:
    """The requested kind if it fits (otherwise an InputError with those that fit); the first that fits if None."""
    if kind is None:
        return next(iter(fitting))
    if kind not in KINDS:
        raise unknown("kind of chart", kind, KINDS)
    if kind not in fitting:
        raise InputError(f"these records cannot be drawn as {kind!r}; kinds that fit: {', '.join(fitting)}")
    return kind


def field_named(name: str, shape: TableShape) -> str:
    """The field for a user's name: a field itself, or a key of the variant."""
    for field in (name, f"v_{name}"):
        if field in shape.values:
            return field
    known = sorted(field.removeprefix("v_") for field in shape.values)
    raise unknown("field of these records", name, known)


def colours_of(kind: str, shape: TableShape) -> tuple[str, ...]:
    """The fields that a chart of this kind may colour by, the best first; none if its colour shows the value."""
    variants = tuple(field for field in shape.many if field.startswith("v_") and field not in KINDS[kind].axes)
    fields: list[str] = []
    for field in KINDS[kind].colours:
        fields += variants if field == _VARIANTS else [field]
    # Sites differ in their layer; their names matter only if there are no layers.
    varying = [f for f in fields if f in shape.many and not (f == "site" and shape.has("layer"))]
    return tuple(dict.fromkeys(varying))


def wide(values: Sequence[Any]) -> bool:
    """Whether an axis over these whole numbers should be logarithmic."""
    positive = [value for value in values if value > 0]
    return len(positive) > 1 and max(positive) / min(positive) > _WIDE and min(values) >= 0


def log_values(kind: str, steep: bool) -> bool:
    """Whether the axis of the values is logarithmic."""
    return kind == "against" or (kind == "curve" and steep)


def _steep(table: pd.DataFrame) -> bool:
    if len(table) and table["metric"].iloc[0] in _PROBABILITIES:
        return False
    known = table["value"].dropna()
    positive = known[known > 0]
    return bool(len(positive) and known.min() >= 0 and float(positive.max()) / float(positive.min()) > _STEEP)
