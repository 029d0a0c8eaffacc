"""Layer profiles of the atlas as SVG: one small picture per model and metric, over relative depth."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from markupsafe import Markup

from anisoscope.records import Site
from anisoscope.studies.atlas.evidence import ModelEvidence, Point

_WIDE, _HIGH = 230, 120  # of one small picture
_LEFT, _BOTTOM, _TOP = 38, 18, 8


def profile_svg(model: ModelEvidence, metric: str, input: str | None = None) -> Markup:
    """Draw one model: all tokens as a light line, no-sink solid with error bars, the untrained twin grey.

    Positions of an image have no sinks: of a convolutional model, all of them are drawn solid.

    Args:
        model: The model.
        metric: The metric.
        input: The input. Default: that of the model's domain.
    """
    every, kept = (model.points(metric, tokens, input=input) for tokens in ("all", "no-sink"))
    curves = {
        "untrained": model.points(metric, "no-sink" if kept else "all", input=input, state="untrained"),
        "all": every if kept else [],
        "no-sink": kept or every,
    }
    values = [p[1] for points in curves.values() for p in points]
    if not values:
        return Markup("")
    sites = sorted({Site.parse(p[0]) for points in curves.values() for p in points})
    axes = ProfileAxes(
        {str(site): index / max(1, len(sites) - 1) for index, site in enumerate(sites)},
        min(0.0, *values),
        max(values) or 1.0,
    )
    parts = [_drawn_axes(axes, sites[0], sites[-1])]
    for name, points in curves.items():
        spots = " ".join("{:.1f},{:.1f}".format(*axes.at(p[0], p[1])) for p in points)
        parts.append(Markup('<polyline class="line {}" points="{}"/>').format(name, spots))
        if name == "no-sink":
            parts += [_bar(axes, point) for point in points]
    title = f"{model.name}: {metric} over the layers"
    return Markup('<svg class="profile" viewBox="0 0 {} {}" role="img"><title>{}</title>{}</svg>').format(
        _WIDE, _HIGH, title, Markup("").join(parts)
    )


@dataclass(frozen=True)
class ProfileAxes:
    """The axes of a profile: where each site is, from 0 to 1, and the lowest and highest value."""

    sites: Mapping[str, float]
    low: float
    high: float

    def at(self, site: str, value: float) -> tuple[float, float]:
        """Return where a value is, in pixels."""
        inside = min(self.high, max(self.low, value))
        x = _LEFT + self.sites[site] * (_WIDE - _LEFT - 6)
        return x, _TOP + (self.high - inside) / ((self.high - self.low) or 1) * (_HIGH - _TOP - _BOTTOM)


def half_depth(model: ModelEvidence, metric: str, state: str = "trained") -> Point | None:
    """Return the value at half depth without sinks; None if it was not measured.

    Positions of an image have no sinks: convolutional models are shown with all of them.
    """
    points = model.points(metric, "no-sink", state=state) or model.points(metric, "all", state=state)
    return points[len(points) // 2] if points else None


def _bar(axes: ProfileAxes, point: Point) -> Markup:
    error = point[2] or 0
    (x, top), (_, bottom) = (axes.at(point[0], point[1] + step) for step in (error, -error))
    return Markup('<line class="error" x1="{0:.1f}" x2="{0:.1f}" y1="{1:.1f}" y2="{2:.1f}"/>').format(x, top, bottom)


def _drawn_axes(axes: ProfileAxes, first: Site, last: Site) -> Markup:
    y0, y1, right = _HIGH - _BOTTOM, _TOP, _WIDE - 6
    axis = Markup('<path class="axis" d="M{0},{1}V{2}H{3}"/>').format(_LEFT, y1, y0, right)
    labels = [(_LEFT - 3, y1 + 7, _tick(axes.high), "end"), (_LEFT - 3, y0, _tick(axes.low), "end")]
    labels.append((_LEFT, _HIGH - 5, "embedding" if first.kind == "embed" else "first layer", "start"))
    labels.append((right, _HIGH - 5, "after the last norm" if last.kind == "final" else "last layer", "end"))
    texts = [
        Markup('<text class="tick" x="{}" y="{}" text-anchor="{}">{}</text>').format(x, y, anchor, text)
        for x, y, text, anchor in labels
    ]
    return axis + Markup("").join(texts)


def _tick(value: float) -> str:
    """Return a number of at most five characters, if it has no exponent."""
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.2g}"
