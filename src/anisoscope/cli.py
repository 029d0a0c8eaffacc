"""The command line: one thin function a command."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from anisoscope import __version__
from anisoscope.errors import AnisoscopeError, InputError, unknown

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
    """Runs a command; an error of ours is one line on stderr and exit code 1."""
    try:
        app()
    except AnisoscopeError as error:
        _stderr().print(f"[bold red]anisoscope:[/] {_escape(str(error))}", soft_wrap=True)
        sys.exit(1)
    except KeyboardInterrupt:
        _stderr().print("[bold red]anisoscope:[/] interrupted; what was written stays readable")
        sys.exit(130)


@app.callback(invoke_without_command=True)
def version(
    context: typer.Context,
    show: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if show:
        typer.echo(f"anisoscope {__version__}")
        context.exit()


@app.command(
    epilog="""Examples:

    anisoscope measure vectors.npy

    anisoscope measure model.safetensors --tensor wte.weight --metrics mean_cosine,isoscore,two_nn --json

    anisoscope measure ./smollm --text corpus.txt --tokens 65536

    anisoscope measure EleutherAI/pythia-160m --revision step1000 --text corpus.txt --sites resid,pattern --out runs/p

    anisoscope measure google/vit-base-patch16-224 --images photos/
"""
)
def measure(
    source: Annotated[
        str, typer.Argument(help="Vectors (.npy .npz .safetensors .parquet .pt), or a model: folder, hub id, .gguf.")
    ],
    text: Annotated[
        str | None, typer.Option(help="Text for a model: file, folder, .jsonl, - or datasets:NAME.")
    ] = None,
    images: Annotated[Path | None, typer.Option(help="A folder of images for a model.")] = None,
    audio: Annotated[Path | None, typer.Option(help="A folder of recordings for a model.")] = None,
    sites: Annotated[str, typer.Option(help="Where to look: kinds or sites, with commas.")] = "embed,resid,final",
    tokens: Annotated[int, typer.Option(min=2, help="How many tokens to measure.")] = 65_536,
    window: Annotated[int | None, typer.Option(min=2, help="Tokens a window; 512, or what the model allows.")] = None,
    batch: Annotated[int, typer.Option(min=1, help="Windows, images or clips a forward pass.")] = 8,
    special: Annotated[bool, typer.Option(help="Count special tokens.")] = True,
    field: Annotated[str | None, typer.Option(help="The field of .jsonl or .parquet rows that holds the text.")] = None,
    document_mark: Annotated[str | None, typer.Option(help="What stands between documents of a plain text.")] = None,
    revision: Annotated[str | None, typer.Option(help="A revision of a hub model.")] = None,
    dtype: Annotated[str | None, typer.Option(help="float32, bfloat16, float16; as stored by default.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1, mps.")] = None,
    device_map: Annotated[str | None, typer.Option(help="For models larger than one device: auto.")] = None,
    trust_remote_code: Annotated[bool, typer.Option("--trust-remote-code", help="Run the model's own code.")] = False,
    allow_pickle: Annotated[bool, typer.Option("--allow-pickle", help="Load weights that are pickles.")] = False,
    metrics: Metrics = None,
    tensor: Annotated[str | None, typer.Option(help="Which tensor of a file of vectors.")] = None,
    column: Annotated[str | None, typer.Option(help="Which column of a parquet file.")] = None,
    documents: Annotated[str | None, typer.Option(help="Column or array that names each row's document.")] = None,
    sample: Annotated[int, typer.Option(min=16, help="Rows kept for metrics that need rows (neighbours).")] = 8192,
    seed: Annotated[int, typer.Option(help="Seed of the keyed sample.")] = 0,
    precise: Annotated[bool, typer.Option(help="Products of vectors in float64 throughout.")] = False,
    errors: Annotated[bool, typer.Option(help="Error bars by jackknife over blocks.")] = True,
    out: Annotated[Path | None, typer.Option(help="A run folder to write.")] = None,
    keep_blocks: Annotated[bool, typer.Option(help="Keep block statistics, for error bars of `recompute`.")] = False,
    as_json: AsJson = False,
) -> None:
    """Every measure of a cloud of vectors on disk, or of a model layer by layer, with error bars and null levels."""
    from anisoscope.models.vectors import open_vectors
    from anisoscope.offline import measure as measure_model
    from anisoscope.offline import measure_rows
    from anisoscope.report.terminal import layers_table, records_table

    names = _names(metrics)
    data = [given for given in (text, images, audio) if given is not None]
    if not data and Path(source).is_file() and Path(source).suffix != ".gguf":
        vectors = open_vectors(source, tensor=tensor, column=column, documents=documents)
        with _progress("rows", None) as told:
            records = measure_rows(
                vectors,
                names,
                sample=sample,
                seed=seed,
                precise=precise,
                errors=errors,
                out=out,
                keep_blocks=keep_blocks,
                command=_command(),
                progress=told,
            )
        table: RenderableType = records_table(
            records, title=f"{vectors.name}: {vectors.n:,} rows × {vectors.d} ({vectors.dtype})"
        )
    elif not data:
        raise InputError(f"{source} is not a file of vectors; a model needs --text, --images or --audio")
    else:
        opening = {
            "revision": revision,
            "dtype": dtype,
            "device": device,
            "device_map": device_map,
            "trust_remote_code": trust_remote_code,
            "allow_pickle": allow_pickle,
        }
        reading = {"field": field, "mark": document_mark} if text is not None else {}
        with _progress("tokens", tokens if text is not None else None) as told:
            run = measure_model(
                source,
                text=text,
                images=images,
                audio=audio,
                metrics=names,
                sites=[name.strip() for name in sites.split(",") if name.strip()],
                tokens=tokens,
                window=window,
                batch=batch,
                special=special,
                sample=sample,
                seed=seed,
                errors=errors,
                out=out,
                keep_statistics=out is not None,
                command=_command(),
                progress=told,
                opening=opening,
                reading=reading,
            )
        records = list(run.records())
        table = layers_table(records, run.info, title=source)
    if as_json:
        typer.echo(json.dumps([record.to_json() for record in records]))
    else:
        Console().print(table)
        if out is not None:
            _stderr().print(f"run written to {_escape(str(out))}")
    if all(record.value is None for record in records):
        raise InputError(f"no metric has a value: {records[0].note}" if records else "no metric was asked for")


@app.command(epilog="Examples:\n\n    anisoscope metrics\n\n    anisoscope metrics isoscore")
def metrics(
    name: Annotated[str | None, typer.Argument(help="One metric: its formula, range and paper.")] = None,
    as_json: AsJson = False,
) -> None:
    """The catalogue of metrics: name, meaning, range, what it ignores, paper."""
    from anisoscope.metrics import catalogue
    from anisoscope.report.terminal import metric_card, metrics_table

    known = {key: metric.card() for key, metric in catalogue().items()}
    if name is not None and name not in known:
        raise unknown("metric", name, known)
    if as_json:
        typer.echo(json.dumps(known[name] if name else list(known.values())))
    elif name is not None:
        Console().print(metric_card(known[name]))
    else:
        Console().print(metrics_table(list(known.values())))


@app.command(
    epilog="""Examples:

    anisoscope transform vectors.npy --centre --remove-top 3 --out better.npy

    anisoscope transform vectors.npy --centre --whiten --shrinkage 0.1 --out white.npy
