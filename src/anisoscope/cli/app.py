"""The application that every command joins, and what commands share: options, progress, names."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from anisoscope import __version__
from anisoscope.disk import refusal
from anisoscope.errors import AnisoscopeError

app = typer.Typer(
    name="anisoscope",
    help="The shape of a transformer's representations, layer by layer, while it trains and after.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    epilog="Start with `anisoscope demo`; then `anisoscope measure vectors.npy`.",
)

Metrics = Annotated[
    str | None, typer.Option("--metrics", "-m", help="Metrics by name, with commas between; all by default.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the records as one JSON list, and nothing else.")]


def main() -> None:
    """Runs a command; an error of ours, or a refusal of the system, is one line on stderr and exit code 1."""
    try:
        app()
    except AnisoscopeError as error:
        stderr().print(f"[bold red]anisoscope:[/] {escape(str(error))}", soft_wrap=True)
        sys.exit(1)
    except Exception as error:
        told = refusal(error)
        if told is None:
            raise  # a mistake of ours: its traceback is what we need to see
        where = getattr(error, "filename", None)
        stderr().print(f"[bold red]anisoscope:[/] {escape(f'{where}: {told}' if where else told)}", soft_wrap=True)
        sys.exit(1)
    except KeyboardInterrupt:
        stderr().print("[bold red]anisoscope:[/] interrupted; what was written stays readable")
        sys.exit(130)


@app.callback(invoke_without_command=True)
def version(
    context: typer.Context,
    show: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if show:
        typer.echo(f"anisoscope {__version__}")
        context.exit()


def names_of(metrics: str | None) -> list[str] | None:
    return None if metrics is None else [name.strip() for name in metrics.split(",") if name.strip()]


def command_line() -> str:
    return shlex.join(["anisoscope", *sys.argv[1:]])


def stderr() -> Console:
    return Console(stderr=True)


def escape(text: str) -> str:
    """User text as it is: rich must not read markup in it."""
    return text.replace("[", "\\[")


class Bar:
    """A bar on stderr: called with how much more has gone by, and told what is being done."""

    def __init__(self, progress: Progress, task: TaskID) -> None:
        self._progress = progress
        self._task = task

    def __call__(self, more: float) -> None:
        self._progress.advance(self._task, more)

    def say(self, what: str) -> None:
        self._progress.update(self._task, description=escape(what))


class _Rate(ProgressColumn):
    """How much goes by a second."""

    def render(self, task: Task) -> Text:
        return Text("" if task.speed is None else f"{task.speed:,.0f}/s", style="dim")


@contextmanager
def progress_bar(what: str, total: int | None, *, shown: bool = True) -> Iterator[Bar]:
    """A bar that shows how much has gone by, the rate and the time left; it disappears when done."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), _Rate(), TimeRemainingColumn())
    with Progress(*columns, console=stderr(), transient=True, disable=not shown) as progress:
        yield Bar(progress, progress.add_task(what, total=total))
