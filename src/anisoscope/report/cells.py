"""Texts in the cells of terminal tables: numbers, names that fold, small curves, and tables that fit the terminal."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from rich import box
from rich.console import Console, ConsoleOptions
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

NO_VALUE = "–"
CURVE = 14  # bars of a small curve if there is no space for one per value
_BARS = "▁▂▃▄▅▆▇█"
_FLAT_BAR = "▄"
_FLAT = 0.01  # a curve that varies by less than this share of its largest value is drawn flat
_UNLIMITED = 10_000


def number(value: float | None, digits: int = 4) -> str:
    """A number with `digits` significant digits, in plain notation if that is short.

    >>> number(0.06391, 3), number(1234.5), number(2e-9, 2), number(None)
    ('0.0639', '1234', '2.0e-09', '–')
    """
    if value is None:
        return NO_VALUE
    if abs(value) < 1e-12:
        return "0"
    size = math.floor(math.log10(abs(value)))
    return f"{value:.{max(0, digits - 1 - size)}f}" if -4 <= size < 6 else f"{value:.{digits - 1}e}"


def folded(text: str, width: int) -> str:
    """A name in lines of at most `width` characters, broken after spaces and underscores.

    >>> folded("spectral_anisotropy_uncentred", 22)
    'spectral_anisotropy_\\nuncentred'
    """
    lines = []
    for line in textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False):
        while len(line) > width and "_" in line[1:width]:
            cut = line.rindex("_", 1, width) + 1
            lines.append(line[:cut])
            line = line[cut:]
        lines += textwrap.wrap(line, width)
    return "\n".join(lines)


def sparkline(values: Sequence[float | None], width: int = CURVE, error: float = 0.0) -> str:
    """A curve in one line of text: one bar per value, from the lowest to the highest value; a missing one is a gap.

    A curve that varies by less than 1 % of its largest value, or by less than `error`, is flat.

    Args:
        values: The curve.
        width: The largest number of bars. Of a longer curve the first, the last, the highest and the lowest value are
            drawn, and between them every so often another one; no values are averaged.
        error: The standard error of the difference between the highest and the lowest value.

    >>> sparkline([0.1, 0.5, None, 0.9]), sparkline([0.9999, 1.0, 0.9998])
    ('▁▅ █', '▄▄▄')
    """
    drawn = _thinned(values, width)
    known = [v for v in drawn if v is not None]
    if not known:
        return ""
    low, high = min(known), max(known)
    half = high / 2 - low / 2  # halves: the difference of two huge numbers may be infinite
    if half <= max(_FLAT * max(abs(low), abs(high)), error) / 2:
        return "".join(" " if v is None else _FLAT_BAR for v in drawn)
    return "".join(" " if v is None else _BARS[round((v / 2 - low / 2) / half * (len(_BARS) - 1))] for v in drawn)


def _thinned(values: Sequence[float | None], most: int) -> Sequence[float | None]:
    """At most `most` of the values, with the first, the last, the highest and the lowest."""
    if len(values) <= most:
        return values
    known = [position for position, value in enumerate(values) if value is not None]
    if not known:
        return ()
    ends = {max(known, key=lambda i: values[i] or 0.0): 0, min(known, key=lambda i: values[i] or 0.0): 1}
    inner = len(values) - 2
    edges = [1 + inner * k // (most - 2) for k in range(most - 1)]
    bins = [range(a, b) for a, b in pairwise(edges)]
    picks = [min((i for i in part if i in ends), key=lambda i: ends[i], default=part[len(part) // 2]) for part in bins]
    return [values[0], *(values[i] for i in picks), values[-1]]


def new_table(title: str, *columns: str, left: Sequence[str] = ()) -> Table:
    """An empty table without side borders; its first column and those in `left` are aligned to the left."""
    table = Table(
        title=Text(title) if title else None,
        box=box.SIMPLE_HEAD,
        show_edge=False,
        padding=(0, 1, 0, 0),
        title_justify="left",
        title_style="bold",
    )
    for position, column in enumerate(columns):
        beginning = position == 0 or column in left
        table.add_column(Text(column), justify="left" if beginning else "right", overflow="fold")
    return table


@dataclass(frozen=True)
class FittedTable:
    """The first of several layouts of one table that fits into the terminal; the last one folds if none does."""

    layouts: Sequence[Callable[[], Table]]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Table]:
        for layout in self.layouts:
            table = layout()
            unlimited = options.update(width=_UNLIMITED)
            if Measurement.get(console, unlimited, table).maximum <= options.max_width:
                break
        yield table
