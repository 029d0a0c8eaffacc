"""`demo`: the first thing a newcomer sees."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from anisoscope.cli.app import app, escape, progress_bar, stderr


@app.command(epilog="Example:\n\n    anisoscope demo --out runs/demo")
def demo(
    out: Annotated[Path, typer.Option(help="Where the picture goes.")] = Path("runs/demo"),
) -> None:
    """What the instrument says of clouds whose answers are known, as a table and a picture."""
    from anisoscope.demo import measure_clouds
    from anisoscope.report.charts import clouds_chart, save_chart
    from anisoscope.report.terminal import clouds_table

    with progress_bar("clouds", None) as told:
        found = measure_clouds(told)
    Console().print(clouds_table(found.records, found.metrics))
    out.mkdir(parents=True, exist_ok=True)
    picture = save_chart(clouds_chart(found.points, found.records), out / "clouds.png")
    stderr().print(f"picture: {escape(str(picture))}")
