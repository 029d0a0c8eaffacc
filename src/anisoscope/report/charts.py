"""Records in, a chart out: Altair specifications that render in HTML, notebooks, PNG and PDF alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import altair as alt
import pandas as pd

from anisoscope.errors import InputError
from anisoscope.records import Record

# Okabe and Ito's palette: told apart by everybody, also in grey print.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442")
_FORMATS = (".png", ".svg", ".pdf", ".html", ".json")


def clouds_chart(points: Sequence[Mapping[str, Any]], records: Mapping[str, Sequence[Record]]) -> Any:
    """Each cloud on its two strongest axes, with what the instrument says of it."""
    panels = []
    table = pd.DataFrame(list(points))
    for name, found in records.items():
        first = {record.metric: record.value for record in reversed(found)}
        said = [
            f"cosine {_short(first.get('mean_cosine'))}   top share {_short(first.get('spectral_anisotropy'))}",
            f"IsoScore {_short(first.get('isoscore'))}   dimension {_short(first.get('two_nn'), 1)}",
        ]
        hidden = alt.Axis(labels=False, ticks=False, grid=False, domain=False)
        scale = alt.Scale(domain=[-1.7, 1.7], nice=False)
        panels.append(
            alt.Chart(table[table["cloud"] == name])
            .mark_circle(size=7, opacity=0.5, color=COLOURS[0], clip=True)
            .encode(
                x=alt.X("x:Q", axis=hidden, scale=scale, title=None),
                y=alt.Y("y:Q", axis=hidden, scale=scale, title=None),
            )
            .properties(width=190, height=150, title=alt.TitleParams(name, subtitle=said, anchor="start"))
        )
    return themed(alt.concat(*panels, columns=4, spacing=18))


def themed(chart: Any) -> Any:
    """The look shared by all charts: light, quiet, readable in print."""
    return (
        chart.configure_view(stroke="#d9d9d9")
        .configure_axis(labelFontSize=11, titleFontSize=12, gridColor="#eeeeee", domainColor="#999999")
        .configure_title(fontSize=13, subtitleFontSize=11, subtitleColor="#555555", anchor="start")
        .configure_legend(labelFontSize=11, titleFontSize=12)
        .configure_range(category=list(COLOURS))
    )


def save_chart(chart: Any, path: str | Path, scale: float = 2.0) -> Path:
    """The chart as .png, .svg, .pdf, .html or .json, by the suffix; no browser is needed."""
    target = Path(path)
    if target.suffix.lower() not in _FORMATS:
        raise InputError(f"cannot draw to {target.name!r}; the name must end in {', '.join(_FORMATS)}")
    inline = {"inline": True} if target.suffix.lower() == ".html" else {}
    chart.save(str(target), scale_factor=scale, **inline)
    return target


def _short(value: float | None, digits: int = 2) -> str:
    return "–" if value is None else f"{value:.{digits}f}"
