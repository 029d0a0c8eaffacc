"""The map of patch norms of an image model: which patches are massive, layer by layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt

from anisoscope.errors import InputError
from anisoscope.report.theme import themed

_COLUMNS = 4  # maps side by side


def patch_map(rows: Sequence[Mapping[str, Any]], *, value: str = "mean", dark: bool = False, size: int = 140) -> Any:
    """Draw the norms of patches as one map per site, on one logarithmic colour scale.

    Args:
        rows: What `Sinks.patch_rows` returns: dicts with site, row, column, mean and largest.
        value: `mean` over the images, or `largest`, which shows a patch that is massive in a single image.
        dark: Use a dark background.
        size: Width of a map in pixels.

    Raises:
        InputError: There are no patches.
    """
    if not rows:
        raise InputError("The profile has no patches. Only models of images have them.")
    height = max(row["row"] for row in rows) + 1
    width = max(row["column"] for row in rows) + 1
    title = f"{value} norm / median"
    norm = alt.Color(f"{value}:Q", title=title, scale=alt.Scale(type="log", range="heatmap"))
    chart = (
        alt.Chart(alt.InlineData([dict(row) for row in rows]))
        .mark_rect()
        .encode(
            x=alt.X("column:O", title=None, axis=None),
            y=alt.Y("row:O", title=None, axis=None),
            color=norm,
            tooltip=["site:N", "row:O", "column:O", alt.Tooltip("mean:Q", format=".3g"), "largest:Q"],
        )
        .properties(width=size, height=size * height / width)
        .facet(facet=alt.Facet("site:N", title=None, sort=None), columns=_COLUMNS)
    )
    return themed(chart, dark)
