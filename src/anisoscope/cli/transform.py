"""The commands `metrics` (list the metrics) and `transform` (apply remedies to embeddings)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from anisoscope.cli.app import AsJson, Metrics, app, progress_bar, stdout
from anisoscope.cli.options import split_names
from anisoscope.errors import InputError, unknown


@app.command(epilog="Examples:\n\n    anisoscope metrics\n\n    anisoscope metrics isoscore")
def metrics(
    name: Annotated[str | None, typer.Argument(help="Show one metric: its formula, range and paper.")] = None,
    as_json: AsJson = False,
) -> None:
    """List the metrics: name, meaning, range, what they ignore, paper."""
    from anisoscope.metrics import catalogue
    from anisoscope.report.terminal import metric_card, metrics_table

    cards = {key: metric.card() for key, metric in catalogue().items()}
    if name is not None and name not in cards:
        raise unknown("metric", name, cards)
    if as_json:
        typer.echo(json.dumps(cards[name] if name else list(cards.values())))
    elif name is not None:
        stdout().print(metric_card(cards[name]))
    else:
        stdout().print(metrics_table(list(cards.values())))


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
    remove_top: Annotated[int, typer.Option(min=0, help="Remove the k strongest directions.")] = 0,
    whiten: Annotated[bool, typer.Option("--whiten", help="Scale all directions to the same variance.")] = False,
    shrinkage: Annotated[
        float | None, typer.Option(help="Shrink towards a sphere, 0 to 1; Ledoit-Wolf by default.")
    ] = None,
    tensor: Annotated[str | None, typer.Option(help="Which tensor of the file to use.")] = None,
    column: Annotated[str | None, typer.Option(help="Which column of a parquet file to use.")] = None,
    metrics: Metrics = ("mean_cosine,mean_cosine_centred,spectral_anisotropy,isoscore,effective_rank,two_nn",),  # type: ignore[assignment]
    as_json: AsJson = False,
) -> None:
    """Centre, whiten or remove directions of embeddings, and compare the metrics before and after."""
    from anisoscope.data.vectors import open_vectors
    from anisoscope.measurement.measure_rows import measure_rows, transform_rows
    from anisoscope.report.terminal import before_after_table

    if not (centre or remove_top or whiten):
        raise InputError("There is nothing to do. Choose from --centre, --remove-top K and --whiten.")
    if out.suffix != ".npy":
        raise InputError(f"The result is a .npy file, but --out is {out.name!r}. Use a name that ends in .npy.")
    if out.resolve() == Path(source).resolve():
        raise InputError("The result would replace the source. Use another --out.")
    vectors = open_vectors(source, tensor=tensor, column=column)
    with progress_bar("rows", 2 * vectors.n) as progress:
        remedy = transform_rows(
            vectors, out, centre=centre, remove_top=remove_top, whiten=whiten, shrinkage=shrinkage, progress=progress
        )
    names = split_names(metrics)
    before, after = measure_rows(vectors, names), measure_rows(open_vectors(out), names)
    if as_json:
        rows = [{"when": when, **r.to_json()} for when, rs in (("before", before), ("after", after)) for r in rs]
        typer.echo(json.dumps(rows))
        return
    title = f"{vectors.name} -> {out.name}"
    if whiten:
        title += f" (shrinkage {remedy.shrinkage:.3g})"
    stdout().print(before_after_table(before, after, title=title))
