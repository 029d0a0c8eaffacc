"""The picture at the top of a report, chosen by the kind of run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from anisoscope.report.figure import GREY, Figure, TrainingAxis, layer_ticks, number_text, tooltip_fields, value_axis
from anisoscope.report.layer_curves import LayerCurves
from anisoscope.report.line_figures import index_figure, layer_figure, steps_figure
from anisoscope.report.map_figures import step_map
from anisoscope.report.reported_run import ReportedRun
from anisoscope.report.streams import site_text
from anisoscope.report.tables import NONE, Row, claim_of
from anisoscope.report.tangent_summary import TangentSummary
from anisoscope.report.theme import VERDICTS
from anisoscope.report.tiles import is_percent, tangent_tests

HEIGHT = 270
_LOSS = 90  # height of the loss curve above a map
_TITLES = {
    "spectral_anisotropy": "Top direction's share of the variance",
    "mean_cosine": "Mean cosine between two tokens",
    "isoscore": "IsoScore: 0 is a line, 1 a sphere",
    "participation_ratio": "Directions that share the variance",
    "two_nn": "Intrinsic dimension",
    "effective_rank": "Effective rank",
    "relative_drift": "Mean vector's share of the norm",
}
_NULLS = {"chance": [1, 0], "normal directions": [3, 2]}  # how the level of each null is dashed
_GAP = 0.05  # a gap below this share of the variance is not annotated
_MARKS = {"reproduced": "✓", "not reproduced": "✗", "inconclusive": "?", "smoke test": "·"}


def heroes_of(runs: Sequence[ReportedRun], kind: str, alt: str) -> list[Figure]:
    """The figures at the top, above each other; none if the records fit no such figure."""
    if kind == "claims":
        return [verdict_figure([row for run in runs for row in run.rows.get("verdict", ())], alt)]
    if kind == "tangent":
        figure = energy_figure([each for run in runs for each in tangent_tests(run)], alt, HEIGHT)
        return [] if figure is None else [figure]
    if kind == "training":
        return _training(runs, alt)
    if kind == "vectors":
        figure = spectrum_figure(runs, alt, HEIGHT)
        return [] if figure is None else [figure]
    figure = _profile(runs, alt)
    return [] if figure is None else [figure]


def title_of_metric(metric: str) -> str:
    """What a metric is, in plain words."""
    return _TITLES.get(metric, metric.replace("_", " ").capitalize())


def _profile(runs: Sequence[ReportedRun], alt: str) -> Figure | None:
    """A headline metric over layers, with the gap that sink tokens make."""
    for metric in _TITLES:
        curves = curves_by_run(runs, metric)
        if curves:
            note = _gap_note(next(iter(curves.values()))) if len(curves) == 1 else None
            options: dict[str, Any] = {"percent": is_percent(metric), "height": HEIGHT, "note": note, "labelled": True}
            return layer_figure(curves, title_of_metric(metric), alt, order=[run.label for run in runs], **options)
    return None


def curves_by_run(runs: Sequence[ReportedRun], metric: str) -> dict[str, LayerCurves]:
    """The curves of the runs that have the metric at two or more layers."""
    curves = {run.label: curve for run in runs if (curve := run.curves(metric)) is not None}
    return {label: curve for label, curve in curves.items() if len(curve.main) > 1}


def _gap_note(curve: LayerCurves) -> str | None:
    gaps = curve.gaps()
    if not gaps or max(map(abs, gaps.values())) < _GAP or curve.metric != "spectral_anisotropy":
        return None
    left_out = curve.left_out([max(gaps, key=lambda layer: abs(gaps[layer]))])
    few = "first and massive" if left_out is None else f"{left_out[0]:,} of {left_out[1]:,}"
    return f"{few}\ntokens make\nthis difference"


def _training(runs: Sequence[ReportedRun], alt: str) -> list[Figure]:
    """The loss above a map of layers × steps; of several runs the mean over layers of each."""
    metric = next((metric for metric in _TITLES if all(metric in run.groups for run in runs)), None)
    lines = {run.label: _path(run, metric) for run in runs} if metric is not None and len(runs) > 1 else {}
    training = training_axis(runs)
    figures = []
    if any(run.losses for run in runs):
        figures.append(loss_figure(runs, training, alt))
    if len(runs) == 1 and metric is not None:
        height = HEIGHT - (_LOSS + 40 if figures else 0)
        figure = map_of(runs[0], metric, title_of_metric(metric), alt, training, height)
        figures += [] if figure is None else [figure]
    elif metric is not None and (lines := {label: path for label, path in lines.items() if len(path) > 1}):
        title = f"{title_of_metric(metric)}, mean over layers"
        figures.append(steps_figure(lines, title, alt, training, metric=metric, percent=is_percent(metric)))
    return figures or [figure for figure in [_profile(runs, alt)] if figure is not None]


def training_axis(runs: Sequence[ReportedRun]) -> TrainingAxis:
    """The axis of all steps of these runs, with their alerts."""
    losses = {step for run in runs for points in run.losses.values() for step, _ in points}
    steps = sorted({*(step for run in runs for step in run.steps), *losses})
    return TrainingAxis(steps, [alert for run in runs for alert in run.alerts])


def loss_figure(runs: Sequence[ReportedRun], training: TrainingAxis, alt: str, height: int = _LOSS) -> Figure:
    """Training and validation loss; of several runs the validation loss of each."""
    if len(runs) == 1:
        lines = {name.split()[0]: points for name, points in runs[0].losses.items()}
        # Single steps are noisy: they are pale if there is a validation loss.
        pale = ["training"] if len(lines) > 1 else []
    else:
        lines = {run.label: list(run.losses.values())[-1] for run in runs if run.losses}
        pale = []
    name, untitled = "train_loss, validation_loss", replace(training, titled=False)
    return steps_figure(lines, "Loss, nats per token", alt, untitled, metric=name, pale=pale, height=height)


def map_of(
    run: ReportedRun, metric: str, title: str, alt: str, training: TrainingAxis, height: int | None = None
) -> Figure | None:
    """A metric of the main stream as a map of layers × steps; None if it has fewer than two of either."""
    shown = run.curves(metric)
    if shown is None:
        return None
    example = next(iter(shown.main.values()))
    same = [*(key for key in example if key.startswith("v_")), "tokens", "stream"]
    rows = [
        row
        for row in run.every_row(metric)
        if row["value"] is not None and row["head"] is None and all(row[key] == example[key] for key in same)
    ]
    if len({row["layer"] for row in rows}) < 2 or len({row["step"] for row in rows}) < 2:
        return None
    options: dict[str, Any] = {"percent": is_percent(metric), "final": shown.final, "height": height}
    return step_map(rows, title, alt, replace(training, alerts=run.alerts), metric=metric, **options)


def _path(run: ReportedRun, metric: str | None) -> list[tuple[int, float]]:
    """The mean over layers of a metric at each step."""
    shown = run.curves(metric) if metric is not None else None
    if shown is None or metric is None:
        return []
    example = next(iter(shown.main.values()))
    same = [*(key for key in example if key.startswith("v_")), "tokens", "stream"]
    values: dict[int, list[float]] = {}
    for row in run.every_row(metric):
        if row["value"] is not None and all(row[key] == example[key] for key in same):
            values.setdefault(row["step"], []).append(row["value"])
    return [(step, sum(each) / len(each)) for step, each in sorted(values.items())]


def spectrum_figure(runs: Sequence[ReportedRun], alt: str, height: int) -> Figure | None:
    """The share of the variance by rank, of vectors; the null is what rows without structure give."""
    series: dict[str, list[Row]] = {}
    for run in runs:
        rows = [row for row in run.rows.get("spectrum", ()) if row["value"] is not None and row["index"] is not None]
        if rows:
            first = rows[0]
            same = [row for row in rows if row["site"] == first["site"] and row["tokens"] == first["tokens"]]
            series[run.label if len(runs) > 1 else ""] = sorted(same, key=lambda row: row["index"])
    if not series:
        return None
    title = "Share of the variance by direction, largest first"
    return index_figure(series, title, alt, x_title="direction", percent=True, height=height, metric="spectrum")


def energy_figure(tests: Sequence[TangentSummary], alt: str, height: int) -> Figure | None:
    """The gradients' energy in a basis by layer with its interval, against the levels of its nulls as ticks."""
    hidden = [each for each in tests if each.gradient == "hidden"] or list(tests)
    if not hidden:
        return None
    rank = max(each.rank for each in hidden)
    shown = [each for each in hidden if each.rank == rank]
    sites = list(dict.fromkeys(each.site for each in shown))
    proxies = list(dict.fromkeys(each.proxy for each in shown))
    rows: list[Row] = []
    ticks: list[Row] = []
    for each in shown:
        at = sites.index(each.site) + (proxies.index(each.proxy) - (len(proxies) - 1) / 2) * 0.22
        half = (each.interval[1] - each.enrichment) * each.level if each.interval else None
        value = each.energy.value or 0.0
        rows.append({
            "x": at, "series": each.proxy, "value": value, "low": None if half is None else max(0.0, value - half),
            "high": None if half is None else min(1.0, value + half), "site": each.site, "proxy": each.proxy,
            "value_text": number_text(value, True), "null_text": number_text(each.level, True), "verdict": each.words,
        })  # fmt: skip
        levels = {"chance": each.level, "normal directions": each.normal}
        ticks += [
            {"x": at, "from": at - 0.09, "to": at + 0.09, "value": v, "null": name}
            for name, v in levels.items()
            if v is not None
        ]
    values = [v for row in rows for v in (row["value"], row["low"], row["high"]) if v is not None]
    axis = value_axis([*values, *(tick["value"] for tick in ticks)], percent=True)
    names = json.dumps([site_text(site) for site in sites])  # as data: a name must not become an expression
    x = layer_ticks(list(range(len(sites))), None) if len(sites) > 1 else layer_ticks([0], None)
    x["title"] = None
    x["scale"] = {"domain": [-0.5, len(sites) - 0.5], "nice": False}
    x["axis"] = {**x["axis"], "values": list(range(len(sites))), "labelExpr": f"{names}[datum.value]"}
    colour = {"field": "series", "type": "nominal", "scale": {"domain": proxies}, "legend": _legend("basis")}
    present = [name for name in _NULLS if any(tick["null"] == name for tick in ticks)]
    dash = {"field": "null", "type": "nominal", "legend": _legend("null"),
            "scale": {"domain": present, "range": [_NULLS[name] for name in present]}}  # fmt: skip
    fields = tooltip_fields(("site", "site"), ("proxy", "basis"), ("verdict", "verdict"))
    layers = [
        {"data": {"values": ticks}, "mark": {"type": "rule", "strokeWidth": 2.5, "color": GREY},
         "encoding": {"x": {**x, "field": "from"}, "x2": {"field": "to"}, "y": axis.encoding(), "strokeDash": dash}},
        {"mark": {"type": "rule", "strokeWidth": 2}, "encoding": {"y": axis.encoding("low"), "y2": {"field": "high"},
         "color": {**colour, "legend": None}}},
        {"mark": {"type": "circle", "size": 80, "opacity": 1}, "encoding": {"y": axis.encoding(), "color": colour,
         "tooltip": fields}},
    ]  # fmt: skip
    spec = {
        "data": {"values": rows},
        "encoding": {"x": x},
        "layer": layers,
        "resolve": {"scale": {"color": "independent"}},
    }
    title = f"Share of the gradients' energy in a basis of rank {rank}"
    return Figure(title, "gradient_energy", alt, spec, height)


