"""`anisoscope tangent` and `anisoscope curvature`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from anisoscope.cli.app import AsJson, app, command_line, progress_bar, stderr, stdout
from anisoscope.cli.tangent_tables import concepts_table, curvature_table, tangent_table
from anisoscope.errors import InputError, first_line
from anisoscope.store.files import read_json


@app.command(
    epilog="""Examples:

    anisoscope tangent ./smollm --text corpus.txt --rank 32

    anisoscope tangent ./model --text corpus.txt --ranks 8,16,32,64 --proxies pca,semi_nmf --step-0 ./init --out runs/t
"""
)
def tangent(
    source: Annotated[str, typer.Argument(help="A model with its output head: folder, hub id, .gguf.")],
    text: Annotated[
        str, typer.Option(help="Text: file, folder, .jsonl, - or datasets:NAME. Half is fitted on, half is tested.")
    ],
    rank: Annotated[int, typer.Option(min=1, help="The rank shown in the tables.")] = 32,
    ranks: Annotated[str | None, typer.Option(help="All ranks to test, comma-separated. Default: --rank.")] = None,
    proxies: Annotated[str, typer.Option(help="Proxies, comma-separated: pca, semi_nmf, svd, mean.")] = "pca,semi_nmf",
    nulls: Annotated[str, typer.Option(help="all, or names of nulls, comma-separated.")] = "all",
    gradients: Annotated[
        str, typer.Option(help="Gradients, comma-separated: hidden, weight_in, weight_out, embedding.")
    ] = "hidden,weight_in,weight_out,embedding",
    sites: Annotated[str, typer.Option(help="Sites, comma-separated: resid, embed, resid.3.")] = "resid",
    loss: Annotated[
        str | None, typer.Option(help="next_token or masked_token. Default: the loss of the model's head.")
    ] = None,
    tokens: Annotated[int, typer.Option(min=64, help="Number of tokens to fit on, and to test on.")] = 8192,
    window: Annotated[
        int | None, typer.Option(min=2, help="Tokens per window. Default: 512, or the model's limit.")
    ] = None,
    batch: Annotated[int, typer.Option(min=1, help="Windows per forward pass.")] = 4,
    field: Annotated[str | None, typer.Option(help="The field of .jsonl or .parquet rows that holds the text.")] = None,
    document_mark: Annotated[str | None, typer.Option(help="The separator of documents in a plain text.")] = None,
    step_0: Annotated[str | None, typer.Option("--step-0", help="The same model before training.")] = None,
    other_run: Annotated[str | None, typer.Option(help="The same model trained from another seed.")] = None,
    earlier: Annotated[
        str | None, typer.Option(help="The same model at an earlier step: how far did it move along the bases?")
    ] = None,
    counts: Annotated[Path | None, typer.Option(help="A .json table of token ids and their counts.")] = None,
    balance: Annotated[int | None, typer.Option(min=1, help="Most occurrences of one token type in the fit.")] = None,
    sinks: Annotated[bool, typer.Option(help="Count first tokens of windows and massive tokens too.")] = False,
    revision: Annotated[str | None, typer.Option(help="The revision of a hub model.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1, mps.")] = None,
    seed: Annotated[int, typer.Option(help="The seed of every draw.")] = 0,
    concepts: Annotated[bool, typer.Option(help="Print the concepts of semi-NMF in words.")] = False,
    out: Annotated[Path | None, typer.Option(help="The run folder to write.")] = None,
    as_json: AsJson = False,
) -> None:
    """Test whether directions fitted on activations carry the true gradient: energies, nulls, p- and q-values."""
    from anisoscope.data.batches import model_batches
    from anisoscope.models.open import open_model
    from anisoscope.tangent import Tangent
    from anisoscope.tangent.splits import split_batches
    from anisoscope.tangent.tangent_test import fit_frames, tangent_test

    request = Tangent(
        proxies=_names(proxies),
        ranks=sorted({rank, *_ranks(ranks or "")}),
        nulls="all" if nulls == "all" else _names(nulls),
    )
    opened = open_model(source, head=True, revision=revision, device=device)
    if opened.modality != "text":
        raise InputError(
            f"{source} takes {opened.modality}, and this command tests text models. Call tangent_test in Python."
        )
    reading: dict[str, Any] = {"window": window, "batch": batch, "field": field, "mark": document_mark}
    fit, test = split_batches(model_batches(opened, text, tokens=2 * tokens, **reading))
    shared: dict[str, Any] = {"tangent": request, "sites": _names(sites), "sinks": sinks, "seed": seed}
    others = {
        name: fit_frames(model, fit, **shared, opening={"device": device})
        for name, model in (("step_0", step_0), ("other_run", other_run))
        if model is not None
    }
    with progress_bar("tokens", None) as progress:
        run = tangent_test(
            opened,
            fit=fit,
            test=test,
            loss=loss,
            gradients=_names(gradients),
            others=others,
            earlier=earlier,
            counts=None if counts is None else _read_counts(counts),
            balance=balance,
            out=out,
            command=command_line(),
            progress=progress,
            **shared,
        )
    records = list(run.records())
    if as_json:
        typer.echo(json.dumps([record.to_json() for record in records]))
        return
    stdout().print(tangent_table(records, run.info, rank, source))
    if concepts:
        stdout().print(concepts_table(run.info, rank))
    if out is not None:
        stderr().print(f"run written to {escape(str(out))}")


@app.command(epilog="Example:\n\n    anisoscope curvature --seeds 12")
def curvature(
    seeds: Annotated[int, typer.Option(min=4, help="Paired seeds per setting.")] = 12,
    tokens: Annotated[int, typer.Option(min=64, help="Tokens per cloud.")] = 4000,
    noise: Annotated[float, typer.Option(min=0, help="σ of the noise.")] = 0.02,
    kappa: Annotated[float, typer.Option(min=0, help="Spread of the entries of the second fundamental form.")] = 0.1,
    as_json: AsJson = False,
) -> None:
    """Simulate how much of a cloud's curvature a frequency-biased sample shows."""
    from anisoscope.studies.curvature import Surface, curvature_records

    records = curvature_records(Surface(tokens=tokens, noise=noise, curvature=kappa), seeds=seeds)
    if as_json:
        typer.echo(json.dumps([record.to_json() for record in records]))
    else:
        stdout().print(curvature_table(records))


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _ranks(text: str) -> list[int]:
    try:
        return [int(rank) for rank in _names(text)]
    except ValueError as error:
        raise InputError(f"--ranks {text!r} is not a list of whole numbers. Use commas, such as 8,32.") from error


def _read_counts(path: Path) -> dict[int, int]:
    try:
        return {int(token): int(count) for token, count in read_json(path).items()}
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise InputError(
            f'{path} is not a table of counts ({first_line(error)}). Use JSON such as {{"17": 4211}}.'
        ) from None
