"""The application that every command joins, and what commands share: options, progress, consoles."""

from __future__ import annotations

import json
import os
import shlex
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderableType, RenderHook, RenderResult
from rich.markup import escape
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
from rich.segment import Segment
from rich.text import Text
from typer.core import TyperGroup

from anisoscope import __version__
from anisoscope.errors import AnisoscopeError, first_line, is_out_of_memory, visible
from anisoscope.store.files import refusal

_BUG = 70  # exit code of an internal error, EX_SOFTWARE of sysexits.h
_LINE_EVERY = 60.0  # seconds between two lines of progress if stderr is not a terminal


class _Commands(TyperGroup):
    """All commands; Ctrl-C ends any of them with a message, unlike typer."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            stderr().print("[bold red]anisoscope:[/] interrupted; everything written so far is readable")
            raise typer.Exit(130) from None


app = typer.Typer(
    name="anisoscope",
    cls=_Commands,
    help="The shape of a transformer's representations, layer by layer, during training and afterwards.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    epilog="Start with `anisoscope look MODEL`, or with `anisoscope demo` if you have no model.",
)

Metrics = Annotated[
    list[str] | None,
    typer.Option("--metrics", "-m", help="Metrics by name, separated by commas; may be repeated. Default: all."),
]
WrittenAsJson = Annotated[
    bool, typer.Option("--json", help="Print the file's path and size as one JSON object and nothing else.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the records as one JSON list and nothing else.")]


def main() -> None:
    """Run a command; an expected error ends with one line on stderr and exit code 1, an unexpected one with 70."""
    try:
        app()
    except AnisoscopeError as error:
        _end(str(error))
    except BrokenPipeError:  # the reader of the output, such as `head`, has ended
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python complains when it flushes
        sys.exit(1)
    except Exception as error:
        if is_out_of_memory(error):
            _end("not enough memory; reduce --batch, --tokens or --sample, or use a larger machine")
        message = refusal(error)
        if message is None:
            _end_with_bug(error)
        where = getattr(error, "filename", None)
        _end(f"{where}: {message}" if where else message)


def _end(message: str, code: int = 1) -> NoReturn:
    """End the program with one line."""
    stderr().print(f"[bold red]anisoscope:[/] {escape(' '.join(message.splitlines()))}", soft_wrap=True)
    sys.exit(code)


def _end_with_bug(error: Exception) -> NoReturn:
    """End the program after an error that nobody foresaw: one line, and the traceback in a file."""
    text = f"{command_line()}\n\n{''.join(traceback.format_exception(error))}"
    try:
        descriptor, name = tempfile.mkstemp(prefix="anisoscope-error-", suffix=".txt")
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
        details = f"The details are in {name}; please send that file to the maintainers of anisoscope."
    except OSError:
        stderr().print(text, markup=False, highlight=False, soft_wrap=True)
        details = "Please send the text above to the maintainers of anisoscope."
    _end(f"unexpected {type(error).__name__}: {first_line(error)}. This is a bug. {details}", _BUG)


@app.callback(invoke_without_command=True)
def version(
    context: typer.Context,
    show: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if show:
        typer.echo(f"anisoscope {__version__}")
        context.exit()


def print_json(value: Any) -> None:
    """Print what `--json` promises: one line of JSON on stdout. Numbers that are not finite are an error, not NaN."""
    typer.echo(json.dumps(value, allow_nan=False))


def print_written(what: str, path: Path, *, as_json: bool) -> None:
    """Report a file that a command wrote: a line on stderr, or with `--json` its path and size on stdout."""
    if as_json:
        print_json({"what": what, "file": str(path), "bytes": path.stat().st_size})
    else:
        stderr().print(escape(f"{what}: {path} ({size_text(path.stat().st_size)})"), soft_wrap=True)


def size_text(size: int) -> str:
    """The size of a file in words.

    >>> size_text(1_234_567), size_text(31_400), size_text(12)
    ('1.2 MB', '31 kB', '1 kB')
    """
    return f"{size / 1e6:.1f} MB" if size >= 100_000 else f"{max(1, round(size / 1e3))} kB"


def command_line() -> str:
    return shlex.join(["anisoscope", *sys.argv[1:]])


def stdout() -> Console:
    return _console(stderr=False)


def stderr() -> Console:
    return _console(stderr=True)


def _console(*, stderr: bool) -> Console:
    """A console on which no text from a file can control the terminal."""
    console = Console(stderr=stderr)
    console.push_render_hook(_ControlFree())
    return console


class _ControlFree(RenderHook):
    """Replaces control characters by visible text."""

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        return [_Written(each) for each in renderables]


@dataclass(frozen=True)
class _Written:
    what: ConsoleRenderable

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for segment in console.render(self.what, options):
            # Rich's own commands to the terminal (to move the cursor) are control segments.
            yield segment if segment.control else Segment(visible(segment.text), segment.style)


class Bar:
    """A progress bar on stderr: call it to advance; `say` sets its description, `begin` starts it again.

    If stderr is not a terminal, it prints one line per minute instead.
    """

    def __init__(self, progress: Progress, task: TaskID) -> None:
        self._progress = progress
        self._task = task
        self._printed = time.monotonic()

    def __call__(self, more: float) -> None:
        self._progress.advance(self._task, more)
        self._print_line()

    def at(self, done: int, total: int) -> None:
        """Show that `done` of `total` are done; 0 starts a new stage, with its own time left."""
        if done == 0:
            self._progress.reset(self._task, total=total)
        self._progress.update(self._task, completed=done)
        self._print_line()

    def say(self, what: str) -> None:
        self._progress.update(self._task, description=escape(what))

    def begin(self, what: str, total: int) -> None:
        """Start a new stage of `total` items."""
        self.say(what)
        self.at(0, total)

    def note(self, text: str) -> None:
        """Print a sentence above the bar."""
        self._progress.console.print(text, markup=False, highlight=False, soft_wrap=True)

    @property
    def is_live(self) -> bool:
        """Whether a person sees the bar: stderr is a terminal."""
        return self._progress.console.is_terminal and not self._progress.disable

    def show(self, what: RenderableType) -> None:
        """Print a table above the bar."""
        self._progress.console.print(what)

    def _print_line(self) -> None:
        console, now = self._progress.console, time.monotonic()
        if console.is_terminal or self._progress.disable or now - self._printed < _LINE_EVERY:
            return
        self._printed = now
        console.print(progress_line(self._progress.tasks[0]), markup=False, highlight=False)


def progress_line(task: Task) -> str:
    """Progress in words: `tokens: 8,192 of 65,536, about 7 min left`."""
    done, total, elapsed = task.completed, task.total, task.elapsed or 0.0
    if total is None:
        return f"{task.description}: {done:,.0f}"
    left = ""
    if 0 < done < total:
        minutes = round(elapsed * (total - done) / done / 60)
        left = f", about {minutes:,} min left" if minutes else ", less than 1 min left"
    return f"{task.description}: {done:,.0f} of {total:,.0f}{left}"


class _Rate(ProgressColumn):
    """Items per second, or seconds per item if they are slow."""

    def render(self, task: Task) -> Text:
        speed = task.speed or 0.0
        return Text("" if not speed else f"{speed:,.0f}/s" if speed >= 1 else f"{1 / speed:,.0f} s each", style="dim")


@contextmanager
def progress_bar(what: str, total: int | None, *, shown: bool = True) -> Iterator[Bar]:
    """Show progress, rate and time left on stderr until the block ends."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), _Rate(), TimeRemainingColumn())
    window = 600.0  # seconds over which the rate is estimated: one site of a large model takes minutes
    options: dict[str, Any] = {"console": stderr(), "transient": True, "speed_estimate_period": window}
    with Progress(*columns, disable=not shown, **options) as progress:
        yield Bar(progress, progress.add_task(what, total=total))
