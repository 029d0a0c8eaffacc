"""Compare two runs number by number: differences with errors, paired by blocks if both measured the same tokens."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from anisoscope.errors import InputError, unknown
from anisoscope.records import COLUMNS, Record, Replicates, Site
from anisoscope.report.checked_info import checked_info
from anisoscope.report.interval import half_width
from anisoscope.report.site_matching import SitePairs, site_pairs, site_ranges
from anisoscope.report.tables import parse_site, records_of
from anisoscope.stats.inference import jackknife
from anisoscope.store.run import Run, record_key

_SAME = ("metric", "tokens", "index", "variant")  # what both records of a difference have in common
_NUMBERS = ("step", "site", *_SAME)
_PARTNER = "partner"  # column: the second run's site
_SIMILAR = 1.1  # numbers of rows that differ by no more than this factor count as equal
# Settings that change numbers, by name: where the info of a run holds them.
_SETTINGS: Mapping[str, tuple[str, ...]] = {
    "text": ("data", "source"),
    "tokens": ("data", "tokens"),
    "window": ("data", "window"),
    "generated tokens": ("settings", "generate"),
    "token policy": ("token_policy",),
    "precision": ("model", "dtype"),
    "quantization": ("model", "quantization"),
    "products in float64": ("settings", "precise"),
    "sampled rows": ("sample",),
    "seed": ("seed",),
    "blocks": ("unit",),
}


@dataclass(frozen=True)
class Difference:
    """One number in two runs: `second − first`, one standard error, and whether blocks were paired.

    Attributes:
        first: The record of the first run.
        second: The record of the second run; its site may differ if layers were matched by relative depth.
        value: The difference.
        error: One standard error, or None.
        blocks: Number of blocks that the error comes from.
        paired: Whether the error is that of paired blocks.
        depths: The relative depth of both sites: 0 is the embedding, 1 the last layer.
        by_rows: How much the different numbers of rows alone may change the number.
        refused: Why the two numbers cannot be compared, or None.
    """

    first: Record
    second: Record
    value: float
    error: float | None
    blocks: int | None
    paired: bool
    depths: tuple[float | None, float | None] = (None, None)
    by_rows: float = 0.0
    refused: str | None = None

    @property
    def clear(self) -> bool:
        """Whether the 95 % interval excludes 0, and all differences that the numbers of rows may cause."""
        if self.refused is not None or self.error is None:
            return False
        return abs(self.value) - self.by_rows > half_width(self.blocks) * self.error

    @property
    def sites(self) -> str:
        """The site, or both sites if they differ."""
        first, second = self.first.site, self.second.site
        return first if first == second else f"{first} and {second}"

    def to_json(self) -> dict[str, Any]:
        """The difference as a plain dict: what was measured, both values, the difference and its error."""
        same = {name: value for name, value in self.first.to_json().items() if name in ("site", *_SAME)}
        return {
            **same,
            "sites": [self.first.site, self.second.site],
            "depths": list(self.depths),
            "first": self.first.value,
            "second": self.second.value,
            "steps": [self.first.step, self.second.step],
            "n": [self.first.n, self.second.n],
            "difference": self.value,
            "error": self.error,
            "paired": self.paired,
            "clear": self.clear,
            "refused": self.refused,
        }


@dataclass(frozen=True)
class Matched:
    """The numbers of two runs that belong together.

    Attributes:
        table: One row per number; the columns of the second run have the suffix `_2`. `step` is the first run's.
        pairs: Which sites belong together.
        notes: How layers were matched, which numbers have no partner, and which settings of the runs differ.
    """

    table: pd.DataFrame
    pairs: SitePairs
    notes: list[str]


def compare(first: Run, second: Run, metrics: Sequence[str] | None = None) -> list[Difference]:
    """Compare the numbers that two runs share; if they share no step, those of each run's last step.

    If the models have different numbers of layers, layers are matched by relative depth. `matched` also returns what
    has no partner.

    Args:
        first: The run that is subtracted.
        second: The other run.
        metrics: Names of metrics; None for all.

    Raises:
        InputError: The runs share no number, or a metric is unknown.
    """
    shared = matched(first, second, metrics)
    return differences(first, second, shared.table, shared.pairs)


def matched(first: Run, second: Run, metrics: Sequence[str] | None = None) -> Matched:
    """Find the numbers of two runs that belong together. Different versions of a formula are compared too.

    Raises:
        InputError: The runs share no number, or a metric is unknown.
    """
    ours, theirs = _numbers(first, metrics), _numbers(second, metrics)
    sites = [[str(site) for site in sorted(map(parse_site, table["site"].unique()))] for table in (ours, theirs)]
    pairs = site_pairs(sites, [first.info, second.info])
    both = _merged(ours, theirs, pairs)
    if not len(both) and len(ours) and len(theirs):
        ours, theirs = (table[table["step"] == table["step"].max()] for table in (ours, theirs))
        both = _merged(ours, theirs.assign(step=ours["step"].iloc[0]), pairs)
        both["step_2"] = int(theirs["step"].iloc[0])
    if not len(both):
        raise InputError(f"{first.name} and {second.name} share no number; compare runs of the same metrics and sites")
    notes = [pairs.text]
    partners = [set(pairs.partner), set(pairs.partner.values())]
    notes += [
        _without_partner(f"Only in {name}, not in {other}", tables, both[["site" + end, *_SAME]], sites)
        for name, other, tables, end, sites in (
            (first.name, second.name, (ours, theirs), "", partners[0]),
            (second.name, first.name, (theirs, ours), "_2", partners[1]),
        )
    ]
    notes.append(_settings_text(first.info, second.info))
    return Matched(both, pairs, [note for note in notes if note])


def differences(first: Run, second: Run, both: pd.DataFrame, pairs: SitePairs) -> list[Difference]:
    """The rows of `matched` as differences with their errors.

    Two runs over the same tokens with the same seed have the same blocks: then the error is the jackknife of the
    difference (`stats.inference.jackknife`, as in `measure`), and what both have in common cancels. Otherwise the
    errors add as those of independent measurements.
    """
    stored = first.replicates(), second.replicates()
    alike = _same_tokens(first.info, second.info)
    cards = {**checked_info(second.info)["metrics"], **checked_info(first.info)["metrics"]}
    second_part = both[[f"{name}_2" if f"{name}_2" in both else name for name in COLUMNS]].set_axis(COLUMNS, axis=1)
    out = []
    for a, b in zip(records_of(both), records_of(second_part), strict=True):
        assert a.value is not None  # a number is shared only with a value
        assert b.value is not None
        without = [
            by_key.get(record_key(each), Replicates()) if by_key else Replicates()
            for by_key, each in zip(stored, (a, b), strict=True)
        ]
        if alike and len(without[0]) == len(without[1]) > 1:
            each = Difference(a, b, b.value - a.value, _paired_error(a, b, *without), len(without[0]), paired=True)
        else:
            both_known = a.error is not None and b.error is not None
            error = math.hypot(a.error or 0.0, b.error or 0.0) if both_known else None
            counts = [len(each) for each in without if each]
            each = Difference(a, b, b.value - a.value, error, min(counts, default=None), paired=False)
        depths = (pairs.depths[0].get(a.site), pairs.depths[1].get(b.site))
        out.append(_at_equal_rows(replace(each, depths=depths), cards.get(a.metric, {})))
    return out


def difference_frame(results: Sequence[Difference]) -> pd.DataFrame:
    """Differences as a table with one row each, for further work; the columns are those of `Difference.to_json`.

    What both runs have is in two columns: `site` and `site_2`, `depth` and `depth_2`, and so on.
    """
    rows = []
    for each in results:
        row = each.to_json()
        pairs = {"site": row.pop("sites"), "depth": row.pop("depths"), "step": row.pop("steps"), "n": row.pop("n")}
        both = {f"{name}{end}": pair[i] for name, pair in pairs.items() for i, end in enumerate(("", "_2"))}
        rows.append({**row, "variant": json.dumps(row["variant"], sort_keys=True), **both})
    return pd.DataFrame(rows)


def refused_text(results: Sequence[Difference]) -> str:
    """How many differences are refused and why, as a sentence; "" if none is."""
    reasons = [each.refused for each in results if each.refused is not None]
    if not reasons:
        return ""
    pairs = list(dict.fromkeys(reasons))
    more = f" and {len(pairs) - 1} other pair{'s' if len(pairs) > 2 else ''}" if len(pairs) > 1 else ""
    return (
        f"{len(reasons)} of {len(results)} are not comparable ({pairs[0]}{more}): these numbers depend on how "
        "many rows there are. Measure both runs with the same --tokens."
    )


def _at_equal_rows(each: Difference, card: Mapping[str, Any]) -> Difference:
    """The difference, refused or with an allowance if the numbers of rows differ and the metric depends on them."""
    a, b = each.first, each.second
    effect = card.get("row_effect", "any")
    if effect == "none" or not a.n or not b.n or max(a.n, b.n) <= _SIMILAR * min(a.n, b.n):
        return each
    by_rows = _allowance(a, b, card.get("notable")) if effect == "null" else math.inf
    if abs(each.value) > by_rows:
        return replace(each, by_rows=by_rows)
    rows = "rows" if Site.parse(a.site).kind in ("vectors", "weight") else "tokens"
    return replace(each, refused=f"{a.n:,} against {b.n:,} {rows}")


def _allowance(a: Record, b: Record, notable: str | None) -> float:
    """How much different numbers of rows alone can change a metric that depends on n as its null does.

    It is at most the difference of the nulls. Of scores that structure lowers, 1/value grows with 1/n as 1/null does
    (1/PR = 1/PR∞ + 1/n), so that the difference shrinks by value/null in each run.
    """
    if a.null is None or b.null is None or a.value is None or b.value is None:
        return math.inf
    below = notable == "low" and 0 < a.value < a.null and 0 < b.value < b.null
    return abs(b.null - a.null) * (a.value * b.value / (a.null * b.null) if below else 1.0)


def _paired_error(a: Record, b: Record, without_a: Replicates, without_b: Replicates) -> float:
    """The jackknife error of b − a over blocks that both runs share.

    Runs from before block sizes were stored are taken as runs with blocks of equal size. Sizes can differ between
    the runs (a token policy leaves out other tokens in another model), so those of both are added.
    """
    sizes = None
    if without_a.sizes is not None and without_b.sizes is not None:
        sizes = [m + n for m, n in zip(without_a.sizes, without_b.sizes, strict=True)]
    deltas = [y - x for x, y in zip(without_a, without_b, strict=True)]
    return jackknife((b.value or 0.0) - (a.value or 0.0), deltas, sizes)


def _numbers(run: Run, metrics: Sequence[str] | None) -> pd.DataFrame:
    """The numbers of a run; of several versions of a formula the last."""
    table = run.table()
    names = list(table["metric"].unique())
    for name in metrics or ():
        if name not in names:
            raise unknown(f"metric of {run.name}", name, names)
    chosen = table if metrics is None else table[table["metric"].isin(metrics)]
    return chosen[chosen["value"].notna()].drop_duplicates(list(_NUMBERS), keep="last")


def _merged(ours: pd.DataFrame, theirs: pd.DataFrame, pairs: SitePairs) -> pd.DataFrame:
    left = ours.assign(**{_PARTNER: ours["site"].map(dict(pairs.partner))})
    left = left[left[_PARTNER].notna()]
    right = theirs.assign(**{_PARTNER: theirs["site"]})
    return left.merge(right, on=["step", _PARTNER, *_SAME], suffixes=("", "_2")).drop(columns=_PARTNER)


def _without_partner(
    start: str, tables: tuple[pd.DataFrame, pd.DataFrame], used: pd.DataFrame, matched_sites: Collection[str]
) -> str:
    """What of a run's numbers (the first of the tables) has no partner in the other run, as a sentence."""
    rest, others = tables
    parts = []
    for column, one, several in (
        ("metric", "the metric", "the metrics"),
        ("tokens", "the token policy", "the token policies"),
        ("site", "the site", "the sites"),
    ):
        known = matched_sites if column == "site" else set(others[column])
        values = [str(value) for value in rest[column].unique() if value not in known]
        if values:
            ordered = [str(site) for site in sorted(map(parse_site, values))] if column == "site" else values
            shown = site_ranges(ordered) if column == "site" else ", ".join(ordered)
            parts.append(f"{one if len(values) == 1 else several} {shown}")
            rest = rest[~rest[column].isin(values)]
    used, own = used.drop_duplicates(), rest[["site", *_SAME]].drop_duplicates()  # keys recur at every step
    keys = set(used.astype(str).itertuples(index=False, name=None))
    single = own[[key not in keys for key in own.astype(str).itertuples(index=False, name=None)]]
    if len(single):
        names = ", ".join(single["metric"].unique())
        parts.append(f"some numbers of {names} (another variant or index, or no value at the other site)")
    return f"{start}: {'; '.join(parts)}." if parts else ""