"""
)
def transform(
    source: Annotated[str, typer.Argument(help="A file of vectors.")],
    out: Annotated[Path, typer.Option(help="The .npy file to write.")],
    centre: Annotated[bool, typer.Option("--centre", "--center", help="Subtract the mean row.")] = False,
    remove_top: Annotated[int, typer.Option(min=0, help="Take out the k strongest directions.")] = 0,
    whiten: Annotated[bool, typer.Option("--whiten", help="Give all directions the same variance.")] = False,
    shrinkage: Annotated[float | None, typer.Option(help="Towards a sphere, 0 to 1; Ledoit-Wolf by default.")] = None,
    tensor: Annotated[str | None, typer.Option(help="Which tensor of the file.")] = None,
    column: Annotated[str | None, typer.Option(help="Which column of a parquet file.")] = None,
    metrics: Metrics = "mean_cosine,mean_cosine_centred,spectral_anisotropy,isoscore,effective_rank,two_nn",
    as_json: AsJson = False,
) -> None:
    """The field's remedies for embeddings, fitted by streaming, with the metrics before and after."""
    from anisoscope.models.vectors import open_vectors
    from anisoscope.offline import measure_rows, transform_rows
    from anisoscope.report.terminal import before_after_table

    if not (centre or remove_top or whiten):
        raise InputError("nothing to do; choose from --centre, --remove-top K and --whiten")
    if out.suffix != ".npy":
        raise InputError(f"the result is a .npy file; {out.name!r} is not one")
    if out.resolve() == Path(source).resolve():
        raise InputError("the result would replace its own source; give another --out")
    vectors = open_vectors(source, tensor=tensor, column=column)
    with _progress("rows", 2 * vectors.n) as told:
        remedy = transform_rows(
            vectors, out, centre=centre, remove_top=remove_top, whiten=whiten, shrinkage=shrinkage, progress=told
        )
    names = _names(metrics)
    before, after = measure_rows(vectors, names), measure_rows(open_vectors(out), names)
    if as_json:
        rows = [{"when": when, **r.to_json()} for when, rs in (("before", before), ("after", after)) for r in rs]
        typer.echo(json.dumps(rows))
        return
    title = f"{vectors.name} -> {out.name}"
    if whiten:
        title += f" (shrinkage {remedy.shrinkage:.3g})"
    Console().print(before_after_table(before, after, title=title))


