"""`report`, `show`, `figure`, `compare` and `serve`: tables, charts and pages of runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.text import Text

from anisoscope.cli.app import AsJson, Metrics, WrittenAsJson, app, print_json, print_written, stderr, stdout
from anisoscope.cli.options import split_names
from anisoscope.errors import InputError
from anisoscope.store.files import parse_json

if TYPE_CHECKING:
    from anisoscope.store.run import Run

Runs = Annotated[list[Path], typer.Argument(help="Run folders, or folders with runs in them.")]


@app.command(
    epilog="""Examples:

    anisoscope report runs/exp1

    anisoscope report runs/a runs/b runs/c --out compared.html
"""
)
def report(
    runs: Runs,
    out: Annotated[Path | None, typer.Option(help="The .html file; default: report.html in the first folder.")] = None,
    as_json: WrittenAsJson = False,
) -> None:
    """Write one self-contained HTML page: the main result, a chart, question by question, and all records."""
    from anisoscope.report.page import write_report

    written = write_report(_open_runs(runs), out or runs[0] / "report.html")
    print_written("report", written, as_json=as_json)


@app.command(epilog="Examples:\n\n    anisoscope show runs/exp1\n\n    anisoscope show runs/exp1 --all")
def show(
    run: Annotated[Path, typer.Argument(help="A run folder, or a folder with runs in it.")],
    full: Annotated[bool, typer.Option("--all", help="Print every metric, not only the headline ones.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show a run in the terminal at its last step: the main result, the headline numbers, a short table, caveats."""
    opened = _open_runs([run])
    if as_json:
        print_json([record.to_json() for each in opened for record in each.records()])
        return
    for each in opened:
        _show(each, full)


def _show(opened: Run, full: bool) -> None:
    from anisoscope.report.views import rendered

    stdout().print(rendered(opened, full=full))


@app.command(
    epilog="""Examples:

    anisoscope figure runs/exp1 --metric two_nn --save fig.pdf

    anisoscope figure runs/a runs/b --metric isoscore --pick tokens=no-sink --save fig.svg

    anisoscope figure runs/exp1 --metric spectral_anisotropy --kind map --save map.png --dark
"""
)
def figure(
    runs: Runs,
    metric: Annotated[str, typer.Option("--metric", "-m", help="The metric to draw.")],
    save: Annotated[Path, typer.Option(help="The .pdf, .svg, .png, .html or .json file to write.")],
    kind: Annotated[
        str | None, typer.Option(help="Another kind of chart that fits: profile, steps, map, heads, curve …")
    ] = None,
    colour: Annotated[
        str | None, typer.Option("--colour", "--color", help="The field to colour by: tokens, run …")
    ] = None,
    pick: Annotated[list[str] | None, typer.Option(help="field=value of what is not drawn; may be repeated.")] = None,
    dark: Annotated[bool, typer.Option("--dark", help="Use a dark background.")] = False,
    width: Annotated[int, typer.Option(min=50, help="Of the plot, in pixels.")] = 520,
    height: Annotated[int, typer.Option(min=50, help="Of the plot, in pixels.")] = 300,
    as_json: WrittenAsJson = False,
) -> None:
    """Draw a figure for a paper: one metric of one or more runs, the chart chosen by the shape of its records."""
    from anisoscope.report.charts import plot, save_chart

    opened = _open_runs(runs)
    picked = dict(_pick(text) for text in pick or ())
    chart = plot(opened, metric, kind=kind, colour=colour, pick=picked, dark=dark, width=width, height=height)
    print_written("figure", save_chart(chart, save), as_json=as_json)


def _open_runs(paths: Sequence[Path]) -> list[Run]:
    """The runs of these folders, in the order given; a folder that only contains runs stands for all of them."""
    from anisoscope.report.run_index import RunIndex
    from anisoscope.store.run import Run

    opened = []
    for path in paths:
        inside = RunIndex(path).ids() if path.is_dir() and not (path / "run.json").exists() else {}
        opened += [Run.open(inside[name]) for name in sorted(inside)] or [Run.open(path)]
    return opened


def _pick(text: str) -> tuple[str, Any]:
    """`step=100` as ("step", 100); the value is a number if it can be."""
    field, equals, value = text.partition("=")
    if not equals:
        raise InputError(f"{text!r} is not a pick; write field=value, such as step=100 or tokens=no-sink")
    try:
        return field, parse_json(value)
    except ValueError:
        return field, value


@app.command(
    epilog="""Examples:

    anisoscope compare runs/a runs/b

    anisoscope compare runs/a runs/b --metrics two_nn,isoscore --sites
"""
)
def compare(
    first: Annotated[Path, typer.Argument(help="A run folder.")],
    second: Annotated[Path, typer.Argument(help="Another run folder.")],
    metrics: Metrics = None,
    sites: Annotated[bool, typer.Option("--sites", help="One line per number.")] = False,
    as_json: AsJson = False,
) -> None:
    """Compare two runs number by number: differences with errors, paired if both measured the same tokens.

    Models with different numbers of layers are matched by relative depth. Numbers that depend on the number of tokens
    are not compared if the runs measured different numbers.
    """
    from anisoscope.report.compare import differences, matched
    from anisoscope.report.terminal import differences_table, sites_table
    from anisoscope.store.run import Run

    one, other = Run.open(first), Run.open(second)
    shared = matched(one, other, split_names(metrics))
    both = shared.table
    last = both[both["step"] == both["step"].max()]  # what the table shows
    results = differences(one, other, both if sites or as_json else last, shared.pairs)
    title = f"{one.name} and {other.name}" + (", layers matched by relative depth" if shared.pairs.by_depth else "")
    notes = [Text(note, style="dim") for note in shared.notes]
    if as_json:
        print_json([each.to_json() for each in results])
        stderr().print(*notes, sep="\n")
    else:
        table = sites_table(results, title) if sites else differences_table(results, title, both["step"].nunique())
        stdout().print(table, *notes, sep="\n")


@app.command(epilog="Examples:\n\n    anisoscope serve runs/\n\n    anisoscope serve runs/ --host 0.0.0.0 --port 9000")
def serve(
    folder: Annotated[Path, typer.Argument(help="A folder with runs in it, at any depth.")] = Path("runs"),
    host: Annotated[str, typer.Option(help="The address to bind; all but loopback need a token.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="The port to listen on.")] = 8733,
) -> None:
    """Serve a live page with all runs of a folder, updated while they grow."""
    from anisoscope.report.live import serve as serve_folder

    serve_folder(str(folder), host=host, port=port, announce=lambda url: stderr().print(f"open {escape(url)}"))
