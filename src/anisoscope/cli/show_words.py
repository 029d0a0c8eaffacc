"""The command `words`: explain the words in tables and reports."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from anisoscope.cli.app import AsJson, app, print_json, stdout
from anisoscope.errors import unknown


@app.command(epilog="Examples:\n\n    anisoscope words\n\n    anisoscope words null")
def words(
    word: Annotated[str | None, typer.Argument(help="Explain one word.")] = None,
    as_json: AsJson = False,
) -> None:
    """Explain the words in tables, reports and messages; `metrics` explains the metrics."""
    from anisoscope.report.glossary import WORDS, meanings

    known = meanings()
    if word is not None and word not in known:
        raise unknown("word", word, known)
    shown = WORDS if word is None else {word: known[word]}
    if as_json:
        print_json(shown)
        return
    table = Table.grid(padding=(0, 2))
    for name, meaning in shown.items():
        table.add_row(Text(name, style="bold"), Text(meaning.replace("`", "")))
    stdout().print(table)
