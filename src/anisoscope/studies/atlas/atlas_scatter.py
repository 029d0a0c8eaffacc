"""One scatter of all models as SVG: anisotropy against intrinsic dimension, with error bars."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from anisoscope.studies.atlas.atlas_svg import half_depth
from anisoscope.studies.atlas.evidence import ModelEvidence, Point

COLOURS = 9  # classes m0, m1, … of the page's style, one per kind of data
_WIDTH, _HEIGHT = 900, 520
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 190, 16, 50  # margins; the legend is on the right
_LETTER, _LINE = 6.2, 12  # size of a label, in pixels
Place = Callable[[float], float]  # of a value on an axis, in pixels
Box = tuple[float, float, float, float]  # left, top, right, bottom


@dataclass(frozen=True)
class ScatterMark:
    """A model in the scatter, trained and untrained: dimension and share of the top direction."""

    model: ModelEvidence
    trained: tuple[Point, Point]
    untrained: tuple[Point, Point] | None


def scatter_svg(models: Sequence[ModelEvidence]) -> Markup:
    """Draw the share of the top direction against the intrinsic dimension at half depth, without sinks.

    Filled points are trained models with error bars; a thin line leads to the hollow point of the untrained twin.
    A label that would cover another one is left out: its point has a tooltip.
    """
    marks = [mark for model in models if (mark := _mark(model)) is not None]
    if not marks:
        return Markup("")
    pairs = [pair for mark in marks for pair in (mark.trained, mark.untrained) if pair is not None]
    x = _axis([pair[0][1] for pair in pairs], _LEFT, _WIDTH - _RIGHT)
    y = _axis([pair[1][1] for pair in pairs], _HEIGHT - _BOTTOM, _TOP)
    modalities = list(dict.fromkeys(mark.model.modality for mark in marks))
    parts = [_axes(x, y, pairs)]
    parts += [_points(mark, modalities.index(mark.model.modality) % COLOURS, x, y) for mark in marks]
    circles = [(x(pair[0][1]), y(pair[1][1])) for pair in pairs]
    named = {mark.model.name: (x(mark.trained[0][1]), y(mark.trained[1][1])) for mark in marks}
    parts += _labels(named, circles)
    for index, modality in enumerate(modalities):
        top, left = _TOP + 8 + 18 * index, _WIDTH - _RIGHT + 34
        parts.append(
            Markup('<g class="m{}"><circle class="dot" cx="{}" cy="{}" r="4"/></g>').format(index % COLOURS, left, top)
            + _text(modality, left + 10, top + 4)
        )
    head = Markup('<svg class="scatter" viewBox="0 0 {} {}" role="img">').format(_WIDTH, _HEIGHT)
    title = Markup("<title>Share of the top direction against intrinsic dimension, at half depth</title>")
    return head + title + Markup("").join(parts) + Markup("</svg>")


def _mark(model: ModelEvidence) -> ScatterMark | None:
    trained, untrained = (
        (half_depth(model, "two_nn", state), half_depth(model, "spectral_anisotropy", state))
        for state in ("trained", "untrained")
    )
    usable = [
        (x, y) if x is not None and y is not None and x[1] > 0 and y[1] > 0 else None for x, y in (trained, untrained)
    ]
    return None if usable[0] is None else ScatterMark(model, usable[0], usable[1])


def _axis(values: Sequence[float], start: float, end: float) -> Place:
    """Return the logarithmic axis that shows all values with a margin."""
    low, high = math.log10(min(values)) - 0.08, math.log10(max(values)) + 0.08

    def position(value: float) -> float:
        share = (math.log10(max(value, 10**low)) - low) / (high - low)
        return start + share * (end - start)

    return position


def _points(mark: ScatterMark, colour: int, x: Place, y: Place) -> Markup:
    dimension, share = mark.trained
    px, py = x(dimension[1]), y(share[1])
    parts = []
    if mark.untrained is not None:
        ux, uy = x(mark.untrained[0][1]), y(mark.untrained[1][1])
        parts.append(_segment("path", ux, uy, px, py))
        parts.append(_circle("hollow", ux, uy, f"{mark.model.name}, untrained", mark.untrained))
    dx, dy = dimension[2] or 0, share[2] or 0
    parts.append(_segment("bar", x(dimension[1] - dx), py, x(dimension[1] + dx), py))
    parts.append(_segment("bar", px, y(share[1] - dy), px, y(share[1] + dy)))
    parts.append(_circle("dot", px, py, mark.model.name, mark.trained))
    return Markup('<g class="m{}">{}</g>').format(colour, Markup("").join(parts))


def _labels(named: Mapping[str, tuple[float, float]], circles: Sequence[tuple[float, float]]) -> list[Markup]:
    """Write names next to their points, on either side, above or below, where nothing is in the way."""
    taken: list[Box] = [(px - 4, py - 4, px + 4, py + 4) for px, py in circles]
    parts = []
    for name, (px, py) in named.items():
        wide = _LETTER * len(name)
        sides = (px + 7, px - 7 - wide)
        for left, base in ((side, py + down) for down in (4, -8, 16) for side in sides):
            box = (left, base - _LINE + 2, left + wide, base + 2)
            inside = box[0] > _LEFT and box[2] < _WIDTH - _RIGHT + 24
            if inside and not any(_overlap(box, other) for other in taken):
                taken.append(box)
                parts.append(_text(name, left, base))
                break
    return parts


def _overlap(a: Box, b: Box) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def _axes(x: Place, y: Place, pairs: Sequence[tuple[Point, Point]]) -> Markup:
    right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
    parts = [Markup('<path class="axis" d="M{},{}V{}H{}"/>').format(_LEFT, _TOP, bottom, right)]
    lowest = [min(pair[axis][1] for pair in pairs) * 0.8 for axis in (0, 1)]
    parts += [
        _text(f"{value:g}", x(value), bottom + 16, "tick", "middle")
        for value in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200)
        if value >= lowest[0] and x(value) <= right
    ]
    parts += [
        _text(f"{value:g}", _LEFT - 6, y(value) + 4, "tick", "end")
        for value in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1)
        if value >= lowest[1] and y(value) >= _TOP
    ]
    words = "intrinsic dimension (two_nn) at half depth, no-sink"
    parts.append(_text(words, (_LEFT + right) / 2, _HEIGHT - 12, anchor="middle"))
    turned = Markup('<g transform="translate(14,{}) rotate(-90)">{}</g>')
    parts.append(turned.format(bottom // 2, _text("share of the top direction", 0, 0, anchor="middle")))
    return Markup("").join(parts)


def _text(words: str, x: float, y: float, kind: str = "label", anchor: str = "start") -> Markup:
    return Markup('<text class="{}" x="{:.1f}" y="{:.1f}" text-anchor="{}">{}</text>').format(kind, x, y, anchor, words)


def _circle(kind: str, x: float, y: float, name: str, pair: tuple[Point, Point]) -> Markup:
    words = f"{name}: dimension {pair[0][1]:.3g}, share {pair[1][1]:.3g}"
    form = Markup('<circle class="{}" cx="{:.1f}" cy="{:.1f}" r="4"><title>{}</title></circle>')
    return form.format(kind, x, y, words)


def _segment(kind: str, x1: float, y1: float, x2: float, y2: float) -> Markup:
    return Markup('<line class="{}" x1="{:.1f}" y1="{:.1f}" x2="{:.1f}" y2="{:.1f}"/>').format(kind, x1, y1, x2, y2)
