"""What `measure` and `show` print of a run: sentences, a short table, caveats."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
from rich.console import Group, RenderableType
from rich.text import Text

from anisoscope.records import COLUMNS, Record
from anisoscope.report.caveats import caveats
from anisoscope.report.questions import QuestionAnswer, answers, questions_table, streams_of
from anisoscope.report.run_tables import GLOSSARY, has_layer, layer_rows, layers_table, stream_title
from anisoscope.report.sentences import headlines
from anisoscope.report.tables import Row, by_metric, first_and_last, parse_site, records_of, rows_of, with_x
from anisoscope.report.terminal import sentences_table

_SHORT = 8  # rows up to which a table is printed in full


def frame_of(records: Sequence[Record]) -> pd.DataFrame:
    """Records as the table that `Run.frame` returns."""
    rows = [{**record.to_json(), "variant": json.dumps(dict(record.variant))} for record in records]
    return with_x(pd.DataFrame(rows, columns=list(COLUMNS), dtype=object))


def overview(table: pd.DataFrame, info: Mapping[str, Any], title: str, *, full: bool = False) -> RenderableType:
    """The last step of a run in sentences, in a table and in caveats.

    Args:
        table: The records of one run, as `Run.frame` returns them.
        info: What the run reports of itself.
        title: A line above everything.
        full: Print every number. Otherwise a long table is replaced by the headline metrics, one row per question.
    """
    shown = records_of(table[table["step"] == table["step"].max()])
    rows = rows_by_metric(table)
    tokens = not all(parse_site(record.site).kind in ("vectors", "weight") for record in shown)
    sentences = [(metric, in_rows(text, tokens)) for metric, text in headlines(rows, info)]
    notes = [in_rows(text, tokens) for text in caveats(rows, info)]
    results = {stream: answers(rows, stream) for stream in streams_of(rows)}
    whole = full or _length(shown) <= _SHORT or not any(results.values())
    numbers = layers_table(shown, info, "") if whole else _questions(results, tokens, len(rows))
    return Group(
        Text(title, style="bold"), Text(""), sentences_table(sentences, []), Text(""), numbers, _caveats(notes)
    )


def rows_by_metric(table: pd.DataFrame) -> dict[str, list[Row]]:
    """The rows of the first and last step of one run, by metric."""
    return {metric: rows_of(group) for metric, group in by_metric(first_and_last(table)).items()}


def in_rows(text: str, tokens: bool = False) -> str:
    """A text about tokens as one about rows, unless the rows are tokens.

    >>> in_rows("2 massive tokens; massive_tokens; --tokens")
    '2 massive rows; massive_tokens; --tokens'
    """
    return text if tokens else re.sub(r"(?<![\w-])token(s?)\b", r"row\1", text)


def _length(records: Sequence[Record]) -> int:
    """The number of rows of the full table."""
    layers = sum(map(len, layer_rows(records).values()))
    return layers + sum(not has_layer(record) for record in records)


def _questions(results: Mapping[str, Sequence[QuestionAnswer]], tokens: bool, metrics: int) -> RenderableType:
    parts: list[RenderableType] = []
    for stream, found in results.items():
        title = "" if not tokens or list(results) == ["resid"] else stream_title(stream)
        parts += [questions_table(found, title), Text("")]
    policy = "Values are without first and massive tokens if both were measured. " if tokens else ""
    return Group(*parts, Text(f"{policy}{metrics} metrics in all: see --all. {GLOSSARY}", style="dim"))


def _caveats(notes: Sequence[str]) -> RenderableType:
    if not notes:
        return Group()
    return Group(Text(""), Text("Caveats", style="bold"), *(Text(f"· {text}", style="dim") for text in notes))
