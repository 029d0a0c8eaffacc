"""`measure`: vectors on disk, or a model layer by layer."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from anisoscope.cli.app import AsJson, Bar, app, command_line, print_json, progress_bar, stderr, stdout
from anisoscope.cli.options import request_of, with_request
from anisoscope.errors import InputError
from anisoscope.measurement.request import (
    DataOptions,
    ModelOptions,
    Request,
    SiteOptions,
    StatisticsOptions,
    VectorOptions,
    names_of,
)
from anisoscope.store.files import similar_paths, user_path

if TYPE_CHECKING:
    from anisoscope.records import Record
    from anisoscope.store.run import Run

_OPTIONS = (
    *names_of(DataOptions, SiteOptions, StatisticsOptions, VectorOptions, ModelOptions),
    *("out", "overwrite", "keep_statistics", "keep_blocks"),
)


@app.command(
    epilog="""Examples:

    anisoscope measure vectors.npy

    anisoscope measure model.safetensors --tensor wte.weight --metrics mean_cosine,isoscore,two_nn --json

    anisoscope measure ./smollm --text corpus.txt --tokens 65536

    anisoscope measure EleutherAI/pythia-160m --revision step1000 --text corpus.txt --sites resid,pattern --out runs/p

    anisoscope measure google/vit-base-patch16-224 --images photos/

    anisoscope measure model-folder --weights

    torchrun --nproc-per-node 8 -m anisoscope measure ./big-model --text corpus.txt
