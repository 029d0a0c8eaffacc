"""Cosines of random, nearest and relevant pairs of embeddings, before and after centring, as a chart."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import altair as alt
import pandas as pd

from anisoscope.report.embedding_advice import UNCHANGED
from anisoscope.report.theme import themed

_SHOWN = {UNCHANGED: "as they are", "centre": "centred"}
_KINDS = ("random", "nearest", "relevant")


def cosine_table(details: Mapping[str, Any]) -> pd.DataFrame:
    """Return one row per bin: the remedy, the kind of pairs, the middle of the bin and the share of the pairs.

    Args:
        details: What a check of embeddings found, `run.info["embeddings"]`.
    """
    bins = int(details["cosines"]["bins"])
    middle = [-1 + (2 * i + 1) / bins for i in range(bins)]
    rows = [
        {"rows": title, "pairs": kind, "cosine": x, "share": share}
        for name, title in _SHOWN.items()
        for kind in _KINDS
        for x, share in zip(middle, details["cosines"].get(name, {}).get(kind, ()), strict=False)
    ]
    return pd.DataFrame(rows)


def cosine_chart(details: Mapping[str, Any]) -> Any:
    """Return a chart with one panel as the rows are and one after centring, one curve per kind of pairs."""
    table = cosine_table(details)
    kinds = [kind for kind in _KINDS if kind in set(table["pairs"])]
    chart = (
        alt.Chart(table)
        .mark_area(interpolate="step", opacity=0.35, line=True)
        .encode(
            x=alt.X("cosine:Q", title="cosine of a pair", scale=alt.Scale(domain=[-1, 1])),
            y=alt.Y("share:Q", title="share of pairs", axis=alt.Axis(format="%"), stack=None),
            color=alt.Color("pairs:N", title="pairs", sort=kinds),
        )
        .properties(width=520, height=140)
        .facet(row=alt.Row("rows:N", title=None, sort=list(_SHOWN.values())))
    )
    return themed(chart)
