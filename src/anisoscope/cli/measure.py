"""`measure`: vectors on disk, or a model layer by layer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console, RenderableType

from anisoscope.cli.app import AsJson, Metrics, app, command_line, escape, names_of, progress_bar, stderr
from anisoscope.errors import InputError


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

    names = names_of(metrics)
    data = [given for given in (text, images, audio) if given is not None]
    if not data and Path(source).is_file() and Path(source).suffix != ".gguf":
        vectors = open_vectors(source, tensor=tensor, column=column, documents=documents)
        with progress_bar("rows", None) as told:
            records = measure_rows(
                vectors,
                names,
                sample=sample,
                seed=seed,
                precise=precise,
                errors=errors,
                out=out,
                keep_blocks=keep_blocks,
                command=command_line(),
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
        with progress_bar("tokens", tokens if text is not None else None) as told:
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
                command=command_line(),
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
            stderr().print(f"run written to {escape(str(out))}")
    if all(record.value is None for record in records):
        raise InputError(f"no metric has a value: {records[0].note}" if records else "no metric was asked for")