def _legend(title: str) -> dict[str, Any]:
    return {"title": title, "orient": "top", "direction": "horizontal"}


def verdict_figure(rows: Sequence[Row], alt: str) -> Figure:
    """Every claim with its verdicts: one column per claim, one row per line of evidence."""
    cells = [
        {
            "claim": claim_of(row),
            "line": str(row.get("v_line", NONE)),
            "verdict": str(row.get("v_verdict", NONE)),
            "mark": _MARKS.get(str(row.get("v_verdict")), "?"),
            "why": (row["note"] or "")[:300],
        }
        for row in rows
    ]
    claims = list(dict.fromkeys(cell["claim"] for cell in cells))
    lines = list(dict.fromkeys(cell["line"] for cell in cells))
    present = [name for name in VERDICTS if any(cell["verdict"] == name for cell in cells)]
    scale = {"domain": list(VERDICTS), "range": list(VERDICTS.values())}
    fields = [{"field": name, "type": "nominal"} for name in ("claim", "line", "verdict", "why")]
    spec = {
        "data": {"values": cells},
        "encoding": {
            "x": {"field": "claim", "type": "nominal", "title": None, "sort": claims,
                  "axis": {"labelAngle": 0, "orient": "top", "labelOverlap": True, "ticks": False, "domain": False},
                  "scale": {"paddingInner": 0.06}},
            "y": {"field": "line", "type": "nominal", "title": None, "sort": lines,
                  "axis": {"labelLimit": 140, "ticks": False, "domain": False}, "scale": {"paddingInner": 0.08}},
        },
        "layer": [
            {"mark": {"type": "rect", "cornerRadius": 4},
             "encoding": {"color": {"field": "verdict", "type": "nominal", "scale": scale,
                                    "legend": {**_legend("verdict"), "values": present, "columns": 2}},
                          "tooltip": fields}},
            {"mark": {"type": "text", "fontSize": 15, "fontWeight": "bold", "color": "#ffffff"},
             "encoding": {"text": {"field": "mark"}}},
        ],
    }  # fmt: skip
    return Figure("Verdicts by claim", "verdict", alt, spec, 64 * max(1, len(lines)), wide=True)
