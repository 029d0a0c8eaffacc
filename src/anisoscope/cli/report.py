"""`report`, `figure`, `compare` and `serve`: what can be seen of runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from anisoscope.cli.app import app, escape, stderr

Runs = Annotated[list[Path], typer.Argument(help="Run folders.")]


@app.command(
    epilog="""Examples:

    anisoscope report runs/exp1

    anisoscope report runs/a runs/b runs/c --out compared.html
"""
)
def report(
    runs: Runs,
    out: Annotated[Path | None, typer.Option(help="The .html file; report.html in the first run by default.")] = None,
) -> None:
    """One self-contained HTML page to send to a colleague: sentences, charts, cards, all records inside."""
    from anisoscope.report.page import write_report
    from anisoscope.store import Run

    opened = [Run.open(path) for path in runs]
    written = write_report(opened, out or opened[0].path / "report.html")
    stderr().print(f"report: {escape(str(written))} ({written.stat().st_size / 1e6:.1f} MB)")


@app.command(epilog="Examples:\n\n    anisoscope serve runs/\n\n    anisoscope serve runs/ --host 0.0.0.0 --port 9000")
def serve(
    folder: Annotated[Path, typer.Argument(help="A folder with runs in it, at any depth.")] = Path("runs"),
    host: Annotated[str, typer.Option(help="The address to bind; others than loopback ask for a token.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port to listen on.")] = 8733,
) -> None:
    """All runs of a folder on a live page that grows while they do."""
    from anisoscope.report.live import serve as serve_folder

    serve_folder(str(folder), host=host, port=port, told=lambda url: stderr().print(f"open {escape(url)}"))
