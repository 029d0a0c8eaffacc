"""`demo`: three small models trained and measured in a few minutes."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from anisoscope.cli.app import app, progress_bar, stderr, stdout
from anisoscope.cli.claims import verdicts_view
from anisoscope.cli.lab import Overwrite, report_stopped, training_bar
from anisoscope.cli.lab_tables import demo_table, introduction
from anisoscope.store.files import file_errors


@app.command(
    epilog="""Examples:

    anisoscope demo

    anisoscope demo --clouds
"""
)
def demo(
    out: Annotated[Path, typer.Option(help="Folder for runs, report and pictures.")] = Path("runs/demo"),
    clouds: Annotated[bool, typer.Option("--clouds", help="Only measure synthetic clouds with known values.")] = False,
    overwrite: Overwrite = False,
) -> None:
    """Train three small transformers while measuring them: a table, verdicts on claims, and a report.

    Interrupt it at any time: the same command resumes.
    """
    if clouds:
        _clouds(out)
        return
    import torch

    from anisoscope.report.page import write_report
    from anisoscope.store.run import Run
    from anisoscope.studies.demo_training import SWITCHES, demo_verdicts, table_rows, train_models

    torch.set_num_threads(1)  # models this small gain little from a second thread, and lose much on a busy machine
    console = stdout()
    console.print(introduction(int(SWITCHES["steps"])))
    trainings = train_models(out, partial(training_bar, keep=True), overwrite=overwrite)
    report_stopped([each.trained for each in trainings.values()])
    console.print(demo_table(table_rows(trainings), trainings))
    with stderr().status("judging claims"):
        judged = demo_verdicts(trainings)
    console.print("[bold]Claims, judged by the rules of `anisoscope claims run`[/]")
    console.print("[dim]One training per model gives no interval, so every claim stays open.[/]")
    console.print(verdicts_view(judged, settle=False))
    console.print()
    with stderr().status("writing the report"):
        report = write_report([Run.open(each.trained.folder) for each in trainings.values()], out / "report.html")
    console.print(f"[bold]report[/]  {escape(str(report))}", soft_wrap=True)
    console.print("[dim]next    anisoscope measure MODEL --text FILE · anisoscope claims run --help[/]", soft_wrap=True)


def _clouds(out: Path) -> None:
    """Measure synthetic clouds with known values; print a table and save a picture."""
    from anisoscope.report.charts import clouds_chart, save_chart
    from anisoscope.report.terminal import clouds_table
    from anisoscope.studies.demo_clouds import measure_clouds

    with file_errors("create", out):
        out.mkdir(parents=True, exist_ok=True)
    with progress_bar("clouds", None) as bar:
        measured = measure_clouds(bar)
    stdout().print(clouds_table(measured.records, measured.metrics))
    picture = save_chart(clouds_chart(measured.points, measured.records), out / "clouds.png")
    stderr().print(f"picture: {escape(str(picture))}")
