"""`measure`: vectors on disk, or a model layer by layer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from anisoscope.cli.app import AsJson, Metrics, app, command_line, names_of, progress_bar, stderr, stdout
from anisoscope.errors import InputError
from anisoscope.store.files import given_path, near_paths

if TYPE_CHECKING:
    from anisoscope.records import Record
    from anisoscope.store.run import Run


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
def measure(
    source: Annotated[
        str, typer.Argument(help="Vectors (.npy .npz .safetensors .parquet .pt), or a model: folder, hub id, .gguf.")
    ],
    text: Annotated[
        str | None, typer.Option(help="Text for a model: file, folder, .jsonl, - or datasets:NAME.")
    ] = None,
    images: Annotated[Path | None, typer.Option(help="A folder of images for a model.")] = None,
    audio: Annotated[Path | None, typer.Option(help="A folder of recordings for a model.")] = None,
    weights: Annotated[
        bool, typer.Option("--weights", help="Measure vocabulary matrices and final norm; needs no data.")
    ] = False,
    generate: Annotated[
        int | None, typer.Option(min=1, help="Also measure so many tokens that the model adds to each window.")
    ] = None,
    sites: Annotated[
        str, typer.Option(help="Kinds (embed resid attn mlp q k pattern final) or sites (resid.7), with commas.")
    ] = "embed,resid,final",
    tokens: Annotated[int, typer.Option(min=2, help="How many tokens to measure.")] = 65_536,
    batch_tokens: Annotated[
        int | None, typer.Option(min=2, help="Also give mean and deviation over batches of so many tokens.")
    ] = None,
    window: Annotated[int | None, typer.Option(min=2, help="Tokens a window; 512, or what the model allows.")] = None,
    batch: Annotated[int, typer.Option(min=1, help="Windows, images or clips a forward pass.")] = 8,
    special: Annotated[bool, typer.Option(help="Count special tokens.")] = True,
    field: Annotated[str | None, typer.Option(help="The field of .jsonl or .parquet rows that holds the text.")] = None,
    document_mark: Annotated[str | None, typer.Option(help="What stands between documents of a plain text.")] = None,
    revision: Annotated[str | None, typer.Option(help="A revision of a hub model.")] = None,
    dtype: Annotated[str | None, typer.Option(help="float32, bfloat16, float16; as stored by default.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1, mps.")] = None,
    device_map: Annotated[str | None, typer.Option(help="For models larger than one device: auto.")] = None,
    tensor_parallel: Annotated[
        bool, typer.Option("--tensor-parallel", help="Split every layer over the processes that torchrun starts.")
    ] = False,
    trust_remote_code: Annotated[bool, typer.Option("--trust-remote-code", help="Run the model's own code.")] = False,
    allow_pickle: Annotated[bool, typer.Option("--allow-pickle", help="Load weights that are pickles.")] = False,
    metrics: Metrics = None,
    tensor: Annotated[str | None, typer.Option(help="Which tensor of a file of vectors.")] = None,
    column: Annotated[str | None, typer.Option(help="Which column of a parquet file.")] = None,
    documents: Annotated[str | None, typer.Option(help="Column or array that names each row's document.")] = None,
    sample: Annotated[
        int | None, typer.Option(min=16, help="Rows kept for metrics that need rows; 8192 of vectors, 4096 a site.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the keyed sample.")] = 0,
    precise: Annotated[bool, typer.Option(help="Products of vectors in float64 throughout.")] = False,
    errors: Annotated[bool, typer.Option(help="Error bars by jackknife over blocks.")] = True,
    out: Annotated[Path | None, typer.Option(help="A run folder to write; a model's goes on when asked again.")] = None,
    keep_blocks: Annotated[bool, typer.Option(help="Keep block statistics, for error bars of `recompute`.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what it would cost, and stop.")] = False,
    as_json: AsJson = False,
) -> None:
    """Every measure of a cloud of vectors on disk, or of a model layer by layer, with error bars and null levels."""

    has_data = any(given is not None for given in (text, images, audio))
    place = given_path(source)
    if not has_data and not weights and place.is_file() and place.suffix != ".gguf":
        opening = {"tensor": tensor, "column": column, "documents": documents}
        options = {"sample": sample or 8192, "seed": seed, "precise": precise, "errors": errors}
        _measure_vectors(source, names_of(metrics), out, as_json, opening, {**options, "keep_blocks": keep_blocks})
        return
    if not has_data and not weights:
        raise InputError(_nothing_to_measure(source))
    request: dict[str, Any] = {
        "text": text,
        "images": images,
        "audio": audio,
        "weights": weights,
        "generate": generate,
        "metrics": names_of(metrics),
        "sites": [name.strip() for name in sites.split(",") if name.strip()],
        "tokens": tokens,
        "batch_tokens": batch_tokens,
        "window": window,
        "batch": batch,
        "special": special,
        "sample": sample or 4096,
        "seed": seed,
        "errors": errors,
        "opening": {
            "revision": revision,
            "dtype": dtype,
            "device": device,
            "device_map": device_map,
            "tensor_parallel": tensor_parallel,
            "trust_remote_code": trust_remote_code,
            "allow_pickle": allow_pickle,
        },
        "reading": {"field": field, "mark": document_mark} if text is not None else {},
    }
    if dry_run:
        _tell_cost(source, request)
        return
    _measure_model(source, request, out, as_json, tokens if text is not None else None)


def _nothing_to_measure(source: str) -> str:
    """What a source that is neither vectors nor a model with data may have been meant to be."""
    data = "--text FILE, --images FOLDER, --audio FOLDER or --weights"
    if Path(source).exists():
        return f"{source} is not a file of vectors; if it is a model, say what to measure it on: {data}"
    return (
        f"there is no file {source}{near_paths(Path(source))}; give a file of vectors, or a model (a folder or hub id) "
        f"with {data}"
    )


def _measure_vectors(
    source: str,
    metrics: list[str] | None,
    out: Path | None,
    as_json: bool,
    opening: dict[str, Any],
    options: dict[str, Any],
) -> None:
    from anisoscope.data.vectors import open_vectors
    from anisoscope.measurement.measure_rows import measure_rows
    from anisoscope.report.terminal import records_table

    vectors = open_vectors(source, **opening)
    with progress_bar("rows", None) as told:
        records = measure_rows(vectors, metrics, out=out, command=command_line(), progress=told, **options)
    title = f"{vectors.name}: {vectors.n:,} rows × {vectors.d} ({vectors.dtype})"
    _show(records, None if as_json else records_table(records, title=title), out)
    _require_value(records)


def _measure_model(source: str, request: dict[str, Any], out: Path | None, as_json: bool, total: int | None) -> None:
    from anisoscope.distributed import launched
    from anisoscope.measurement.measure_model import measure as measure_model
    from anisoscope.report.terminal import layers_table

    with launched() as job:
        if job.device is not None and not (request["opening"]["device"] or request["opening"]["device_map"]):
            request["opening"]["device"] = job.device
        with progress_bar("tokens", total, shown=job.is_first) as told:
            run = measure_model(
                source,
                out=out,
                keep_statistics=out is not None,
                command=command_line(),
                progress=told,
                saying=told.say,
                distributed=job.world > 1,
                **request,
            )
        if not job.is_first:
            return
    records = list(run.records())
    _show(records, None if as_json else layers_table(records, run.info, title=source), out)
    _require_sound(run, out)
    _require_value(records)


def _show(records: list[Record], table: Any, out: Path | None) -> None:
    if table is None:
        typer.echo(json.dumps([record.to_json() for record in records]))
        return
    stdout().print(table)
    if out is not None:
        stderr().print(f"run written to {escape(str(out))}")


def _require_value(records: list[Record]) -> None:
    if all(record.value is None for record in records):
        raise InputError(f"no metric has a value: {records[0].note}" if records else "no metric was asked for")


def _require_sound(run: Run, out: Path | None) -> None:
    """What must not end as if all were well: activations that are not numbers, and a pass that was stopped."""
    info = run.info
    if "not_finite" in info:
        where = info["not_finite"]
        raise InputError(
            f"from {where['site']} on, {where['rows']} tokens hold NaN or Inf, so these layers have no values; "
            "try --dtype float32, or check the weights"
        )
    if info.get("full_batches", 2) < 2:
        raise InputError("the data holds no two batches of --batch-tokens, so there is no spread; give more data")
    if info.get("interrupted"):
        on = "the same command goes on" if out is not None else "with --out the same command would go on"
        stderr().print(f"stopped after {info['data']['tokens']:,} tokens, which are measured above; {on}")
        raise typer.Exit(130)


def _tell_cost(source: str, request: dict[str, Any]) -> None:
    from anisoscope.measurement.cost import estimate_cost
    from anisoscope.report.terminal import cost_table

    stdout().print(cost_table(estimate_cost(source, **request), title=source))
