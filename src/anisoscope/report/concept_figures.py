"""Figures of concepts over training: a line of life for each, and how well fits with different seeds agree."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from anisoscope.report.concept_lives import ConceptLife
from anisoscope.report.figure import Figure, TrainingAxis, number_text
from anisoscope.report.line_figures import WIDE_MARGIN, steps_figure
from anisoscope.report.map_figures import colour_of_value, step_edges, thinned
from anisoscope.report.reported_run import ReportedRun

_ROW = 24  # height of a concept in pixels
_MOST = 24  # concepts that are drawn: those that live, then those that lived longest
_LABEL = 300  # widest words in pixels


def life_figure(lives: Sequence[ConceptLife], title: str, training: TrainingAxis) -> Figure:
    """Concepts of one site on the y axis in the order of birth, training steps on the x axis, the share as colour.

    Args:
        lives: The concepts.
        title: Of the figure.
        training: The axis of steps.
    """
    longest = sorted(lives, key=lambda life: (life.died is not None, -len(life.shares)))[:_MOST]
    drawn = sorted(longest, key=lambda life: (life.born, life.number))
    edges = step_edges(thinned(sorted({step for life in lives for step, _ in life.shares})), training.steps)
    cells: list[dict[str, Any]] = [
        {
            "at": edges[step][0],
            "end": edges[step][1],
            "concept": life.label,
            "step": step,
            "value": share,
            "born": life.born,
            "value_text": number_text(share, percent=True),
        }
        for life in drawn
        for step, share in life.shares
        if step in edges
    ]
    axis = {"labelLimit": _LABEL, "ticks": False, "domain": False, "grid": False}
    names = [life.label for life in drawn]
    tooltip = [("concept", "concept"), ("born", "born at step"), ("step", "step"), ("value_text", "share")]
    spec: dict[str, Any] = {
        "data": {"values": cells},
        "mark": {"type": "rect", "clip": True, "x2Offset": 0.6},
        "encoding": {
            "x": training.encoding(),
            "x2": {"field": "end"},
            "y": {
                "field": "concept",
                "type": "nominal",
                "title": None,
                "sort": names,
                "axis": axis,
                "scale": {"paddingInner": 0.2},
            },
            "color": colour_of_value([cell["value"] for cell in cells], percent=True),
            "tooltip": [{"field": field, "type": "nominal", "title": name} for field, name in tooltip],
        },
        "usermeta": {"margin": WIDE_MARGIN},
    }
    died = sum(life.died is not None for life in lives)
    more = f"; the {_MOST} that live or lived longest are drawn" if len(lives) > _MOST else ""
    alt = f"{title}: {len(lives)} concepts, of which {died} died{more}."
    return Figure(title, "concept_share", alt, spec, _ROW * len(names), wide=True)


def stability_figure(run: ReportedRun, title: str, training: TrainingAxis) -> Figure | None:
    """The mean cosine of concepts of different fits over steps, averaged over layers; None if there is one step."""
    values: dict[int, list[float]] = {}
    for row in run.every_row("concept_stability"):
        if row["value"] is not None:
            values.setdefault(row["step"], []).append(row["value"])
    if len(values) < 2:
        return None
    points = [(step, sum(each) / len(each)) for step, each in sorted(values.items())]
    alt = f"{title}: {number_text(points[0][1])} at first, {number_text(points[-1][1])} at the end; 1 if all agree."
    return steps_figure({"mean over layers": points}, title, alt, training, metric="concept_stability")
