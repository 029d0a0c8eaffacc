"""`embeddings`: what practitioners ask of embeddings, before and after each remedy."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from anisoscope.cli.app import AsJson, app, command_line, print_json, progress_bar, stderr, stdout


@app.command(
    epilog="""Examples:

    anisoscope embeddings emb.npy

    anisoscope embeddings emb.npy --queries q.npy --relevant pairs.csv --out runs/emb

    anisoscope embeddings emb.npy --figure cosines.svg

    anisoscope embeddings emb.parquet --column vector --labels labels.csv --json
"""
)
def embeddings(
    source: Annotated[str, typer.Argument(help="A file of embeddings, of any size (.npy .safetensors .parquet …).")],
    queries: Annotated[str | None, typer.Option(help="A file of query embeddings, from the same model.")] = None,
    relevant: Annotated[
        str | None,
        typer.Option(help="A .csv, .tsv or .npy of pairs: query, row, and optionally grade; counted from 0."),
    ] = None,
    labels: Annotated[str | None, typer.Option(help="One label per row: .csv, .tsv, .txt or .npy.")] = None,
    search: Annotated[
        str, typer.Option(help="How queries find rows: cosine, or dot (the inner product of rows as stored).")
    ] = "cosine",
    documents: Annotated[
        str | None, typer.Option(help="Column or array that names the document of each row, for error bars.")
    ] = None,
    tensor: Annotated[str | None, typer.Option(help="Which tensor of the file to use.")] = None,
    column: Annotated[str | None, typer.Option(help="Which column of a parquet file to use.")] = None,
    remove_top: Annotated[
        int | None,
        typer.Option(min=1, help="Directions that all-but-the-top removes. Default: a hundredth of the width."),
    ] = None,
    sample: Annotated[
        int, typer.Option(min=21, help="Rows whose neighbours are searched; all if there are fewer.")
    ] = 16384,
    all_pairs: Annotated[
        bool | None,
        typer.Option(
            "--all-pairs/--sampled-pairs",
            help="Search near duplicates of all rows, or of sampled rows. Default: all up to 2e12 products (n·n·d).",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the sample and of the nulls.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Run folder to write.")] = None,
    figure: Annotated[
        Path | None,
        typer.Option(help="Draw the cosines of random, nearest and relevant pairs to a file (.svg .png .pdf .html)."),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a run in --out.")] = False,
    as_json: AsJson = False,
) -> None:
    """Check embeddings: duplicates, norms, cone, hubs, dimension; what each remedy changes; one sentence of advice.

    With --queries and --relevant, retrieval (recall, MRR, nDCG) before and after each remedy, with paired errors.
    """
    from anisoscope.embedding_quality.check import embeddings as check
    from anisoscope.report.cosine_chart import cosine_chart
    from anisoscope.report.embedding_summary import embedding_summary
    from anisoscope.report.theme import save_chart

    with progress_bar("reading", None) as bar:
        run = check(
            source,
            queries=queries,
            relevant=relevant,
            labels=labels,
            search=search,
            documents=documents,
            tensor=tensor,
            column=column,
            remove_top=remove_top,
            sample=sample,
            all_pairs=all_pairs,
            seed=seed,
            out=out,
            overwrite=overwrite,
            command=command_line(),
            progress=bar,
            on_stage=bar.begin,
        )
    records, details = list(run.records()), run.info["embeddings"]
    if figure is not None:
        save_chart(cosine_chart(details), figure)
    if as_json:
        print_json([record.to_json() for record in records])
        return
    title = f"{Path(source).name}: {details['n']:,} rows of {details['d']:,} numbers"
    stdout().print(embedding_summary(records, details, title))
    if figure is not None:
        stderr().print(f"figure written to {escape(str(figure))}")
    if out is not None:
        stderr().print(f"run written to {escape(str(out))}")
