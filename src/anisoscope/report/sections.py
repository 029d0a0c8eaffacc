"""The parts of a page that are plain HTML: sentences, headline table, claims, facts, cards. All texts are escaped."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from anisoscope.report.caveats import caveats
from anisoscope.report.reading import PHRASES, WITHOUT, by_place, headlines, number
from anisoscope.report.tidy import NONE, Row, claim_of
from anisoscope.store.run import Run

RowsByMetric = Mapping[str, Sequence[Row]]
_HIDDEN_FACTS = ("metrics", "removed")  # shown elsewhere


def reading_part(runs: Sequence[tuple[str, Run, RowsByMetric]]) -> str:
    """What the runs say: sentences, the headline table and caveats, run by run."""
    parts = ["<section><h2>What it says</h2>"]
    for label, run, rows in runs:
        if len(runs) > 1:
            parts.append(f"<h3>{escape(label)}</h3>")
        items = [f"<b>{escape(metric)}</b> · {escape(text)}" for metric, text in headlines(rows)]
        table = headline_table(rows)
        # Beside other runs the sentences matter more than every number.
        parts += [_list(items), _folded("the numbers", table) if table and len(runs) > 1 else table]
        found = caveats(rows, run.info)
        if found:
            parts += ["<h3>Keep in mind</h3>", _list(map(escape, found))]
    return "\n".join([*parts, "</section>"])


def headline_table(rows: RowsByMetric) -> str:
    """One line a metric and token policy: its curve over the layers, the first, the highest and the last value."""
    first = [line for metric in PHRASES if metric in rows for line in _headline_rows(metric, rows[metric])]
    more = [line for metric in rows if metric not in PHRASES for line in _headline_rows(metric, rows[metric])]
    heads = ("metric", "tokens", "over layers", "first", "highest", "last")
    table = _table(heads, first) if first else _numbers_table(rows)
    return table + (_folded("more metrics over layers", _table(heads, more)) if more else "")


def _numbers_table(rows: RowsByMetric) -> str:
    """Where there are no layers: one line a number, with its error and what a cloud without structure would give."""
    lines = [
        [
            f"<code>{escape(metric)}</code>",
            escape(", ".join(f"{key[2:]} {value}" for key, value in row.items() if key[:2] == "v_" and value != NONE)),
            escape(row["site"]),
            number(row["value"]) + _error(row["error"], percent=False),
            "" if row["null"] is None else number(row["null"]),
            "" if row["n"] is None else f"{row['n']:,}",
        ]
        for metric in rows
        for row in rows[metric]
        if row["index"] is None and row["place"] is None and row["value"] is not None and "v_verdict" not in row
    ]
    return _table(("metric", "variant", "site", "value", "without structure", "n"), lines) if lines else ""


def _folded(title: str, inside: str) -> str:
    return f"<details><summary>{title}</summary>{inside}</details>"


def _headline_rows(metric: str, rows: Sequence[Row]) -> list[list[str]]:
    flat = [row for row in rows if row["index"] is None and row["value"] is not None and row["place"] is not None]
    if not flat or "v_axis" in flat[0]:  # coordinates of a drawing say nothing in a table
        return []
    last = max(row["step"] for row in flat)
    first = flat[0]
    variant = {key: value for key, value in first.items() if key.startswith("v_")}
    told = {key.removeprefix("v_"): value for key, value in variant.items() if value != NONE}
    same = [
        row
        for row in flat
        if row["step"] == last
        and row["stream"] == first["stream"]
        and all(row.get(key) == value for key, value in variant.items())
    ]
    phrase = PHRASES.get(metric)
    percent = phrase is not None and phrase.percent
    name = " ".join([metric, *(f"{key}={value}" for key, value in told.items())])
    lines = []
    for policy in dict.fromkeys(row["tokens"] for row in same):
        curve = by_place([row for row in same if row["tokens"] == policy])
        errors = {row["place"]: row["error"] for row in same if row["tokens"] == policy and row["head"] is None}
        sites = {row["place"]: row["site"] for row in same}
        start, top, end = min(curve), max(curve, key=lambda place: curve[place]), max(curve)
        lines.append(
            [
                f"<code>{escape(name)}</code>",
                escape(policy),
                sparkline(list(curve.values())),
                *(
                    f"{number(curve[place], percent)}{_error(errors.get(place), percent)}"
                    f" <span class='where'>{escape(sites[place])}</span>"
                    for place in (start, top, end)
                ),
            ]
        )
    return lines


def _error(error: float | None, percent: bool) -> str:
    if error is None:
        return ""
    return (
        f" <span class='where'>± {100 * error:.2g} %</span>"
        if percent
        else f" <span class='where'>± {error:.2g}</span>"
    )


def sparkline(values: Sequence[float]) -> str:
    """A curve as a small drawing."""
    if len(values) < 2:
        return ""
    low, high = min(values), max(values)
    height = (high - low) or 1.0
    points = (f"{100 * i / (len(values) - 1):.1f},{28 - 26 * (v - low) / height:.1f}" for i, v in enumerate(values))
    path = "M" + "L".join(points)
    return f'<svg class="spark" viewBox="0 0 100 30" preserveAspectRatio="none"><path d="{path}"/></svg>'


def claims_part(rows: Sequence[Row]) -> str:
    """The panel of claims: each with its verdict as published and under the strongest control, effect and reason."""
    if not rows:
        return ""
    heads = ("claim", "line", "verdict", "effect", "reason")
    return f"<section><h2>Claims</h2>{_table(heads, [_claim_row(row) for row in rows], style='claims')}</section>"


def _claim_row(row: Row) -> list[str]:
    verdict = str(row.get("v_verdict", ""))
    effect = "–" if row["value"] is None else number(row["value"]) + _error(row["error"], percent=False)
    style = re.sub(r"[^a-z]+", "-", verdict.lower())
    return [
        escape(claim_of(row)),
        escape(str(row.get("v_line", ""))),
        f'<span class="verdict {style}">{escape(verdict)}</span>',
        effect,
        escape(row["note"] or ""),
    ]


def measured_part(runs: Sequence[tuple[str, Run, RowsByMetric]]) -> str:
    """What was measured and how, as each run says of itself."""
    parts = ["<section><h2>What was measured, and how</h2>"]
    for label, run, _ in runs:
        table = "".join(f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in _facts(run))
        opened = " open" if len(runs) == 1 else ""
        inside = f"<div class='scroll'><table class='facts'>{table}</table></div>"
        parts.append(f"<details{opened}><summary>{escape(label)}</summary>{inside}</details>")
    return "\n".join([*parts, "</section>"])


def _facts(run: Run) -> list[tuple[str, str]]:
    facts = [("run", run.name), ("made", run.created), ("command", run.command or "–")]
    for name, value in run.info.items():
        if name not in _HIDDEN_FACTS:
            facts += _flat(name, value)
    removed = run.info.get("removed")
    if isinstance(removed, Mapping):
        facts.append((f"left out under {WITHOUT}", f"first tokens and {removed.get('count', 0)} massive tokens"))
    return facts


def _flat(name: str, value: Any) -> list[tuple[str, str]]:
    """A fact as lines of text; what is inside another fact is named after both, what is empty is left out."""
    if isinstance(value, Mapping):
        return [line for key, inner in value.items() for line in _flat(f"{name}: {key}", inner)]
    if value is None or value == [] or value == "":
        return []
    return [(name.replace("_", " "), ", ".join(map(str, value)) if isinstance(value, list) else str(value))]


def cards_part(cards: Mapping[str, Mapping[str, Any]], metrics: Sequence[str]) -> str:
    """The cards of the metrics shown: meaning, formula, range, what leaves them unchanged, paper, how to read."""
    known = [(metric, cards[metric]) for metric in metrics if metric in cards]
    if not known:
        return ""
    return (
        f"<section id='cards'><h2>The metrics</h2><details><summary>{len(known)} metric cards: meaning, formula, "
        f"range, paper</summary>{''.join(_card(metric, card) for metric, card in known)}</details></section>"
    )


def _card(metric: str, card: Mapping[str, Any]) -> str:
    low, high = card.get("low"), card.get("high")
    text = str(card.get("text", ""))
    rest = text.split("\n\n", 1)[1] if "\n\n" in text else ""
    facts = [
        ("range", f"{'−∞' if low is None else f'{low:g}'} … {'∞' if high is None else f'{high:g}'}"),
        ("unchanged by", ", ".join(map(str, card.get("ignores", ()))) or "nothing"),
        ("paper", paper_said(str(card.get("paper", "")))),
        ("how to read", _how_to_read(low, high)),
        ("version", str(card.get("version", ""))),
    ]
    table = "".join(f"<tr><th>{name}</th><td>{escape(value)}</td></tr>" for name, value in facts if value)
    title = f"<b>{escape(metric)}</b> · {escape(str(card.get('meaning', '')))}"
    inside = f"<pre>{escape(rest)}</pre><table class='facts'>{table}</table>"
    return f"<details data-metric='{escape(metric)}'><summary>{title}</summary>{inside}</details>"


def _how_to_read(low: Any, high: Any) -> str:
    bounded = "between its two ends" if low is not None and high is not None else "on its own scale"
    return f"{bounded}; against the dotted line where there is one; two values differ when their bands do not meet"


def paper_said(key: str) -> str:
    """A paper's key in words.

    >>> paper_said("razzhigaev2023")
    'Razzhigaev 2023'
    """
    found = re.fullmatch(r"([a-z]+)(\d{4})[a-z]?", key)
    return f"{found[1].capitalize()} {found[2]}" if found else key


def _list(items: Iterable[str]) -> str:
    lines = "".join(f"<li>{item}</li>" for item in items)
    return f"<ul class='said'>{lines}</ul>" if lines else ""


def _table(heads: Sequence[str], lines: Sequence[Sequence[str]], style: str = "lines") -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in heads)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in line)}</tr>" for line in lines)
    return (
        f"<div class='scroll'><table class='{style}'><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )
