"""The theme of all charts: colours that everybody can distinguish, light and dark, readable in print."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from anisoscope.errors import InputError

# Okabe and Ito's palette: safe for colour blindness and grey print. Black and yellow vanish on one background each.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8C7A00")
_ON_DARK = ("#56B4E9", "#E69F00", "#2FC49A", "#E39AC5", "#FF8A3D", "#8AB8FF", "#FFFFFF", "#F0E442")
VERDICTS = {
    "reproduced": "#009E73",
    "not reproduced": "#D55E00",
    "inconclusive": "#8A8A8A",
    "untestable here": "#B8B8B8",
    "smoke test": "#5F6B7A",  # without a colour of its own it would get that of the first verdict
}
_FORMATS = (".png", ".svg", ".pdf", ".html", ".json")
_FONT = "system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif"


def config(dark: bool = False) -> dict[str, Any]:
    """The Vega-Lite configuration of the theme."""
    ink, quiet, grid, ground = (
        ("#e8e8e8", "#a8adb4", "#33383f", "#15181c") if dark else ("#1b1f24", "#57606a", "#e8e8e8", "#ffffff")
    )
    return {
        "background": ground,
        "font": _FONT,
        "view": {"stroke": grid},
        "axis": {
            "labelFontSize": 11,
            "titleFontSize": 12,
            "titleFontWeight": "normal",
            "labelColor": quiet,
            "titleColor": quiet,
            "gridColor": grid,
            "domainColor": quiet,
            "tickColor": quiet,
        },
        "title": {
            "fontSize": 14,
            "subtitleFontSize": 12,
            "color": ink,
            "subtitleColor": quiet,
            "anchor": "start",
            "offset": 12,
        },
        "legend": {
            "labelFontSize": 11,
            "titleFontSize": 12,
            "titleFontWeight": "normal",
            "labelColor": ink,
            "titleColor": quiet,
            "labelLimit": 240,
            "symbolOpacity": 1,
        },
        "range": {
            "category": list(_ON_DARK if dark else COLOURS),
            # Lines need contrast with the background: the end of the scale that would vanish is cut off.
            "ramp": {"scheme": "viridis", "extent": [0.25, 1] if dark else [0, 0.9]},
            "heatmap": {"scheme": "viridis"},
            "diverging": {"scheme": "blueorange"},
        },
        "text": {"color": ink},
        "rule": {"color": quiet},
        "tick": {"color": quiet},
    }


def themed(chart: Any, dark: bool = False) -> Any:
    """An Altair chart with our theme."""
    chart = chart.copy()
    chart.config = config(dark)
    return chart


def save_chart(chart: Any, path: str | Path, scale: float = 2.0) -> Path:
    """Save a chart as .png (`scale` times its size), .svg, .pdf, .html or .json; needs no browser."""
    target = Path(path)
    if target.suffix.lower() not in _FORMATS:
        raise InputError(f"cannot draw to {target.name!r}; the name must end in {', '.join(_FORMATS)}")
    if not target.parent.is_dir():
        raise InputError(f"cannot draw to {target}: the folder {target.parent} does not exist; create it first")
    kind = target.suffix.lower()
    options: dict[str, dict[str, Any]] = {".html": {"inline": True}, ".png": {"scale_factor": scale}}
    chart.save(str(target), **options.get(kind, {}))
    return target
