"""`doctor`: check the installation."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from anisoscope.cli.app import app, stderr, stdout

_MARKS = {"ok": "[green]✓[/]", "missing": "[dim]–[/]", "limited": "[yellow]![/]", "broken": "[bold red]✗[/]"}
_LEGEND = "✓ works   – not installed, optional   ! works, with a caveat   ✗ necessary and does not work"


@app.command(epilog="Examples:\n\n    anisoscope doctor\n\n    anisoscope doctor --thorough --json")
def doctor(
    thorough: Annotated[
        bool, typer.Option("--thorough", help="Also start a browser and Ray, if they are installed.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the checks as one JSON list, and nothing else.")
    ] = False,
) -> None:
    """Check the installation: versions, devices, folders, the hub, optional packages.

    Packages and matrix products are tried in subprocesses. The exit code is 1 only if something that every measurement
    needs does not work.
    """
    from anisoscope.environment import checks

    with stderr().status("checking"):
        results = list(checks(thorough))
    if as_json:
        typer.echo(json.dumps([asdict(check) for check in results]))
    else:
        table = Table.grid(padding=(0, 2))
        for check in results:
            table.add_row(_MARKS[check.state], check.what, f"[dim]{escape(check.detail)}[/]")
        stdout().print(table)
        stdout().print(f"[dim]{_LEGEND}[/]")
    if any(check.state == "broken" for check in results):
        raise typer.Exit(1)
