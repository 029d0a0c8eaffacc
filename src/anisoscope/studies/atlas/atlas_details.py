"""The report of one model inside the page of the atlas: facts, profiles of every metric, numbers and claims."""

from __future__ import annotations

import re
from collections.abc import Sequence, Set
from typing import Any

from markupsafe import Markup

from anisoscope.studies.atlas.atlas_svg import profile_svg
from anisoscope.studies.atlas.claim_matrix import MATRIX
from anisoscope.studies.atlas.evidence import ModelEvidence, Point
from anisoscope.studies.atlas.quantisation import Shift

ROUNDED = "≈"  # marks a metric that rounding moves, of a model whose weights are rounded


def anchor(name: str) -> str:
    """Return the address of a model's report in the page.

    >>> anchor("rxnfp 10k")
    'model-rxnfp-10k'
    """
    return "model-" + re.sub(r"[^A-Za-z0-9]+", "-", name)


def moved_metrics(shifts: Sequence[Shift]) -> frozenset[str]:
    """Return the metrics that rounding to four bits moves by more than their error in at least one model."""
    return frozenset(shift.metric for shift in shifts if shift.moved and shift.kind.startswith("Q4"))


def rounded_mark(model: ModelEvidence, metric: str, moved: Set[str]) -> str:
    """Return the mark of a metric of a model: its weights are rounded, and rounding moves the metric."""
    return f" {ROUNDED}" if metric in moved and model.precision.startswith("Q") else ""


def model_details(model: ModelEvidence, moved: Set[str]) -> Markup:
    """Return the report of a model as a part of the page that opens with a click."""
    inputs = Markup("").join(_input_part(model, name, entry, moved) for name, entry in model.inputs.items())
    verdicts = [(row, row.rule(model)) for row in MATRIX]
    claims = Markup("").join(
        Markup("<li><b>{}</b> {}: {} ({})</li>").format(row.id, row.statement, verdict.answer, verdict.text)
        for row, verdict in verdicts
    )
    return Markup(
        '<details class=report id="{}"><summary><b>{}</b> {} · {}</summary>'
        "<p>{}</p>{}<h4>Claims</h4><ul>{}</ul></details>"
    ).format(anchor(model.name), model.name, model.kind, model.modality, _facts(model), inputs, claims)


def _facts(model: ModelEvidence) -> str:
    facts = [
        model.note,
        f"{model.parameters:,} parameters, {model.precision}.",
        f"Package {', '.join(model.packages)}; licence: {model.licence}." if model.packages else "",
        f"Check: {model.check}.",
        "" if model.seconds is None else f"Measured in {model.seconds:,} s of processor time.",
        f"Peak memory: {model.memory:,} MiB beyond the weights.",
        f"The full report: anisoscope atlas run {model.name}, then anisoscope atlas report {model.name}.",
    ]
    return " ".join(fact for fact in facts if fact)


def _input_part(model: ModelEvidence, name: str, entry: dict[str, Any], moved: Set[str]) -> Markup:
    metrics = [metric for metric in entry["trained"] if model.points(metric, "all", input=name)]
    pictures = Markup("").join(
        Markup("<figure>{}<figcaption>{}{}</figcaption></figure>").format(
            profile_svg(model, metric, name), metric, rounded_mark(model, metric, moved)
        )
        for metric in metrics
    )
    return Markup("<h4>On {} tokens: {}</h4><div class=grid>{}</div>{}").format(
        f"{entry.get('tokens', 0):,}", entry["describes"], pictures, _numbers(model, name, metrics)
    )


def _numbers(model: ModelEvidence, name: str, metrics: Sequence[str]) -> Markup:
    """Return a table with one row per site: values without sinks, or with all tokens if a metric has no others."""
    columns: dict[str, dict[str, Point]] = {}
    for metric in metrics:
        points = model.points(metric, "no-sink", input=name) or model.points(metric, "all", input=name)
        columns[metric] = {point[0]: point for point in points}
    sites = list(dict.fromkeys(site for points in columns.values() for site in points))
    head = Markup("").join(Markup("<th>{}</th>").format(cell) for cell in ("site", *metrics))
    rows = Markup("").join(
        Markup("<tr><td>{}</td>{}</tr>").format(
            site, Markup("").join(Markup("<td>{}</td>").format(_cell(columns[m].get(site))) for m in metrics)
        )
        for site in sites
    )
    return Markup(
        "<details><summary>Numbers, without sinks</summary><div class=wide><table><thead><tr>{}</tr></thead>"
        "<tbody>{}</tbody></table></div></details>"
    ).format(head, rows)


def _cell(point: Point | None) -> str:
    if point is None:
        return "–"
    return f"{point[1]:.3g}" if point[2] is None else f"{point[1]:.3g} ± {point[2]:.1g}"
