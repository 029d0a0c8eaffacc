"""`sweep`: many models and checkpoints, on one process, a pool or a Ray cluster."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from anisoscope.cli.app import AsJson, app, command_line, print_json, progress_bar, stderr, stdout
from anisoscope.cli.options import request_of, with_request
from anisoscope.errors import InputError
from anisoscope.measurement.request import shared_options

if TYPE_CHECKING:
    from anisoscope.sweep import Swept


_OPTIONS = shared_options()


@app.command(
    epilog="""Examples:

    anisoscope sweep EleutherAI/pythia-70m --revisions 'step*' --text corpus.txt --out runs/p70

    anisoscope sweep runs/exp1/checkpoints --text corpus.txt --engine pool --workers 2 --out runs/exp1-geometry

    anisoscope sweep models.txt --text corpus.txt --engine ray --address auto --gpus-per-task 1
"""
)
@with_request(_OPTIONS)
def sweep(
    source: Annotated[
        str, typer.Argument(help="A hub id with --revisions, a folder of checkpoints, or a list file of models.")
    ],
    revisions: Annotated[
        str | None, typer.Option(help="Revisions or checkpoints by name or pattern, separated by commas.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The run; for a list of models, the folder of the runs. Default: runs/NAME.")
    ] = None,
    engine: Annotated[str, typer.Option(help="process (this one), pool or ray.")] = "process",
    workers: Annotated[int | None, typer.Option(min=1, help="Processes of the pool. Default: one per core.")] = None,
    address: Annotated[str | None, typer.Option(help="A Ray cluster: auto or HOST:PORT. Default: start one.")] = None,
    cpus_per_task: Annotated[float, typer.Option(min=0, help="CPUs that Ray gives each task.")] = 1,
    gpus_per_task: Annotated[float, typer.Option(min=0, help="GPUs that Ray gives each task.")] = 0,
    seeds: Annotated[str, typer.Option(help="Seeds of the sample, separated by commas: one run each.")] = "0",
    reference: Annotated[int | None, typer.Option(help="Step that drift is measured from. Default: the first.")] = None,
    retries: Annotated[int, typer.Option(min=0, help="How often a failed task is tried again.")] = 2,
    keep_downloads: Annotated[
        bool, typer.Option("--keep-downloads", help="Keep checkpoints that were downloaded for this sweep.")
    ] = False,
    as_json: AsJson = False,
    **options: Any,
) -> None:
    """Measure every checkpoint: one run per model with one step per checkpoint, and drift and similarity between them.

    Interrupt it at any time: the same command resumes.
    """
    from anisoscope.sweep import engine as engine_named
    from anisoscope.sweep import sweep as sweep_models

    request = request_of(options)
    where = engine_named(engine, workers=workers, address=address, cpus=cpus_per_task, gpus=gpus_per_task)
    with progress_bar("planning", None) as bar:
        swept = sweep_models(
            source,
            out=out,
            revisions=revisions,
            seeds=_seeds(seeds),
            reference=reference,
            engine=where,
            retries=retries,
            keep_downloads=keep_downloads,
            command=command_line(),
            on_status=bar.say,
            **request.only(_OPTIONS),
        )
    _show(swept, as_json)
    if swept.failed:
        what = "a task" if len(swept.failed) == 1 else f"{len(swept.failed)} tasks"
        raise InputError(f"{what} failed, see above; run the same command to try again")


def _seeds(text: str) -> list[int]:
    try:
        return [int(seed) for seed in text.split(",")]
    except ValueError as error:
        raise InputError(f"--seeds takes whole numbers separated by commas, got {text!r}") from error


def _show(swept: Swept, as_json: bool) -> None:
    """Print the records as JSON, or a summary."""
    from anisoscope.store.run import Run

    if as_json:
        records = [record.to_json() for run in swept.runs for record in Run.open(run).records()]
        print_json(records)
    else:
        before = f", {swept.skipped} had been before" if swept.skipped else ""
        stdout().print(f"{swept.measured} steps measured{before}")
        for run in swept.runs:
            stdout().print(f"  {escape(str(run))}", soft_wrap=True)
    for finding in swept.findings:
        stderr().print(f"[yellow]{escape(finding)}[/]", soft_wrap=True)
    for name, reason in swept.failed.items():
        stderr().print(f"[red]{escape(name)} failed:[/] {escape(reason)}", soft_wrap=True)
