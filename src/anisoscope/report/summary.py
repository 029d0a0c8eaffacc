"""What a report, a notebook and the terminal show first: thesis, tiles, questions and the hero chart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from anisoscope.errors import InputError
from anisoscope.report.figure import Figure
from anisoscope.report.heroes import heroes_of
from anisoscope.report.questions import QuestionAnswer
from anisoscope.report.reported_run import ReportedRun, page_kind, reported_runs
from anisoscope.report.templates import asset, render
from anisoscope.report.theme import config
from anisoscope.report.thesis import Thesis, thesis_of
from anisoscope.report.tiles import Tile, tiles_of
from anisoscope.store.run import Run

_WIDTH = 620  # of the hero chart in a notebook, in pixels


@dataclass(frozen=True)
class Summary:
    """The top of a report.

    Attributes:
        kind: vectors, model, models, training, tangent, similarity or claims.
        about: Model, data, tokens and date, in one line.
        thesis: The one thing to know.
        tiles: Four or five numbers.
        questions: The answers to the headline questions, by run.
        heroes: The figures at the top, above each other.
    """

    kind: str
    about: str
    thesis: Thesis
    tiles: Sequence[Tile]
    questions: Sequence[tuple[str, Sequence[QuestionAnswer]]]
    heroes: Sequence[Figure]


def summary_of(runs: Sequence[ReportedRun]) -> Summary:
    """The summary of one or more runs."""
    kind = page_kind(runs)
    thesis = thesis_of(runs, kind)
    alt = f"{thesis.title} {thesis.detail}".strip()
    return Summary(
        kind,
        about_text(runs),
        thesis,
        tiles_of(runs, kind),
        [(run.label, run.answers) for run in runs if run.answers],
        heroes_of(runs, kind, alt),
    )


def about_text(runs: Sequence[ReportedRun]) -> str:
    """What was measured, in one line: models, data, date."""
    names = dict.fromkeys(name for run in runs for name in (run.label, run.model_name) if name and name != "model")
    data = dict.fromkeys(run.data_text for run in runs if run.data_text)
    days = sorted({run.created[:10] for run in runs if run.created})
    parts = [", ".join(names), "; ".join(data), " to ".join(dict.fromkeys([*days[:1], *days[-1:]]))]
    return " · ".join(part for part in parts if part)


def summary_html(runs: Sequence[Run]) -> str:
    """The thesis, the tiles and the hero chart of runs as HTML that a notebook shows, without scripts.

    Example: `summary_html([Run.open("runs/exp1")])`. `Run._repr_html_` returns it.
    """
    import vl_convert

    reported = _with_records(runs)
    summary = summary_of(reported)
    pictures = [Markup(vl_convert.vegalite_to_svg(notebook_spec(figure))) for figure in summary.heroes]
    return render("notebook.html", summary=summary, pictures=pictures, style=Markup(asset("notebook.css")))


def hero_chart(runs: Sequence[Run]) -> Any:
    """The hero chart of runs as an Altair chart: what `Run.plot()` without arguments draws.

    Raises:
        InputError: The runs have no records, or none that fits a hero chart.
    """
    import altair as alt

    reported = _with_records(runs)
    summary = summary_of(reported)
    if not summary.heroes:
        names = ", ".join(dict.fromkeys(str(metric) for run in reported for metric in run.groups))
        raise InputError(f"There is no summary chart for these records. Draw one metric: run.plot(NAME) with {names}.")
    charts = [alt.Chart.from_dict(notebook_spec(figure)) for figure in summary.heroes]
    return charts[0] if len(charts) == 1 else alt.Chart.from_dict(_stacked(summary.heroes))


def notebook_spec(figure: Figure, dark: bool = False) -> dict[str, Any]:
    """A figure as a complete specification of fixed width."""
    spec = {key: value for key, value in figure.spec.items() if key != "usermeta"}
    title = {"text": figure.title, "subtitle": figure.metric}
    margin = figure.spec.get("usermeta", {}).get("margin", 0)
    padding = {"left": 5, "top": 5, "bottom": 5, "right": 5 + margin}
    return {
        **spec,
        "width": _WIDTH - margin,
        "height": figure.height,
        "title": title,
        "padding": padding,
        "config": config(dark),
    }


def _stacked(figures: Sequence[Figure]) -> dict[str, Any]:
    parts = [notebook_spec(figure) for figure in figures]
    margin = max(part["padding"]["right"] for part in parts)
    inner = [{key: value for key, value in part.items() if key not in ("padding", "config")} for part in parts]
    width = min(part["width"] for part in inner)
    padding = {"left": 5, "top": 5, "bottom": 5, "right": margin}
    vertical = [{**part, "width": width} for part in inner]
    return {"vconcat": vertical, "config": config(), "padding": padding, "resolve": {"scale": {"color": "independent"}}}


def _with_records(runs: Sequence[Run]) -> list[ReportedRun]:
    reported = reported_runs(runs)
    if not any(len(run.table) for run in reported):
        raise InputError(f"{' and '.join(run.name for run in runs)} has no records yet; measure something first")
    return [run for run in reported if len(run.table)]
