"""A figure of a report: one Vega-Lite specification with its rows, and what all figures share: axes and labels."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from anisoscope.report.lines import PERCENT, PLAIN
from anisoscope.report.sentences import number
from anisoscope.report.tables import Row

GREY = "#8a8a8a"
GHOST = 0.3  # opacity of the line over all tokens
LABEL = 6.4  # width of a letter of a label in pixels
_GAP = 2.0  # smallest distance between two labels in pixels
_LINE = 13.0  # height of one line of a label in pixels
_LARGEST = 1e300  # so that the ends of an axis are finite
_LOG_RANGE = 20.0  # positive values that span more than this factor have a log axis
_MOST_TICKS = 12
_NEXT = (1, 2, 5)


@dataclass(frozen=True)
class Figure:
    """One chart of a report.

    Attributes:
        title: What it shows, in plain words with the unit.
        metric: The metric's name, in small type: people write scripts with it.
        alt: The sentence that a screen reader reads.
        spec: The Vega-Lite specification with its rows, without size and theme.
        height: Of the plot, in pixels.
        wide: Whether it needs the full width of the page.
    """

    title: str
    metric: str
    alt: str
    spec: Mapping[str, Any]
    height: int = 220
    wide: bool = False
    legend: Sequence[tuple[str, str]] = field(default_factory=tuple)

    def to_json(self) -> dict[str, Any]:
        """What the script of the page needs."""
        return {"spec": self.spec, "height": self.height, "alt": self.alt}


@dataclass(frozen=True)
class TrainingAxis:
    """The axis of training steps that figures above each other share.

    Attributes:
        steps: All steps that are shown.
        alerts: (step, text) of each alert, drawn as a mark.
        titled: Whether the axis has its title; otherwise a figure below has it.
    """

    steps: Sequence[int]
    alerts: Sequence[tuple[int, str]] = ()
    titled: bool = True

    def position(self, step: int) -> float:
        """Where a step is on the axis."""
        first = min((each for each in self.steps if each > 0), default=1)
        return step_position(step, first) if is_log(self.steps) else float(step)

    def encoding(self) -> dict[str, Any]:
        """The encoding of the field `at`."""
        return step_axis(self.steps, "training step" if self.titled else None)


@dataclass(frozen=True)
class ValueAxis:
    """The axis of values: its ends, and whether it is logarithmic."""

    low: float
    high: float
    log: bool = False
    percent: bool = False

    def pixel(self, value: float, height: float) -> float:
        """The distance of a value from the top of a plot."""
        low, high, at = self.low, self.high, min(max(value, self.low), self.high)
        if self.log:
            low, high, at = (math.log(each) for each in (low, high, at))
        return height * (high - at) / ((high - low) or 1.0)

    def value(self, pixel: float, height: float) -> float:
        """The value at a distance from the top: the inverse of `pixel`."""
        share = 1 - pixel / height
        if self.log:
            return math.exp(math.log(self.low) + share * (math.log(self.high) - math.log(self.low)))
        return self.low + share * (self.high - self.low)

    def encoding(self, name: str = "value", title: str | None = None) -> dict[str, Any]:
        """The encoding of a field on this axis."""
        kind: dict[str, Any] = {"type": "log"} if self.log else {"zero": False}
        scale = {"domain": [self.low, self.high], "nice": False, **kind}
        labels = PERCENT if self.percent else PLAIN
        axis: dict[str, Any] = {"labelExpr": labels, "labelOverlap": True, "minExtent": 48}
        axis |= {"values": _decades(self.low, self.high)} if self.log else {"tickCount": 5}
        return {"field": name, "type": "quantitative", "title": title, "scale": scale, "axis": axis}


def value_axis(values: Sequence[float], *, percent: bool = False, log: bool | None = None) -> ValueAxis:
    """The axis for these values: from 0 if they are not far from it, logarithmic if they span decades.

    >>> value_axis([0.1, 0.5]).low, value_axis([100.0, 104.0]).low > 90, value_axis([0.01, 5.0]).log
    (0.0, True, True)
    """
    low, high = max(min(values), -_LARGEST), min(max(values), _LARGEST)
    positive = low > 0
    if (positive and high / low > _LOG_RANGE and not percent) if log is None else log and positive:
        return ValueAxis(low / 1.3, high * 1.3, log=True, percent=percent)
    room = 0.06 * ((high - low) or abs(high) or 1.0)
    if low >= 0 and low < 0.75 * high:
        return ValueAxis(0.0, min(high + room, 1.0) if percent and high <= 1 else high + room, percent=percent)
    if not low and not high:
        return ValueAxis(0.0, 1.0, percent=percent)
    return ValueAxis(low - room, high + room, percent=percent)


def _decades(low: float, high: float) -> list[float]:
    """Ticks of a log axis: 1, 2 and 5 of each decade, or powers of ten if there are many."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    steps = _NEXT if last - first <= 3 else (1,)
    every = max(1, (last - first) // 8)
    ticks = [m * 10.0**e for e in range(first, last + 1, every) for m in steps]
    return [tick for tick in ticks if low <= tick <= high]


def step_position(step: int, first: int) -> float:
    """The position of a step on a log axis; 0 is drawn half of the first positive step."""
    return float(step) if step > 0 else first / 2


def step_axis(steps: Sequence[int], title: str | None = "training step") -> dict[str, Any]:
    """The encoding of training steps in the field `at`, logarithmic if they span decades."""
    positive = [step for step in steps if step > 0] or [1]
    first, last = min(positive), max(positive)
    if not is_log(steps):
        domain = [min(steps), max(max(steps), min(steps) + 1)]
        axis: dict[str, Any] = {"format": ",d", "tickMinStep": 1, "labelOverlap": True, "grid": False, "tickCount": 8}
        return _steps({"domain": domain, "nice": False}, axis, title)
    zero = first / 2
    ticks = [tick for tick in _decades(first, last) if tick >= 1] or [first]
    start = [zero] if 0 in steps else []
    named = f"datum.value < {first:g} ? '0' : format(datum.value, ',~s')"
    axis = {"values": [*start, *ticks], "labelExpr": named, "labelOverlap": True, "grid": False}
    return _steps({"type": "log", "domain": [zero if start else first, last], "nice": False}, axis, title)


def is_log(steps: Sequence[int]) -> bool:
    """Whether the axis of these steps is logarithmic."""
    positive = [step for step in steps if step > 0]
    return len(positive) > 1 and max(positive) / min(positive) > 8


def _steps(scale: Mapping[str, Any], axis: Mapping[str, Any], title: str | None) -> dict[str, Any]:
    return {"field": "at", "type": "quantitative", "title": title, "scale": scale, "axis": axis}


def layer_ticks(layers: Sequence[float], final: float | None) -> dict[str, Any]:
    """The encoding of layers in the field `x`, with the names embed and final at the ends."""
    low, high = min(layers), max(layers)
    whole = [layer for layer in range(math.ceil(max(low, 0)), math.floor(high) + 1) if layer != final]
    step = next(s for s in (1, 2, 5, 10, 20, 50, 100, 1000, 10**9) if len(whole) / s <= _MOST_TICKS)
    # A tick next to a named end would touch its name.
    named = [end for end in (-1.0 if low == -1 else None, final) if end is not None]
    inner = [t for t in whole if t % step == 0 and (step == 1 or all(abs(end - t) > step / 2 for end in named))]
    ticks = sorted({*([-1.0] if low == -1 else []), *map(float, inner), *([] if final is None else [final])})
    ends = "" if final is None else f"datum.value == {final:g} ? 'final' : "
    names = f"datum.value == -1 ? 'embed' : {ends}format(datum.value, 'd')"
    axis = {"values": ticks, "labelExpr": names, "labelOverlap": True, "grid": False, "labelFlush": False}
    scale = {"domain": [low, high if high > low else low + 1], "nice": False}
    return {"field": "x", "type": "quantitative", "title": "layer", "scale": scale, "axis": axis}


def depth_ticks() -> dict[str, Any]:
    """The encoding of relative depth in the field `x`: 0 before the first layer, 1 after the last."""
    names = "datum.value == 0 ? 'first' : datum.value == 1 ? 'last' : format(100 * datum.value, 'd') + ' %'"
    axis = {"values": [0, 0.25, 0.5, 0.75, 1], "labelExpr": names, "grid": False, "labelFlush": False}
    scale = {"domain": [0, 1], "nice": False}
    return {"field": "x", "type": "quantitative", "title": "relative depth", "scale": scale, "axis": axis}


def spread_labels(labels: Sequence[Row], axis: ValueAxis, height: float) -> list[Row]:
    """Labels with `label_y`, the place of their first line, moved up or down so that no two overlap.

    Args:
        labels: Each has `value`, the end of its line, and `text`, its lines.
        axis: The axis of values.
        height: Of the plot, in pixels.
    """
    placed = sorted(labels, key=lambda each: axis.pixel(each["value"], height))
    sizes = [_LINE * len(each["text"]) for each in placed]
    tops: list[float] = []
    lowest = -_LINE / 2
    for each, size in zip(placed, sizes, strict=True):
        tops.append(max(axis.pixel(each["value"], height) - size / 2, lowest))
        lowest = tops[-1] + size + _GAP
    limit = height + _LINE / 2
    for position in reversed(range(len(placed))):  # what would leave the plot at the bottom moves up
        tops[position] = min(tops[position], limit - sizes[position])
        limit = tops[position] - _GAP
    return [
        {**each, "label_y": axis.value(top + _LINE / 2, height)}  # the middle of the first line
        for each, top in zip(placed, tops, strict=True)
    ]


def label_layer(labels: Sequence[Row], axis: ValueAxis, height: float) -> tuple[dict[str, Any], int]:
    """The texts at the ends of lines, and the space that they need to the right."""
    rows = spread_labels(labels, axis, height)
    longest = max((len(line) for row in rows for line in row["text"]), default=0)
    texts: dict[str, Any] = {
        "name": "labels",
        "data": {"values": rows},
        "mark": {"type": "text", "align": "left", "dx": 7, "baseline": "middle", "lineHeight": _LINE, "fontSize": 11},
        "encoding": {
            "x": {"field": "x", "type": "quantitative"},
            "y": axis.encoding("label_y"),
            "text": {"field": "text"},
            "color": {
                "condition": {"test": "datum.series == null", "value": GREY},
                "field": "series",
                "type": "nominal",
                "legend": None,
            },
        },
    }
    return texts, round(LABEL * longest) + 14


def number_text(value: float | None, percent: bool = False) -> str:
    """A number for a tooltip; a dash if there is none."""
    return "–" if value is None else number(value, percent)


def tips(row: Row, percent: bool) -> Row:
    """The texts of a tooltip: value with its interval, null value, rows."""
    texts: Row = {"site": row["site"], "value_text": number_text(row["value"], percent)}
    if row["low"] is not None:
        texts["interval"] = f"{number_text(row['low'], percent)} to {number_text(row['high'], percent)}"
    if row["null"] is not None:
        texts["null_text"] = number_text(row["null"], percent)
    if row["n"] is not None:
        texts["rows"] = f"{row['n']:,}"
    return texts


def tooltip_fields(*more: tuple[str, str]) -> list[dict[str, Any]]:
    """The fields of a tooltip."""
    names = [*more, ("value_text", "value"), ("interval", "95 %"), ("null_text", "no structure"), ("rows", "rows")]
    return [{"field": field, "type": "nominal", "title": title} for field, title in names]
