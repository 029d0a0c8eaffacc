"""`doctor`: check the installation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from anisoscope.cli.app import app, print_json, stderr, stdout

if TYPE_CHECKING:
    from anisoscope.environment import Check

_MARKS = {"ok": "[green]✓[/]", "missing": "[dim]–[/]", "limited": "[yellow]![/]", "broken": "[bold red]✗[/]"}
_LEGEND = "✓ works   – optional, not installed   ! works, with a caveat   ✗ needed, does not work"


@app.command(epilog="Examples:\n\n    anisoscope doctor\n\n    anisoscope doctor --thorough --json")
def doctor(
    full: Annotated[bool, typer.Option("--all", help="Also list the packages that work, with their versions.")] = False,
    thorough: Annotated[
        bool, typer.Option("--thorough", help="Also import every package, and start a browser and Ray.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the checks as one JSON list, and nothing else.")
    ] = False,
) -> None:
    """Check the installation: devices, folders, the hub, packages and their versions.

    Packages and matrix products are tried in subprocesses. The exit code is 1 only if something that every measurement
    needs does not work.
    """
    from anisoscope.environment import checks

    with stderr().status("checking"):
        results = list(checks(thorough))
    if as_json:
        print_json([asdict(check) for check in results])
    else:
        stdout().print(_view(results, full))
    if any(check.state == "broken" for check in results):
        raise typer.Exit(1)


def _view(results: Sequence[Check], full: bool) -> RenderableType:
    """One line of result, then the checks; packages that work are only counted unless `full`."""
    broken = [check.what for check in results if check.state == "broken"]
    headline = Text("Everything needed works.", style="bold green")
    if broken:
        headline = Text(f"Needed and not working: {', '.join(broken)}.", style="bold red")
    table = Table.grid(padding=(0, 2))
    working = [check for check in results if check.library and check.state == "ok"]
    for check in results:
        if full or check not in working:
            table.add_row(_MARKS[check.state], Text(check.what), Text(check.detail, style="dim"))
    if not full:
        table.add_row(_MARKS["ok"], f"{len(working)} packages", Text("installed and working; --all lists them", "dim"))
    return Group(headline, Text(""), table, Text(_LEGEND, style="dim"))
