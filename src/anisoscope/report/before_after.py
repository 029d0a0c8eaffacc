"""What a transformation of embeddings changed: each number before and after, and the change with its paired error."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from anisoscope.records import Record, Replicates
from anisoscope.report.interval import half_width
from anisoscope.stats.inference import jackknife

# What a metric's card declares as `isotropic`, in words.
_POLARITY = {
    "low": "lower is more isotropic",
    "high": "higher is more isotropic",
    "zero": "nearer 0 is more isotropic",
}
_DECIMALS = 6  # at most; a number too small for them is written with a power of ten
WARNING = (
    "Isotropy is not quality. A transformation can improve every number above and still make search worse. "
    "Before you use it, test retrieval on your own task, with queries and documents transformed by the same map."
)
FITTED_HERE = (
    "The map was fitted on these same rows, so whitening also evens out their sampling noise: a value past its null "
    "value means this, and new rows come out less even. The errors take the map as given."
)


@dataclass(frozen=True)
class Change:
    """One number before and after a transformation, and its change with one standard error.

    The same blocks were left out of both, so what both have in common cancels in the error of the change.
    """

    before: Record
    after: Record | None
    value: float | None = None
    error: float | None = None
    blocks: int | None = None

    @property
    def clear(self) -> bool:
        """Whether the 95 % interval of the change excludes 0."""
        if self.value is None or self.error is None:
            return False
        return abs(self.value) > half_width(self.blocks) * self.error

    def to_json(self) -> list[dict[str, Any]]:
        """The records before and after as plain dicts; that after has the change and its error as well."""
        rows = [{"when": "before", **self.before.to_json()}]
        if self.after is not None:
            rows.append({"when": "after", **self.after.to_json(), "change": self.value, "change_error": self.error})
        return rows


def change(
    before: Record, after: Record | None, without: Sequence[float] = (), without_after: Sequence[float] = ()
) -> Change:
    """Compare a number before and after.

    Args:
        before: The number before.
        after: The number after; None if there is none.
        without: Its replicates before: the number without each block, with the sizes of the blocks.
        without_after: Its replicates after, without the same blocks.

    Example:
        >>> a, b = Record("vectors", "isoscore", 0.2), Record("vectors", "isoscore", 0.5)
        >>> round(change(a, b, [0.1, 0.3], [0.4, 0.6]).value, 6), change(a, b, [0.1, 0.3], [0.4, 0.6]).error < 1e-12
        (0.3, True)
    """
    if after is None or before.value is None or after.value is None:
        return Change(before, after)
    difference = after.value - before.value
    if len(without) < 2 or len(without) != len(without_after):
        return Change(before, after, difference)
    sizes = without.sizes if isinstance(without, Replicates) else None
    deltas = [y - x for x, y in zip(without, without_after, strict=True)]
    return Change(before, after, difference, jackknife(difference, deltas, sizes), len(deltas))


def before_after_table(
    changes: Sequence[Change], title: str, cards: Mapping[str, Mapping[str, Any]], *, notes: Iterable[str] = ()
) -> RenderableType:
    """One row per number: before, after, change, each with its standard error below; then notes and the warning.

    Args:
        changes: The numbers.
        title: Of the table.
        cards: The cards of the metrics: they declare what is more isotropic.
        notes: Lines below the table.
    """
    table = Table(title=escape(title), box=box.SIMPLE_HEAD, title_justify="left", title_style="bold")
    table.add_column("metric", overflow="fold", min_width=18)
    for column in ("before", "after", "change", "null\nafter"):
        table.add_column(column, justify="right", no_wrap=True)
    reasons: dict[str, list[str]] = {}
    for each in changes:
        a, b = each.before, each.after
        for record in (a, b):
            if record is not None and record.value is None:
                reasons.setdefault(record.note or "no value", []).append(record.metric)
        table.add_row(
            f"{_name(a)}\n[dim]{_polarity(cards.get(a.metric, {}))}[/]",
            _stacked(a.value, a.error),
            _stacked(None, None) if b is None else _stacked(b.value, b.error),
            _stacked(each.value, each.error, sign=True) + (" *" if each.clear else ""),
            rounded(None if b is None else b.null),
        )
    below = [
        "change: after − before, paired: the same blocks of rows are left out of both. ± one standard error. "
        "* the 95 % interval of the change excludes 0. null after: the value expected of the transformed rows if "
        "they had no structure.",
        *(f"No value of {', '.join(dict.fromkeys(names))}: {why}" for why, names in reasons.items()),
        *notes,
    ]
    return Group(table, *(Text(text, style="dim") for text in below), Text(""), Text(WARNING, style="bold"))


def _name(record: Record) -> str:
    variant = [f"{key}={value}" for key, value in record.variant.items()]
    if record.index is not None:
        variant.append(str(record.index))
    return escape(record.metric + (f" ({', '.join(variant)})" if variant else ""))


def _polarity(card: Mapping[str, Any]) -> str:
    if card.get("family") == "dimension":
        return "a dimension, not isotropy"
    return _POLARITY.get(card.get("isotropic") or "", "not a measure of isotropy")


def _stacked(value: float | None, error: float | None, *, sign: bool = False) -> str:
    plus = "+" if sign and value is not None and value > 0 else ""
    below = "" if error is None else f"\n[dim]± {rounded(error, error)}[/]"
    return f"{plus}{rounded(value, error)}{below}"


def rounded(value: float | None, error: float | None = None) -> str:
    """A number with as many decimals as two digits of its error have; without an error, with three digits.

    >>> rounded(0.155123, 0.0012), rounded(29.4512, 1.234), rounded(0.155123), rounded(-0.0000012, 0.01)
    ('0.1551', '29.5', '0.155', '0.000')
    >>> rounded(0.999998, 9.8e-7), rounded(9.8e-7, 9.8e-7)
    ('0.999998', '9.8e−07')
    """
    if value is None:
        return "[dim]–[/]"
    scale = abs(error) if error else abs(value)
    if not scale:
        return "0"
    decimals = (1 if error else 2) - math.floor(math.log10(scale))
    if abs(value) >= 10.0 ** (2 - _DECIMALS):
        decimals = min(decimals, _DECIMALS)  # leaves at least three digits
    text = f"{value:.1e}" if decimals > _DECIMALS else f"{value:,.{max(0, decimals)}f}"
    return text.removeprefix("-") if float(text.replace(",", "")) == 0 else text.replace("-", "−")
