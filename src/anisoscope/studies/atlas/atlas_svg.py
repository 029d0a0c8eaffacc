"""The pictures of the atlas page as SVG: layer profiles over relative depth, and one scatter of all models."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from markupsafe import Markup

from anisoscope.studies.atlas.evidence import ModelEvidence, Point

# Okabe and Ito's palette, as in all reports of the library.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8C7A00")
Place = Callable[[float], float]  # of a value on an axis, in pixels
_WIDE, _HIGH = 230, 120  # of one small picture
_LEFT, _BOTTOM, _TOP = 34, 18, 8


def profile_svg(model: ModelEvidence, metric: str) -> Markup:
    """Draw one model: all tokens as a light line, no-sink solid with error bars, the untrained twin grey."""
    curves = {
        "untrained": model.points(metric, "no-sink", state="untrained"),
        "all": model.points(metric, "all"),
        "no-sink": model.points(metric, "no-sink"),
    }
    values = [p[1] for points in curves.values() for p in points if math.isfinite(p[1])]
    if not values:
        return Markup("")
    low, high = min(0.0, *values), max(values) or 1.0
    parts = [_frame(low, high)]
    for name, points in curves.items():
        parts.append(_line(points, low, high, f"line {name}"))
        if name == "no-sink":
            parts += [_bar(points, index, low, high) for index in range(len(points))]
    title = f"{model.name}: {metric} over the layers"
    return Markup('<svg class="profile" viewBox="0 0 {} {}" role="img"><title>{}</title>{}</svg>').format(
        _WIDE, _HIGH, title, Markup("").join(parts)
    )


def scatter_svg(models: Sequence[ModelEvidence], width: int = 860, height: int = 460) -> Markup:
    """Draw anisotropy against intrinsic dimension at half depth without sinks; hollow points are untrained twins."""
    modalities = list(dict.fromkeys(model.modality for model in models))
    marks: list[tuple[ModelEvidence, str, Point, Point]] = []
    for model in models:
        for state in ("untrained", "trained"):
            share, dimension = half_depth(model, "spectral_anisotropy", state), half_depth(model, "two_nn", state)
            if share is not None and dimension is not None and dimension[1] > 0 and share[1] > 0:
                marks.append((model, state, dimension, share))
    if not marks:
        return Markup("")
    xs, ys = [math.log10(mark[2][1]) for mark in marks], [math.log10(mark[3][1]) for mark in marks]
    x0, x1, y0, y1 = min(xs) - 0.08, max(xs) + 0.3, min(ys) - 0.1, max(ys) + 0.1

    def x(value: float) -> float:
        return 56 + (math.log10(max(value, 10**x0)) - x0) / (x1 - x0) * (width - 230)

    def y(value: float) -> float:
        return 16 + (y1 - math.log10(max(value, 10**y0))) / (y1 - y0) * (height - 66)

    parts = [_axes(width, height, x, y, (x0, x1), (y0, y1))]
    for model, state, dimension, share in marks:
        colour = _COLOURS[modalities.index(model.modality) % len(_COLOURS)]
        px, py = x(dimension[1]), y(share[1])
        hollow = state == "untrained"
        if not hollow:
            dx, dy = dimension[2] or 0, share[2] or 0
            parts.append(_segment(x(dimension[1] - dx), py, x(dimension[1] + dx), py, colour))
            parts.append(_segment(px, y(share[1] - dy), px, y(share[1] + dy), colour))
            parts.append(
                Markup('<text class="label" x="{:.1f}" y="{:.1f}">{}</text>').format(px + 6, py - 5, model.name)
            )
        parts.append(
            Markup('<circle cx="{:.1f}" cy="{:.1f}" r="4" fill="{}" stroke="{}"><title>{}</title></circle>').format(
                px,
                py,
                "none" if hollow else colour,
                colour,
                f"{model.name}, {state}: dimension {dimension[1]:.3g}, share {share[1]:.3g}",
            )
        )
    for index, modality in enumerate(modalities):
        colour, top = _COLOURS[index % len(_COLOURS)], 24 + 18 * index
        parts.append(
            Markup('<circle cx="{}" cy="{}" r="4" fill="{}"/><text class="label" x="{}" y="{}">{}</text>').format(
                width - 150, top, colour, width - 140, top + 4, modality
            )
        )
    head = Markup('<svg class="scatter" viewBox="0 0 {} {}" role="img">').format(width, height)
    title = Markup("<title>Share of the top direction against intrinsic dimension, at half depth</title>")
    return head + title + Markup("").join(parts) + Markup("</svg>")


def half_depth(model: ModelEvidence, metric: str, state: str = "trained") -> Point | None:
    """Return the value at half depth without sinks; None if it was not measured."""
    points = model.points(metric, "no-sink", state=state)
    return points[len(points) // 2] if points else None


def _at(index: int, count: int, value: float, low: float, high: float) -> tuple[float, float]:
    x = _LEFT + (index / max(1, count - 1)) * (_WIDE - _LEFT - 6)
    y = _TOP + (high - value) / ((high - low) or 1) * (_HIGH - _TOP - _BOTTOM)
    return x, y


def _line(points: Sequence[Point], low: float, high: float, name: str) -> Markup:
    spots = [_at(i, len(points), p[1], low, high) for i, p in enumerate(points) if math.isfinite(p[1])]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in spots)
    return Markup('<polyline class="{}" points="{}"/>').format(name, path)


def _bar(points: Sequence[Point], index: int, low: float, high: float) -> Markup:
    value, error = points[index][1], points[index][2] or 0
    x, top = _at(index, len(points), min(high, value + error), low, high)
    _, bottom = _at(index, len(points), max(low, value - error), low, high)
    return Markup('<line class="error" x1="{0:.1f}" x2="{0:.1f}" y1="{1:.1f}" y2="{2:.1f}"/>').format(x, top, bottom)


def _frame(low: float, high: float) -> Markup:
    y0, y1 = _HIGH - _BOTTOM, _TOP
    axis = Markup('<path class="axis" d="M{0},{1}V{2}H{3}"/>').format(_LEFT, y1, y0, _WIDE - 6)
    labels = [(_LEFT - 3, y1 + 7, f"{high:.3g}", "end"), (_LEFT - 3, y0, f"{low:.3g}", "end")]
    labels += [(_LEFT, _HIGH - 5, "first", "start"), (_WIDE - 6, _HIGH - 5, "last layer", "end")]
    texts = [
        Markup('<text class="tick" x="{}" y="{}" text-anchor="{}">{}</text>').format(x, y, anchor, text)
        for x, y, text, anchor in labels
    ]
    return axis + Markup("").join(texts)


def _segment(x1: float, y1: float, x2: float, y2: float, colour: str) -> Markup:
    return Markup('<line x1="{:.1f}" y1="{:.1f}" x2="{:.1f}" y2="{:.1f}" stroke="{}" opacity="0.6"/>').format(
        x1, y1, x2, y2, colour
    )


def _axes(width: int, height: int, x: Place, y: Place, xs: tuple[float, float], ys: tuple[float, float]) -> Markup:
    parts = [Markup('<path class="axis" d="M56,16V{}H{}"/>').format(height - 50, width - 174)]
    parts += [
        Markup('<text class="tick" x="{:.1f}" y="{}" text-anchor="middle">{}</text>').format(x(v), height - 34, v)
        for v in (1, 2, 5, 10, 20, 50, 100, 200)
        if xs[0] <= math.log10(v) <= xs[1]
    ]
    parts += [
        Markup('<text class="tick" x="50" y="{:.1f}" text-anchor="end">{}</text>').format(y(v) + 4, v)
        for v in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1)
        if ys[0] <= math.log10(v) <= ys[1]
    ]
    middle = (width - 174 + 56) // 2
    parts.append(
        Markup('<text class="label" x="{}" y="{}" text-anchor="middle">{}</text>').format(
            middle, height - 12, "intrinsic dimension (two_nn) at half depth, no-sink"
        )
    )
    parts.append(
        Markup('<text class="label" transform="translate(14,{}) rotate(-90)" text-anchor="middle">{}</text>').format(
            (height - 34) // 2, "share of the top direction"
        )
    )
    return Markup("").join(parts)
