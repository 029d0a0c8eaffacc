"""`sweep`: many models and checkpoints, on one process, a pool or a Ray cluster."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from anisoscope.cli.app import AsJson, Metrics, app, command_line, names_of, progress_bar, stderr, stdout
from anisoscope.errors import InputError

if TYPE_CHECKING:
    from anisoscope.sweep import Swept


@app.command(
    epilog="""Examples:

    anisoscope sweep EleutherAI/pythia-70m --revisions 'step*' --text corpus.txt --out runs/p70

    anisoscope sweep runs/exp1/checkpoints --text corpus.txt --engine pool --workers 2 --out runs/exp1-geometry

    anisoscope sweep models.txt --text corpus.txt --engine ray --address auto --gpus-per-task 1
"""
)
def sweep(
    source: Annotated[
        str, typer.Argument(help="A hub id with --revisions, a folder of checkpoints, or a list file of models.")
    ],
    text: Annotated[str | None, typer.Option(help="Text: file, folder, .jsonl or datasets:NAME.")] = None,
    images: Annotated[Path | None, typer.Option(help="A folder of images.")] = None,
    audio: Annotated[Path | None, typer.Option(help="A folder of recordings.")] = None,
    weights: Annotated[bool, typer.Option("--weights", help="Measure vocabulary matrices and final norm too.")] = False,
    revisions: Annotated[
        str | None, typer.Option(help="Revisions or checkpoints by name or pattern, with commas.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The run; of a list, the folder of the runs. runs/NAME by default.")
    ] = None,
    engine: Annotated[str, typer.Option(help="process (this one), pool or ray.")] = "process",
    workers: Annotated[int | None, typer.Option(min=1, help="Processes of the pool; one a core by default.")] = None,
    address: Annotated[str | None, typer.Option(help="A Ray cluster: auto or HOST:PORT; else one is started.")] = None,
    cpus_per_task: Annotated[float, typer.Option(min=0, help="Processors that Ray gives a task.")] = 1,
    gpus_per_task: Annotated[float, typer.Option(min=0, help="GPUs that Ray gives a task.")] = 0,
    shards: Annotated[int, typer.Option(min=1, help="Tasks a checkpoint: each measures a share of the documents.")] = 1,
    seeds: Annotated[str, typer.Option(help="Seeds of the keyed sample, with commas: one run each.")] = "0",
    reference: Annotated[int | None, typer.Option(help="The step that drift is measured from.")] = None,
    retries: Annotated[int, typer.Option(min=0, help="How often a failed task is tried again.")] = 2,
    keep_downloads: Annotated[
        bool, typer.Option("--keep-downloads", help="Keep checkpoints that were downloaded for this sweep.")
    ] = False,
    sites: Annotated[
        str, typer.Option(help="Kinds (embed resid attn mlp q k pattern final) or sites (resid.7), with commas.")
    ] = "embed,resid,final",
    tokens: Annotated[int, typer.Option(min=2, help="How many tokens to measure.")] = 65_536,
    window: Annotated[int | None, typer.Option(min=2, help="Tokens a window; 512, or what the model allows.")] = None,
    batch: Annotated[int, typer.Option(min=1, help="Windows, images or clips a forward pass.")] = 8,
    special: Annotated[bool, typer.Option(help="Count special tokens.")] = True,
    field: Annotated[str | None, typer.Option(help="The field of .jsonl or .parquet rows that holds the text.")] = None,
    document_mark: Annotated[str | None, typer.Option(help="What stands between documents of a plain text.")] = None,
    dtype: Annotated[str | None, typer.Option(help="float32, bfloat16, float16; as stored by default.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1, mps.")] = None,
    device_map: Annotated[str | None, typer.Option(help="For models larger than one device: auto.")] = None,
    trust_remote_code: Annotated[bool, typer.Option("--trust-remote-code", help="Run the model's own code.")] = False,
    allow_pickle: Annotated[bool, typer.Option("--allow-pickle", help="Load weights that are pickles.")] = False,
    metrics: Metrics = None,
    sample: Annotated[int, typer.Option(min=16, help="Rows kept a site for metrics that need rows.")] = 4096,
    errors: Annotated[bool, typer.Option(help="Error bars by jackknife over blocks.")] = True,
    as_json: AsJson = False,
) -> None:
    """One run a model, with a step a checkpoint: geometry, drift, similarity of layers and steps. Restartable."""
    from anisoscope.sweep import engine as engine_named
    from anisoscope.sweep import sweep as sweep_models

    request: dict[str, Any] = {
        "text": text,
        "images": images,
        "audio": audio,
        "weights": weights,
        "metrics": names_of(metrics),
        "sites": [name.strip() for name in sites.split(",") if name.strip()],
        "tokens": tokens,
        "window": window,
        "batch": batch,
        "special": special,
        "sample": sample,
        "errors": errors,
        "opening": {
            "dtype": dtype,
            "device": device,
            "device_map": device_map,
            "trust_remote_code": trust_remote_code,
            "allow_pickle": allow_pickle,
        },
        "reading": {"field": field, "mark": document_mark} if text is not None else {},
    }
    where = engine_named(engine, workers=workers, address=address, cpus=cpus_per_task, gpus=gpus_per_task)
    with progress_bar("planning", None) as bar:
        swept = sweep_models(
            source,
            out=out,
            revisions=revisions,
            seeds=_seeds(seeds),
            shards=shards,
            reference=reference,
            engine=where,
            retries=retries,
            keep_downloads=keep_downloads,
            command=command_line(),
            saying=bar.say,
            **request,
        )
    _show(swept, as_json)
    if swept.failed:
        what = "a task" if len(swept.failed) == 1 else f"{len(swept.failed)} tasks"
        raise InputError(f"{what} failed, see above; the same command tries again")


def _seeds(text: str) -> list[int]:
    try:
        return [int(seed) for seed in text.split(",")]
    except ValueError as error:
        raise InputError(f"--seeds takes whole numbers with commas between, got {text!r}") from error


def _show(swept: Swept, as_json: bool) -> None:
    """What came of the sweep: the records as JSON, or a few lines."""
    from anisoscope.store.run import Run

    if as_json:
        records = [record.to_json() for run in swept.runs for record in Run.open(run).records()]
        typer.echo(json.dumps(records))
    else:
        before = f", {swept.skipped} had been before" if swept.skipped else ""
        stdout().print(f"{swept.measured} steps measured{before}")
        for run in swept.runs:
            stdout().print(f"  {escape(str(run))}", soft_wrap=True)
    for finding in swept.findings:
        stderr().print(f"[yellow]{escape(finding)}[/]", soft_wrap=True)
    for name, reason in swept.failed.items():
        stderr().print(f"[red]{escape(name)} failed:[/] {escape(reason)}", soft_wrap=True)
