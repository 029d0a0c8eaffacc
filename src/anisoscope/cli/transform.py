"""The commands `metrics` (list the metrics) and `transform` (apply remedies to embeddings)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from anisoscope.cli.app import AsJson, app, print_json, progress_bar, stdout
from anisoscope.cli.options import split_names
from anisoscope.errors import InputError, unknown

if TYPE_CHECKING:
    from anisoscope.remedies import Remedy


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
        print_json(cards[name] if name else list(cards.values()))
    elif name is not None:
        stdout().print(metric_card(cards[name]))
    else:
        stdout().print(metrics_table(list(cards.values())))


@app.command(
    epilog="""Examples:

    anisoscope transform vectors.npy --whiten --centre --save map.safetensors --out white.npy

    anisoscope transform queries.npy --apply map.safetensors --out white-queries.npy

    anisoscope transform vectors.npy --centre --remove-top 3 --out better.npy

    anisoscope transform vectors.npy --centre --whiten --shrinkage 0.1 --out white.npy --overwrite
"""
)
def transform(
    source: Annotated[str, typer.Argument(help="A file of vectors, of any size.")],
    out: Annotated[Path | None, typer.Option(help="The .npy file to write: the transformed rows, in float32.")] = None,
    centre: Annotated[bool, typer.Option("--centre", "--center", help="Subtract the mean row.")] = False,
    remove_top: Annotated[int, typer.Option(min=0, help="Remove the k strongest directions.")] = 0,
    whiten: Annotated[bool, typer.Option("--whiten", help="Scale all directions to the same variance.")] = False,
    shrinkage: Annotated[
        float | None, typer.Option(help="Shrink towards a sphere before whitening, 0 to 1. Default: Ledoit-Wolf.")
    ] = None,
    save: Annotated[
        Path | None, typer.Option(help="The .safetensors file to write: the fitted map, for other rows.")
    ] = None,
    apply: Annotated[Path | None, typer.Option(help="A map written by --save: transform with it, fit nothing.")] = None,
    tensor: Annotated[str | None, typer.Option(help="Which tensor of the file to use.")] = None,
    column: Annotated[str | None, typer.Option(help="Which column of a parquet file to use.")] = None,
    documents: Annotated[
        str | None, typer.Option(help="Column or array that names the document of each row, for error bars.")
    ] = None,
    metrics: Annotated[
        list[str],
        typer.Option("--metrics", "-m", help="Metrics to compare, by name, separated by commas; may be repeated."),
    ] = ["mean_cosine,mean_cosine_centred,spectral_anisotropy,isoscore,effective_rank,two_nn"],  # noqa: B006
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace existing --out and --save files.")] = False,
    as_json: AsJson = False,
) -> None:
    """Centre, whiten or remove directions of embeddings, and compare the metrics before and after.

    Transform queries with the map of their documents: --save it, then --apply it. Isotropy is not quality: test
    retrieval on your own task before you use a transformation.
    """
    from anisoscope.data.vectors import open_vectors
    from anisoscope.measurement.transformed_rows import before_and_after, fit_to_vectors, transformed, write_vectors
    from anisoscope.metrics import catalogue
    from anisoscope.remedies import Remedy
    from anisoscope.report.before_after import FITTED_HERE, before_after_table, change

    fitting = centre or remove_top > 0 or whiten
    _require_one_task(fitting, apply, out, save)
    if shrinkage is not None and not whiten:
        raise InputError("--shrinkage belongs to --whiten. Add --whiten, or leave it out.")
    for target, suffix in ((out, ".npy"), (save, ".safetensors")):
        if target is not None:
            _require_writable(target, suffix, Path(source), overwrite=overwrite)
    vectors = open_vectors(source, tensor=tensor, column=column, documents=documents)
    remedy = None if apply is None else Remedy.load(apply)
    passes = (remedy is None) + (out is not None)
    with progress_bar("rows", passes * vectors.n) as progress:
        if remedy is None:
            options: dict[str, Any] = {"centre": centre, "remove_top": remove_top, "whiten": whiten}
            remedy = fit_to_vectors(vectors, **options, shrinkage=shrinkage, progress=progress)
        after = transformed(vectors, remedy)
        if save is not None:
            remedy.save(save)
        if out is not None:
            after = write_vectors(after, out, progress)
    results = before_and_after(vectors, after, split_names(metrics))
    changes = [
        change(a.record, None, a.replicates) if b is None else change(a.record, b.record, a.replicates, b.replicates)
        for a, b in results
    ]
    if as_json:
        print_json([row for each in changes for row in each.to_json()])
        return
    title = f"{vectors.name}: {remedy.name}"
    if "whiten" in remedy.name:
        title += f" (shrinkage {remedy.shrinkage:.3g})"
    notes = [FITTED_HERE] if whiten else []
    cards = {name: metric.card() for name, metric in catalogue().items()}
    stdout().print(before_after_table(changes, title, cards, notes=notes))
    for line in _next_steps(out, save, remedy):
        stdout().print(line, markup=False, highlight=False, soft_wrap=True)


def _require_one_task(fitting: bool, apply: Path | None, out: Path | None, save: Path | None) -> None:
    """Refuse options that contradict each other, or that do nothing."""
    if apply is not None and (fitting or save is not None):
        raise InputError(
            "--apply uses a fitted map as it is. Leave out --centre, --remove-top, --whiten and --save, or --apply."
        )
    if apply is None and not fitting:
        raise InputError("There is nothing to do. Choose from --centre, --remove-top K, --whiten and --apply MAP.")
    if out is None and save is None:
        raise InputError("Nothing would be written. Use --out FILE.npy for the rows or --save FILE.safetensors.")


def _require_writable(target: Path, suffix: str, source: Path, *, overwrite: bool) -> None:
    """Refuse a file that would replace another one, or that has the wrong suffix."""
    option = "--out" if suffix == ".npy" else "--save"
    if target.suffix != suffix:
        raise InputError(f"{option} writes a {suffix} file, not {target.name!r}. Use a name that ends in {suffix}.")
    if target.resolve() == source.resolve():
        raise InputError(f"The result would replace the source. Use another {option}.")
    if target.exists() and not overwrite:
        raise InputError(f"{target} exists already. Choose another {option}, or replace it with --overwrite.")


def _next_steps(out: Path | None, save: Path | None, remedy: Remedy) -> list[str]:
    """What was written, and the command that transforms queries."""
    lines = [""]
    if out is not None:
        lines.append(f"Rows: {out}")
    if save is not None:
        lines.append(f"Map: {save} ({remedy.d:,} dimensions, fitted on {remedy.rows:,} rows)")
        lines.append(f"For queries: anisoscope transform queries.npy --apply {save} --out queries-out.npy")
    return lines
