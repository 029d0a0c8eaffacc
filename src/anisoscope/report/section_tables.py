"""The tables of a report's sections, as plain texts for its template."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from anisoscope.report.reported_run import ReportedRun
from anisoscope.report.sentences import error_text, number
from anisoscope.report.sink_words import SinkWord, quoted, sink_words
from anisoscope.report.streams import site_text
from anisoscope.report.tables import NONE, Row, claim_of
from anisoscope.report.tangent_summary import TangentSummary
from anisoscope.report.topics import topic_of

_MOST_TOKENS = 12
_CONTEXT = 2  # the column of examples
_RAN = ". Run: "  # begins what was run, in the reason of a verdict


@dataclass(frozen=True)
class SectionTable:
    """A table of a section.

    Attributes:
        heads: The titles of the columns.
        rows: The cells. A cell of the column `badge` is a verdict; one of the column `context` has three texts: what
            is before a token, the token, and what is after it.
        caption: What the table shows.
        folded: Whether it is hidden until a reader opens it.
        badge: The position of the column of verdicts; None if there is none.
        wraps: Positions of columns with long texts.
        context: The position of the column of examples; None if there is none.
    """

    heads: Sequence[str]
    rows: Sequence[Sequence[str | tuple[str, str, str]]]
    caption: str = ""
    folded: bool = False
    badge: int | None = None
    wraps: Sequence[int] = ()
    context: int | None = None


def style_of_verdict(verdict: str) -> str:
    """The CSS class of a verdict."""
    return re.sub(r"[^a-z]+", "-", verdict.lower())


def massive_table(run: ReportedRun, *, named: bool) -> SectionTable | None:
    """The massive tokens in words: how often each is left out, with its context, where first, and how long it is."""
    removed = run.info["removed"]
    words = sink_words(removed)
    if not words or run.kind not in ("model", "training"):
        return None
    rows = [
        [
            quoted(word),
            f"{word.count:,}",
            word.context or "",
            site_text(word.site) if word.site else "",
            "" if word.norm is None else f"{word.norm:,.0f} ×",
        ]
        for word in words[:_MOST_TOKENS]
    ]
    heads = ["token", "times", "for example", "first massive at", "largest norm / median there"]
    filled = [column for column in range(len(heads)) if any(row[column] for row in rows)]
    context = filled.index(_CONTEXT) if _CONTEXT in filled else None
    table = [[row[i] for i in filled] for row in rows]
    return SectionTable([heads[i] for i in filled], table, _massive_caption(run, words, named), context=context)


def _massive_caption(run: ReportedRun, words: Sequence[SinkWord], named: bool) -> str:
    """How many massive tokens there are, and of how many the table shows how often each occurs."""
    total = run.info["removed"]["count"]
    shown, counted = (sum(word.count for word in part) for part in (words[:_MOST_TOKENS], words))
    whose = f" of {run.label}" if named else ""
    is_are = "is 1 massive token" if total == 1 else f"are {total:,} massive tokens"
    caption = (
        f"There {is_are}{whose}, longer than five medians of a layer. "
        "“Without first and massive tokens” leaves out these and the first token of each window"
    )
    if counted < total and not run.info["removed"]["words"]:
        caption += f". This run lists {counted:,} of them, and the table counts those"
    elif shown < total:
        caption += f". The table shows the most frequent, {shown:,} together"
    return caption + "."


def number_table(runs: Sequence[ReportedRun], topic: str) -> SectionTable | None:
    """The numbers of rows without layers: value with its error, null value, rows."""
    rows = [
        [*([run.label] if len(runs) > 1 else []), *_number_cells(metric, row)]
        for run in runs
        for metric, group in run.rows.items()
        for row in group
        if topic_of(metric) == topic and row["index"] is None and row["value"] is not None
    ]
    if not rows:
        return None
    heads = [*(["run"] if len(runs) > 1 else []), "metric", "value", "no structure", "rows"]
    return SectionTable(heads, rows)


def _number_cells(metric: str, row: Row) -> list[str]:
    variant = ", ".join(str(value) for key, value in row.items() if key[:2] == "v_" and value != NONE)
    name = metric + (f" ({variant})" if variant else "") + ("" if row["site"] == "vectors" else f", {row['site']}")
    null = "" if row["null"] is None else number(row["null"])
    count = "" if row["n"] is None else f"{row['n']:,}"
    return [name, number(row["value"]) + error_text(row["error"], False), null, count]


def tangent_tables(tests: Sequence[TangentSummary]) -> list[SectionTable]:
    """The verdicts at the largest rank, and those of smaller ranks folded."""
    largest = {(each.gradient, each.site, each.proxy): each.rank for each in sorted(tests, key=lambda each: each.rank)}
    main = [each for each in tests if each.rank == largest[each.gradient, each.site, each.proxy]]
    smaller = [each for each in tests if each not in main]
    heads = ["verdict", "effect", "gradient", "site", "basis", "rank", "energy", "chance"]
    caption = (
        "Energy: share of the gradients' squared length in a basis fitted on activations, ± one standard error. "
        "Chance: the share in a random basis of the same rank. A verdict needs q ≤ 0.05 for plain and for unit rows."
    )
    tables = [SectionTable(heads, [_tangent_row(each) for each in main], caption)]
    if smaller:
        tables.append(SectionTable(heads, [_tangent_row(each) for each in smaller], "Smaller ranks", folded=True))
    return tables


def _tangent_row(each: TangentSummary) -> list[str]:
    return [
        each.words,
        f"{each.enrichment:.2g} ×",
        each.gradient,
        site_text(each.site),
        each.proxy,
        str(each.rank),
        number(each.energy.value or 0.0, percent=True) + error_text(each.energy.error, percent=True),
        number(each.level, percent=True),
    ]


def verdict_table(rows: Sequence[Row]) -> SectionTable | None:
    """Every claim with its verdicts, the effect with its error, and the reason."""
    if not rows:
        return None
    cells, ran = [], Counter[str]()
    for row in rows:
        effect = NONE if row["value"] is None else number(row["value"]) + error_text(row["error"], False)
        reason, _, run = (row["note"] or "").partition(_RAN)
        ran[run] += 1
        cells.append([claim_of(row), str(row.get("v_line", "")), str(row.get("v_verdict", "")), effect, reason])
    [(common, _)] = ran.most_common(1)
    caption = f"Run: {common}" if common else ""
    heads = ["claim", "line", "verdict", "effect", "reason"]
    return SectionTable(heads, cells, caption, badge=2, wraps=(4,))