@app.command(epilog="Example:\n\n    anisoscope recompute runs/exp1 --metric rankme --metric two_nn")
def recompute(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    metric: Annotated[list[str], typer.Option("--metric", "-m", help="A metric by name; may be repeated.")],
    as_json: AsJson = False,
) -> None:
    """A new metric on an old run, from the statistics that it keeps."""
    from anisoscope.offline import recompute as again
    from anisoscope.report.terminal import records_table

    records = again(run, metric)
    if as_json:
        typer.echo(json.dumps([record.to_json() for record in records]))
    else:
        Console().print(records_table(records, title=str(run)))


@app.command(epilog="Example:\n\n    anisoscope export runs/exp1 --to run.parquet")
def export(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    to: Annotated[Path, typer.Option(help="A .parquet, .csv or .jsonl file.")],
) -> None:
    """The records of a run as one file for pandas, R or a spreadsheet."""
    from anisoscope.store import Run

    written = Run.open(run).export(to)
    _stderr().print(f"written to {_escape(str(written))}")


@app.command(epilog="Example:\n\n    anisoscope demo --out runs/demo")
def demo(
    out: Annotated[Path, typer.Option(help="Where the picture goes.")] = Path("runs/demo"),
) -> None:
    """What the instrument says of clouds whose answers are known, as a table and a picture."""
    from anisoscope.demo import measure_clouds
    from anisoscope.report.charts import clouds_chart, save_chart
    from anisoscope.report.terminal import clouds_table

    with _progress("clouds", None) as told:
        found = measure_clouds(told)
    Console().print(clouds_table(found.records, found.metrics))
    out.mkdir(parents=True, exist_ok=True)
    picture = save_chart(clouds_chart(found.points, found.records), out / "clouds.png")
    _stderr().print(f"picture: {_escape(str(picture))}")


def _names(metrics: str | None) -> list[str] | None:
    return None if metrics is None else [name.strip() for name in metrics.split(",") if name.strip()]


def _command() -> str:
    return shlex.join(["anisoscope", *sys.argv[1:]])


def _stderr() -> Console:
    return Console(stderr=True)


def _escape(text: str) -> str:
    """User text as it is: rich must not read markup in it."""
    return text.replace("[", "\\[")


@contextmanager
def _progress(what: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """A bar on stderr that a driver tells how much has gone by; it disappears when done."""
    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=_stderr(), transient=True) as bar:
        task = bar.add_task(what, total=total)
        yield lambda more: bar.advance(task, more)
