"""`recompute` and `export`: work on a stored run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from anisoscope.cli.app import AsJson, WrittenAsJson, app, print_json, print_written, stdout
from anisoscope.cli.options import split_names


@app.command(epilog="Example:\n\n    anisoscope recompute runs/exp1 --metrics rankme,two_nn")
def recompute(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    metrics: Annotated[
        list[str], typer.Option("--metrics", "-m", help="Metrics by name, separated by commas; may be repeated.")
    ],
    as_json: AsJson = False,
) -> None:
    """Compute metrics for a stored run, from its statistics."""
    from anisoscope.measurement.recompute import recompute as recompute_run
    from anisoscope.report.run_tables import layers_table

    names = split_names(metrics) or []
    result = recompute_run(run, names)
    records = [record for record in result if record.metric in names]
    if as_json:
        print_json([record.to_json() for record in records])
    else:
        last = max((record.step for record in records), default=0)
        shown = [record for record in records if record.step == last]
        stdout().print(layers_table(shown, result.info, title=str(run)))


@app.command(epilog="Example:\n\n    anisoscope export runs/exp1 --to run.parquet")
def export(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    to: Annotated[Path, typer.Option(help="A .parquet, .csv or .jsonl file.")],
    as_json: WrittenAsJson = False,
) -> None:
    """Write the records of a run to one file for pandas, R or a spreadsheet."""
    from anisoscope.store.run import Run

    print_written("records", Run.open(run).export(to), as_json=as_json)
