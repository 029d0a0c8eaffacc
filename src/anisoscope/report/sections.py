"""The parts of a report that are plain HTML, as values for its template: results, claims, facts, metric cards."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from anisoscope.records import headline_variant
from anisoscope.report.reported_run import ReportedRun
from anisoscope.report.sentences import PHRASES, WITHOUT, by_layer, error_text, number
from anisoscope.report.streams import metric_title
from anisoscope.report.tables import NONE, Row, parse_site
from anisoscope.report.tiles import svg_path
from anisoscope.store.run import Run

RowsByMetric = Mapping[str, Sequence[Row]]
_HIDDEN_FACTS = ("metrics", "removed")  # shown elsewhere


@dataclass(frozen=True)
class CurveRow:
    """One line of the headline table: a metric over the layers."""

    name: str
    tokens: str
    path: str  # of the small curve, as SVG
    ends: list[tuple[str, str]]  # first, highest and last: (value with error, site)


@dataclass(frozen=True)
class RunResults:
    """All numbers of one run at its last step."""

    label: str
    curves: list[CurveRow]  # of the metrics that have a phrase
    more_curves: list[CurveRow]  # of all others
    numbers: list[list[str]]  # if there are no curves: metric, variant, site, value, null value, n


def run_results(run: ReportedRun) -> RunResults:
    """The tables of all numbers of one run at its last step."""
    cards, rows = run.cards, run.rows
    curves = {metric: _curve_rows(metric, rows[metric], headline_variant(cards.get(metric, {}))) for metric in rows}
    first = [line for metric in PHRASES if metric in rows for line in curves[metric]]
    more = [line for metric in rows if metric not in PHRASES for line in curves[metric]]
    return RunResults(run.label, first, more, [] if first else _number_rows(rows))


def _number_rows(rows: RowsByMetric) -> list[list[str]]:
    """If there are no layers: one line per number."""
    return [
        [
            metric,
            ", ".join(f"{key[2:]} {value}" for key, value in row.items() if key[:2] == "v_" and value != NONE),
            row["site"],
            number(row["value"]) + error_text(row["error"], percent=False),
            "" if row["null"] is None else number(row["null"]),
            "" if row["n"] is None else f"{row['n']:,}",
        ]
        for metric in rows
        for row in rows[metric]
        if row["index"] is None and row["layer"] is None and row["value"] is not None and "v_verdict" not in row
    ]


def _curve_rows(metric: str, rows: Sequence[Row], headline: Mapping[str, Any]) -> list[CurveRow]:
    """One line per stream and token policy, of the last step and the headline variant, or else the first."""
    flat = [row for row in rows if row["index"] is None and row["value"] is not None and row["layer"] is not None]
    if not flat:
        return []
    last = max(row["step"] for row in flat)
    streams: dict[str, list[Row]] = {}
    for row in flat:
        if row["step"] == last:
            streams.setdefault(row["stream"], []).append(row)
    return [line for stream, part in streams.items() for line in _stream_rows(metric, stream, part, headline)]


def _stream_rows(metric: str, stream: str, rows: Sequence[Row], headline: Mapping[str, Any]) -> list[CurveRow]:
    main = [row for row in rows if all(row.get(f"v_{key}") == value for key, value in headline.items())]
    variant = {key: value for key, value in (main or rows)[0].items() if key.startswith("v_")}
    labels = {key.removeprefix("v_"): value for key, value in variant.items() if value != NONE}
    same = [row for row in rows if all(row.get(key) == value for key, value in variant.items())]
    phrase = PHRASES.get(metric)
    percent = phrase is not None and phrase.percent
    heads = any(row["head"] is not None for row in same)
    about = [*(f"{key}={value}" for key, value in labels.items()), *(["mean over heads"] if heads else [])]
    name = " ".join([metric_title(metric, stream), *about])
    lines = []
    for policy in dict.fromkeys(row["tokens"] for row in same):
        curve = by_layer([row for row in same if row["tokens"] == policy])
        errors = {row["layer"]: row["error"] for row in same if row["tokens"] == policy and row["head"] is None}
        sites = {row["layer"]: row["site"] if row["head"] is None else _layer_site(row["site"]) for row in same}
        start, top, end = min(curve), max(curve, key=lambda layer: curve[layer]), max(curve)
        ends = [
            (number(curve[layer], percent) + error_text(errors.get(layer), percent), sites[layer])
            for layer in (start, top, end)
        ]
        lines.append(CurveRow(name, policy, _curve_path(list(curve.values())), ends))
    return lines


def _layer_site(text: str) -> str:
    """The site of a layer's heads together: `q.3` for `q.3.1`."""
    return str(replace(parse_site(text), head=None))


def _curve_path(values: Sequence[float]) -> str:
    return svg_path(values, values) if len(values) > 1 else ""


def run_facts(run: Run) -> list[tuple[str, str]]:
    """What was measured and how, as (name, value)."""
    facts = [("run", run.name), ("created", run.created), ("command", run.command or "–")]
    for name, value in run.info.items():
        if name not in _HIDDEN_FACTS:
            facts += _flat(name, value)
    removed = run.info.get("removed")
    if isinstance(removed, Mapping):
        facts.append((f"left out under {WITHOUT}", f"first tokens and {removed.get('count', 0)} massive tokens"))
    return facts


def _flat(name: str, value: Any) -> list[tuple[str, str]]:
    """A fact as lines of text; nested facts have the names of both, empty ones are left out."""
    if isinstance(value, Mapping):
        return [line for key, inner in value.items() for line in _flat(f"{name}: {key}", inner)]
    if value is None or value == [] or value == "":
        return []
    return [(name.replace("_", " "), ", ".join(map(str, value)) if isinstance(value, list) else str(value))]


def metric_cards(cards: Mapping[str, Mapping[str, Any]], metrics: Sequence[str]) -> list[dict[str, Any]]:
    """The cards of these metrics: meaning, formula, range, invariances, paper, how to read."""
    return [_card(metric, cards[metric]) for metric in metrics if metric in cards]


def _card(metric: str, card: Mapping[str, Any]) -> dict[str, Any]:
    low, high = card.get("low"), card.get("high")
    text = str(card.get("text", ""))
    facts = [
        ("range", f"{'−∞' if low is None else f'{low:g}'} … {'∞' if high is None else f'{high:g}'}"),
        ("unchanged by", ", ".join(map(str, card.get("ignores", ()))) or "nothing"),
        ("paper", paper_name(str(card.get("paper", "")))),
        ("how to read", _how_to_read(low, high)),
        ("version", str(card.get("version", ""))),
    ]
    return {
        "metric": metric,
        "meaning": str(card.get("meaning", "")),
        "formula": text.split("\n\n", 1)[1] if "\n\n" in text else "",
        "facts": [(name, value) for name, value in facts if value],
    }


def _how_to_read(low: Any, high: Any) -> str:
    scale = "between its two limits" if low is not None and high is not None else "on its own scale"
    return f"{scale}, and against the dotted line if there is one; two values differ if their bands do not overlap"


def paper_name(key: str) -> str:
    """The key of a paper as authors and year.

    >>> paper_name("razzhigaev2023")
    'Razzhigaev 2023'
    """
    match = re.fullmatch(r"([a-z]+)(\d{4})[a-z]?", key)
    return f"{match[1].capitalize()} {match[2]}" if match else key
