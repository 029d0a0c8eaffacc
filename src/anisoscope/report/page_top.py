"""What stands next to the hero chart, the questions or the verdicts, and the legends of the figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from anisoscope.errors import AnisoscopeError
from anisoscope.report.compare import Difference, compare
from anisoscope.report.line_figures import ALL, MAIN
from anisoscope.report.question_sections import QuestionSection
from anisoscope.report.questions import METRICS, QuestionAnswer
from anisoscope.report.reported_run import ReportedRun
from anisoscope.report.section_tables import SectionTable, tangent_tables
from anisoscope.report.sentences import WITHOUT, error_text, in_rows, number
from anisoscope.report.summary import Summary
from anisoscope.report.tables import parse_site
from anisoscope.report.tiles import is_percent, svg_path, tangent_tests
from anisoscope.store.run import Run

_NONE: Mapping[str, str] = {}
_RESIDUAL = ("embed", "resid", "final", "vectors")
_MOST_RUNS = 4  # columns of the table of questions
_COLOURS = 8
_NULL = "expected with no structure"
_STAR = "* the 95 % interval excludes 0 and what different numbers of rows may cause."


def side_of(
    summary: Summary, runs: Sequence[ReportedRun], differences: Mapping[str, str] = _NONE
) -> dict[str, Any] | None:
    """The table next to the hero chart: verdicts of a tangent test, otherwise questions; None if there is neither.

    Args:
        summary: The top of the report.
        runs: Its runs.
        differences: The largest difference between two runs by metric, from `largest_differences`.
    """
    if summary.kind == "tangent":
        tests = [each for run in runs for each in tangent_tests(run)]
        if not tests:
            return None
        [main, *_] = tangent_tables([each for each in tests if each.gradient == "hidden"] or tests)
        shown = (0, 1, 3, 4)  # verdict, effect, site, basis: the chart has the rest
        rows = [[row[i] for i in shown] for row in main.rows]
        return {"kind": "verdicts", "table": SectionTable([main.heads[i] for i in shown], rows, wraps=(0,))}
    if not summary.questions:
        return None
    if len(runs) == 1:
        return _one_run(runs[0])
    return _several_runs(summary.questions[:_MOST_RUNS], differences)


def largest_differences(runs: Sequence[Run]) -> dict[str, str]:
    """The largest difference between two runs by metric, second minus first with one standard error.

    Layers are matched as `compare` does. Numbers that depend on the number of rows are left out if it differs. A star
    marks a difference whose 95 % interval excludes 0. With more or fewer than two runs there are none.
    """
    if len(runs) != 2:
        return {}
    shared = [metric for metric in METRICS if all(metric in run.metrics() for run in runs)]
    try:
        differences = [each for each in compare(runs[0], runs[1], shared) if each.refused is None] if shared else []
    except AnisoscopeError:
        return {}
    last = max((each.first.step for each in differences), default=0)
    largest: dict[str, Difference] = {}
    for policy in (WITHOUT, "all"):
        by_metric: dict[str, Difference] = {}
        for each in differences:
            known = by_metric.get(each.first.metric)
            if (
                each.first.tokens == policy
                and each.first.step == last
                and parse_site(each.first.site).kind in _RESIDUAL
            ):
                by_metric[each.first.metric] = each if known is None or abs(each.value) > abs(known.value) else known
        largest = {**by_metric, **largest}
    return {metric: _difference_text(each) for metric, each in largest.items()}


def _difference_text(each: Difference) -> str:
    percent = is_percent(each.first.metric)
    sign = "+" if each.value > 0 else ""
    star = " *" if each.clear else ""
    text = f"{sign}{number(each.value, percent).replace('-', '−', 1)}{error_text(each.error, percent)}"
    # of two shares the difference is in points, not in per cent of one of them
    return (f"{text.replace(' %', '')} points" if percent else text) + star


def _one_run(run: ReportedRun) -> dict[str, Any]:
    rows = [
        {
            "question": in_rows(each.question, run.of_tokens),
            "metric": each.metric,
            "cells": [{"value": each.values, "detail": ""}],
            "paths": _paths(each),
            "null": each.null,
            "reading": each.reading,
        }
        for each in run.answers
    ]
    curves = any(row["paths"] for row in rows)
    heads = ["question", "value", *(["over layers"] if curves else []), "no structure", "reading"]
    return {"kind": "questions", "single": True, "curves": curves, "heads": heads, "rows": rows, "note": ""}


def _paths(answer: QuestionAnswer) -> Mapping[str, str]:
    return {"curve": svg_path(answer.curve, answer.curve)} if len(answer.curve) > 1 else {}


def _several_runs(
    answers: Sequence[tuple[str, Sequence[QuestionAnswer]]], differences: Mapping[str, str]
) -> dict[str, Any]:
    """One column per run with the value and its reading; for two runs one with their largest difference."""
    questions = dict.fromkeys((each.question, each.metric) for _, of_run in answers for each in of_run)
    by_run = [{each.question: each for each in of_run} for _, of_run in answers]
    rows = []
    for question, metric in questions:
        row = [answer.get(question) for answer in by_run]
        cells = [{"value": "–" if e is None else e.values, "detail": "" if e is None else e.reading} for e in row]
        if differences:
            few = question.startswith("Due to few")  # a question about one run
            cells.append({"value": "" if few else differences.get(metric, "–"), "detail": ""})
        rows.append({"question": question, "metric": metric, "cells": cells})
    heads = ["question", *(label for label, _ in answers), *(["largest difference"] if differences else [])]
    note = f"Difference: {answers[-1][0]} minus {answers[0][0]}, ± one standard error. {_STAR}" if differences else ""
    return {"kind": "questions", "single": False, "heads": heads, "rows": rows, "note": note}


def legends_of(
    summary: Summary, sections: Sequence[QuestionSection], runs: Sequence[ReportedRun]
) -> dict[str, list[tuple[str, str]]]:
    """The legend of the hero and of each section: (style, text) of each entry."""
    legends = {"hero": [] if summary.kind in ("tangent", "claims") else _entries(summary.heroes, runs, labelled=True)}
    for section in sections:
        legends[section.id] = _entries(section.figures, runs)
    if any(run.alerts for run in runs):
        for name in ("hero", "development"):
            if name in legends:
                legends[name] = [*legends[name], ("alert", "alert")]
    return legends


def _entries(figures: Sequence[Any], runs: Sequence[ReportedRun], *, labelled: bool = False) -> list[tuple[str, str]]:
    """What lines and areas mean, if some figure has them; `labelled`: lines of a single run have their names."""
    lines = [figure for figure in figures if "layer" in figure.spec]
    rows = [row for figure in lines for row in figure.spec["data"]["values"]]
    rows = [row for row in rows if "of" in row]
    if not rows:
        return []
    entries: list[tuple[str, str]] = []
    if len(runs) > 1:
        entries += [(f"run-{i % _COLOURS}", run.label) for i, run in enumerate(runs)]
    # Lines of the hero have their names at their ends, unless the screen is too narrow.
    neutral = " ink" if len(runs) > 1 else " named" if labelled else ""
    if len(runs) == 1 and {"training", "validation"} <= {row["of"] for row in rows}:
        entries += [("solid", "validation loss"), ("ghost", "training loss")]
    if any(row.get("pale") and row["of"] == ALL for row in rows):
        entries += [(f"solid{neutral}", MAIN), (f"ghost{neutral}", ALL)]
    if any(row.get("null") is not None for row in rows):
        entries.append((f"null{neutral}" if len(runs) == 1 else "dotted", _NULL))
    if any(row.get("low") is not None for row in rows):
        entries.append(("band ink" if len(runs) > 1 else "band", "95 % interval"))
    return entries
