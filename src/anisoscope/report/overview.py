"""What `measure` and `show` print of a run: the thesis and the tiles of its report, a short table, caveats."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from anisoscope.records import COLUMNS, Record
from anisoscope.report.caveats import caveats
from anisoscope.report.cells import sparkline
from anisoscope.report.questions import QuestionAnswer, answers, questions_table, streams_of
from anisoscope.report.reported_run import ReportedRun, page_kind, reported_run
from anisoscope.report.run_tables import GLOSSARY, has_layer, layer_rows, layers_table, stream_title
from anisoscope.report.sentences import headlines, in_rows
from anisoscope.report.tables import Row, by_metric, first_and_last, records_of, rows_of, with_x
from anisoscope.report.terminal import sentences_table
from anisoscope.report.thesis import thesis_of
from anisoscope.report.tiles import Tile, tiles_of

_CURVE = 12  # bars of the small curve of a tile
_SHORT = 8  # rows up to which a table is printed in full


def frame_of(records: Sequence[Record]) -> pd.DataFrame:
    """Records as the table that `Run.frame` returns."""
    rows = [{**record.to_json(), "variant": json.dumps(dict(record.variant))} for record in records]
    return with_x(pd.DataFrame(rows, columns=list(COLUMNS), dtype=object))


def overview(table: pd.DataFrame, info: Mapping[str, Any], title: str, *, full: bool = False) -> RenderableType:
    """The last step of a run: the thesis and the tiles of its report, a table, sentences, caveats.

    Args:
        table: The records of one run, as `Run.frame` returns them.
        info: What the run reports of itself.
        title: A line above everything.
        full: Print every number. Otherwise a long table is replaced by the headline metrics, one row per question.
    """
    shown = records_of(table[table["step"] == table["step"].max()])
    run = reported_run(table.assign(run=title), info, title)
    tokens = run.of_tokens
    results = {stream: answers(run.rows, stream, run.cards) for stream in streams_of(run.rows)}
    answered = {each.metric for of_stream in results.values() for each in of_stream}
    others = [(metric, in_rows(text, tokens)) for metric, text in headlines(run.rows, info) if metric not in answered]
    notes = [in_rows(text, tokens) for text in caveats(run.rows, info)]
    whole = full or _length(shown) <= _SHORT or not any(results.values())
    numbers = layers_table(shown, info, "") if whole else _questions(results, tokens, len(run.rows))
    return Group(
        Text(title, style="dim"),
        lead(run),
        numbers,
        *([Text(""), sentences_table(others, [])] if others else []),
        _caveats(notes),
    )


def lead(run: ReportedRun) -> RenderableType:
    """The thesis and the tiles of a report of this run, for a terminal."""
    kind = page_kind([run])
    thesis = thesis_of([run], kind)
    rows = Table.grid(padding=(0, 2))
    for tile in tiles_of([run], kind):
        value = Text.assemble((tile.value, "bold"), (tile.error, "dim"))
        rows.add_row(value, Text(sparkline(tile.curve, _CURVE) if len(tile.curve) > 1 else ""), _tile_text(tile))
    texts = [Text(thesis.title, style="bold"), *([Text(thesis.detail)] if thesis.detail else [])]
    if thesis.title in (run.model_name, run.label):
        texts = []  # nothing stands out, and the name is above
    return Group(*texts, Text(""), rows, Text(""))


def _tile_text(tile: Tile) -> Text:
    detail = f" ({tile.detail})" if tile.detail else ""
    return Text.assemble(tile.label, (f"{detail} {tile.metric}", "dim"))


def rows_by_metric(table: pd.DataFrame) -> dict[str, list[Row]]:
    """The rows of the first and last step of one run, by metric."""
    return {metric: rows_of(group) for metric, group in by_metric(first_and_last(table)).items()}


def _length(records: Sequence[Record]) -> int:
    """The number of rows of the full table."""
    layers = sum(map(len, layer_rows(records).values()))
    return layers + sum(not has_layer(record) for record in records)


def _questions(results: Mapping[str, Sequence[QuestionAnswer]], tokens: bool, metrics: int) -> RenderableType:
    parts: list[RenderableType] = []
    for stream, of_stream in results.items():
        title = "" if not tokens or list(results) == ["resid"] else stream_title(stream)
        parts += [questions_table(of_stream, title), Text("")]
    policy = "Values are without first and massive tokens if both were measured. " if tokens else ""
    return Group(*parts, Text(f"{policy}{metrics} metrics in all: see --all. {GLOSSARY}", style="dim"))


def _caveats(notes: Sequence[str]) -> RenderableType:
    if not notes:
        return Group()
    return Group(Text(""), Text("Caveats", style="bold"), *(Text(f"· {text}", style="dim") for text in notes))
