"""`doctor`: what is installed and what works."""

from __future__ import annotations

import json
from dataclasses import asdict

import typer
from rich.markup import escape
from rich.table import Table

from anisoscope.cli.app import AsJson, app, stdout

_MARKS = {"ok": "[green]✓[/]", "missing": "[dim]–[/]", "broken": "[bold red]✗[/]"}


@app.command(epilog="Example:\n\n    anisoscope doctor")
def doctor(as_json: AsJson = False) -> None:
    """What is installed here and what works: versions, devices, folders, optional parts."""
    from anisoscope.doctor import checks

    found = list(checks())
    if as_json:
        typer.echo(json.dumps([asdict(check) for check in found]))
    else:
        table = Table.grid(padding=(0, 2))
        for check in found:
            table.add_row(_MARKS[check.state], check.what, f"[dim]{escape(check.detail)}[/]")
        stdout().print(table)
    if any(check.state == "broken" for check in found):
        raise typer.Exit(1)