def _settings_text(first: Mapping[str, Any], second: Mapping[str, Any]) -> str:
    """The settings that differ between two runs and change numbers."""
    parts = []
    for name, path in _SETTINGS.items():
        one, other = (_entry(info, path) for info in (first, second))
        if one != other:
            parts.append(f"{name} ({_shown(one)} and {_shown(other)})")
    return f"The runs differ in {', '.join(parts)}." if parts else ""


def _entry(info: Mapping[str, Any], path: Sequence[str]) -> Any:
    value: Any = info
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _shown(value: Any) -> str:
    if isinstance(value, Mapping):
        return "; ".join(f"{key}: {entry}" for key, entry in value.items())
    if value is None:
        return "default"
    return f"{value:,}" if type(value) is int else str(value)


def _same_tokens(first: Mapping[str, Any], second: Mapping[str, Any]) -> bool:
    """Whether blocks of two runs contain the same tokens: the same data, unit, seed and tokenizer."""

    def identity(info: Mapping[str, Any]) -> list[Any]:
        model = info.get("model")
        tokenizer = [model.get(name) for name in ("processor", "embedding_rows")] if isinstance(model, Mapping) else []
        return [*(info.get(name) for name in ("data", "unit", "seed")), *tokenizer]

    return "data" in first and identity(first) == identity(second)
