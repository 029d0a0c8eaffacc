"""`demo`: two small models trained side by side, with three published curves as they grow."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from anisoscope.cli.app import AsJson, app, command_line, print_json, progress_bar, stderr, stdout
from anisoscope.cli.demo_view import CurvesDisplay, curves_view, introduction, judged_view
from anisoscope.cli.lab import Overwrite
from anisoscope.store.files import file_errors


@app.command(
    epilog="""Examples:

    anisoscope demo

    anisoscope demo --clouds
"""
)
def demo(
    out: Annotated[Path, typer.Option(help="Folder for runs, report and pictures.")] = Path("runs/demo"),
    steps: Annotated[int, typer.Option(min=1, help="Steps of each training.")] = 2000,
    clouds: Annotated[bool, typer.Option("--clouds", help="Only measure synthetic clouds with known values.")] = False,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Train a decoder and an encoder side by side and watch three published curves appear.

    Ends with the curves next to what the papers report, verdicts by the rules of `claims`, and a report. You can
    interrupt it at any time: the same command resumes.
    """
    if clouds:
        _clouds(out, as_json)
        return
    from anisoscope.cli.claims_page import write_claims_page
    from anisoscope.report.page import write_report
    from anisoscope.store.run import Run
    from anisoscope.studies.claims.judging import judge
    from anisoscope.studies.demo_training import SWITCHES, demo_evidence, keep_demo_evidence, train_side_by_side

    console = stderr() if as_json else stdout()
    console.print(introduction(steps))
    switches = {**SWITCHES, "steps": steps}
    try:
        with CurvesDisplay(console, steps) as display:
            trainings = train_side_by_side(out, switches, on_change=display, overwrite=overwrite)
    except KeyboardInterrupt:
        again = escape(command_line().replace(" --overwrite", ""))
        stderr().print(f"Stopped, and saved in {escape(str(out))}. Resume with: {again}", soft_wrap=True)
        raise typer.Exit(130) from None
    console.print(curves_view(trainings, steps))
    with stderr().status("judging claims"):
        evidence = demo_evidence(trainings)
        judged = [(claim, judge(claim, each)) for claim, each in evidence]
    console.print(judged_view(judged))
    with stderr().status("writing the pages"):
        claims = keep_demo_evidence(out / "claims", evidence)
        curves = write_claims_page(claims.path, out / "curves.html")
        report = write_report([*(Run.open(each.folder) for each in trainings.values()), claims], out / "report.html")
    if as_json:
        print_json([verdict.to_record().to_json() for _, pair in judged for verdict in pair])
        return
    console.print(
        f"[bold]curves[/]  {escape(str(curves))}  [dim]the three curves, verdicts and reasons[/]", soft_wrap=True
    )
    console.print(f"[bold]report[/]  {escape(str(report))}  [dim]everything that was measured[/]", soft_wrap=True)
    console.print("[dim]next    anisoscope measure MODEL --text FILE · anisoscope claims run --help[/]", soft_wrap=True)


def _clouds(out: Path, as_json: bool) -> None:
    """Measure synthetic clouds with known values; print a table and save a picture."""
    from anisoscope.report.charts import clouds_chart, save_chart
    from anisoscope.report.terminal import clouds_table
    from anisoscope.studies.demo_clouds import measure_clouds

    with file_errors("create", out):
        out.mkdir(parents=True, exist_ok=True)
    with progress_bar("clouds", None) as bar:
        measured = measure_clouds(bar)
    if as_json:
        print_json({name: [record.to_json() for record in records] for name, records in measured.records.items()})
    else:
        stdout().print(clouds_table(measured.records, measured.metrics))
    picture = save_chart(clouds_chart(measured.points, measured.records), out / "clouds.png")
    stderr().print(f"picture: {escape(str(picture))}")