"""
)
@with_request(_OPTIONS)
def measure(
    source: Annotated[
        str, typer.Argument(help="Vectors (.npy .npz .safetensors .parquet .pt), or a model: folder, hub id, .gguf.")
    ],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print an estimate of the cost and stop.")] = False,
    full: Annotated[bool, typer.Option("--all", help="Print every metric, not only the headline ones.")] = False,
    as_json: AsJson = False,
    **options: Any,
) -> None:
    """Measure a cloud of vectors on disk, or a model layer by layer, with error bars and null values.

    Prints sentences, a short table and caveats. The run in --out holds every number.
    """
    request = request_of(options)
    if is_vectors(source, request):
        vectors, title = _measure_vectors(source, request)
        records = vectors.records()
        _show(records, vectors.info, title, as_json=as_json, full=full)
        _next(request.output.out, as_json)
        require_value(records)
        return
    if request.source() is None and not request.sites.weights:
        raise InputError(_nothing_to_measure(source))
    if dry_run:
        _print_cost(source, request)
        return
    run = _measure_model(source, request)
    if run is None:  # another process prints
        return
    records = run.records()
    _show(records, run.info, source, as_json=as_json, full=full)
    _next(request.output.out, as_json)
    require_sound(run, request.output.out)
    require_value(records)


def is_vectors(source: str, request: Request) -> bool:
    """Whether a source is a file of vectors: a file that is no model, without data for one."""
    path = user_path(source)
    alone = request.source() is None and not request.sites.weights
    return alone and path.is_file() and path.suffix != ".gguf"


def _nothing_to_measure(source: str) -> str:
    """Explain what a source that is neither vectors nor a model with data may have been meant to be."""
    data = "--text FILE, --images FOLDER, --audio FOLDER or --weights"
    if Path(source).exists():
        return f"{source} is not a file of vectors. If it is a model, give it data: {data}"
    what = f"give a file of vectors, or a model (a folder or hub id) with {data}"
    return f"no file {source}{similar_paths(Path(source))}; {what}"


def _measure_vectors(source: str, request: Request) -> tuple[Run, str]:
    """The run of a file of vectors, and a title."""
    from anisoscope.data.vectors import open_vectors
    from anisoscope.measurement.measure_rows import ROW_OPTIONS, measure_rows

    options = request.only(ROW_OPTIONS)
    named = {name: options.pop(name) for name in ("tensor", "column", "documents")}
    vectors = open_vectors(source, **named)
    metrics = request.statistics.metrics
    with progress_bar("rows", None) as bar:
        run = measure_rows(vectors, metrics, command=command_line(), progress=bar, **options)
    return run, f"{vectors.name}: {vectors.n:,} rows × {vectors.d} ({vectors.dtype})"


def _measure_model(source: str, request: Request) -> Run | None:
    """The run of a model; None in all processes but the first."""
    from anisoscope.measurement.finished_run import finished_run

    # before torch is imported and the model is opened, unless other processes wait for this one
    finished = None if "TORCHELASTIC_RUN_ID" in os.environ else finished_run(source, request)
    if finished is not None:
        return finished
    from anisoscope.distributed import launched
    from anisoscope.measurement.measure_model import Callbacks, measure_request

    with launched() as job:
        if job.device is not None and not (request.model.device or request.model.device_map):
            request = request.having(device=job.device)
        total = request.statistics.tokens if request.data.text is not None else None
        with progress_bar("tokens", total, shown=job.is_first) as bar:
            callbacks = Callbacks(
                progress=bar,
                status=bar.say,
                evaluated=bar.at,
                note=bar.note,
                provisional=partial(_show_provisional, bar) if bar.is_live else None,
            )
            many = job.world > 1
            run = measure_request(source, request, callbacks=callbacks, command=command_line(), distributed=many)
        return run if job.is_first else None


def _show_provisional(bar: Bar, tokens: int, records: list[Record]) -> None:
    """A first table above the progress bar; the final one has error bars and replaces its numbers."""
    from anisoscope.report.overview import frame_of, rows_by_metric
    from anisoscope.report.questions import answers, questions_table, streams_of

    rows = rows_by_metric(frame_of(records)) if records else {}
    for stream in streams_of(rows):
        title = f"Provisional: {stream} after {tokens:,} tokens, without error bars"
        bar.show(questions_table(answers(rows, stream), title))


def _show(records: list[Record], info: Mapping[str, Any], title: str, *, as_json: bool, full: bool) -> None:
    from anisoscope.report.overview import frame_of, overview

    if as_json:
        print_json([record.to_json() for record in records])
    elif records:
        stdout().print(overview(frame_of(records), info, title, full=full))


def _next(out: Path | None, as_json: bool) -> None:
    """Where the run is, and what to do with it."""
    if as_json:
        return
    if out is None:
        stderr().print("next: --out FOLDER keeps the run for report, show and compare")
        return
    stderr().print(f"run written to {escape(str(out))}")
    stderr().print(f"next: anisoscope report {escape(shlex.quote(str(out)))}", soft_wrap=True)


def require_value(records: list[Record]) -> None:
    """Fail if no metric has a value."""
    if all(record.value is None for record in records):
        raise InputError(f"no metric has a value: {records[0].note}" if records else "no metric was requested")


def require_sound(run: Run, out: Path | None) -> None:
    """Fail if activations are not numbers, and exit with 130 if the pass was interrupted."""
    info = run.info
    if "not_finite" in info:
        where = info["not_finite"]
        raise InputError(
            f"from {where['site']} on, {where['rows']} tokens hold NaN or Inf, so these layers have no values. "
            "Try --dtype float32, or check the weights"
        )
    if info.get("full_batches", 2) < 2:
        raise InputError("the data holds fewer than two batches of --batch-tokens; use more data")
    if info.get("interrupted"):
        resume = "run the same command to resume" if out is not None else "use --out to be able to resume"
        stderr().print(f"interrupted after {info['data']['tokens']:,} tokens, which are measured above; {resume}")
        raise typer.Exit(130)


def _print_cost(source: str, request: Request) -> None:
    from anisoscope.measurement.cost import estimate_cost
    from anisoscope.measurement.measure_model import MEASURE_OPTIONS
    from anisoscope.report.terminal import cost_table

    options = request.only(MEASURE_OPTIONS)
    stdout().print(cost_table(estimate_cost(source, **options), title=source))
