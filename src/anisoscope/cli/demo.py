"""`demo`: the first thing a newcomer sees."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from anisoscope.cli.app import app, command_line, progress_bar, stderr, stdout
from anisoscope.cli.lab import say_why_stopped, training_bar
from anisoscope.cli.lab_tables import findings_table, opening, story_table
from anisoscope.store.files import explained


@app.command(
    epilog="""Examples:

    anisoscope demo

    anisoscope demo --clouds
"""
)
def demo(
    out: Annotated[Path, typer.Option(help="Where runs, report and pictures go.")] = Path("runs/demo"),
    clouds: Annotated[bool, typer.Option("--clouds", help="Only clouds of points whose answers are known.")] = False,
) -> None:
    """Three small transformers grow up in front of the instrument: a table, the claims, and one page to keep.

    A second call with the same --out reads what the first one trained.
    """
    if clouds:
        _clouds(out)
        return
    import torch

    from anisoscope.report.page import write_report
    from anisoscope.store.run import Run
    from anisoscope.studies.story import SWITCHES, findings, grow, rows

    torch.set_num_threads(1)  # models this small gain little from a second one, and lose much where others work too
    console = stdout()
    console.print(opening(int(SWITCHES["steps"])))
    grown = grow(out, partial(training_bar, stays=True))
    say_why_stopped([each.trained for each in grown.values()], again=command_line())
    console.print(story_table(rows(grown), grown))
    console.print(findings_table(findings(grown)))
    with stderr().status("writing the report"):
        report = write_report([Run.open(each.trained.folder) for each in grown.values()], out / "report.html")
    console.print(f"[bold]report[/]  {escape(str(report))}", soft_wrap=True)
    console.print("[dim]next    anisoscope measure MODEL --text FILE · anisoscope lab twins --help[/]", soft_wrap=True)


def _clouds(out: Path) -> None:
    """What the instrument says of clouds whose answers are known, as a table and a picture."""
    from anisoscope.report.charts import clouds_chart, save_chart
    from anisoscope.report.terminal import clouds_table
    from anisoscope.studies.clouds import measure_clouds

    with explained("create", out):
        out.mkdir(parents=True, exist_ok=True)
    with progress_bar("clouds", None) as told:
        found = measure_clouds(told)
    stdout().print(clouds_table(found.records, found.metrics))
    picture = save_chart(clouds_chart(found.points, found.records), out / "clouds.png")
    stderr().print(f"picture: {escape(str(picture))}")
