"""`anisoscope tangent` and `anisoscope curvature`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from anisoscope.cli.app import AsJson, app, command_line, print_json, progress_bar, stderr, stdout
from anisoscope.cli.options import request_of, split_names, with_request
from anisoscope.cli.tangent_tables import concepts_table, curvature_table, tangent_table
from anisoscope.errors import InputError, first_line
from anisoscope.measurement.request import TANGENT_DEFAULTS, TANGENT_HELP, TANGENT_OPTIONS
from anisoscope.store.files import read_json


@app.command(
    epilog="""Examples:

    anisoscope tangent ./smollm --text corpus.txt --rank 32

    anisoscope tangent ./model --text corpus.txt --ranks 8,16,32,64 --proxies pca,semi_nmf --step-0 ./init --out runs/t
"""
)
@with_request(TANGENT_OPTIONS, defaults=TANGENT_DEFAULTS, help=TANGENT_HELP)
def tangent(
    source: Annotated[str, typer.Argument(help="A model with its output head: folder, hub id, .gguf.")],
    rank: Annotated[int, typer.Option(min=1, help="Rank shown in the tables.")] = 32,
    ranks: Annotated[str | None, typer.Option(help="All ranks to test, separated by commas. Default: --rank.")] = None,
    proxies: Annotated[
        str, typer.Option(help="Proxies (pca semi_nmf svd mean), separated by commas.")
    ] = "pca,semi_nmf",
    nulls: Annotated[str, typer.Option(help="all, or names of nulls, separated by commas.")] = "all",
    gradients: Annotated[
        str, typer.Option(help="Gradients (hidden weight_in weight_out embedding), separated by commas.")
    ] = "hidden,weight_in,weight_out,embedding",
    loss: Annotated[
        str | None, typer.Option(help="next_token or masked_token. Default: the loss of the model's head.")
    ] = None,
    step_0: Annotated[str | None, typer.Option("--step-0", help="The same model before training.")] = None,
    other_run: Annotated[str | None, typer.Option(help="The same model trained from another seed.")] = None,
    earlier: Annotated[
        str | None, typer.Option(help="The same model at an earlier step: how far did it move along the bases?")
    ] = None,
    counts: Annotated[Path | None, typer.Option(help="A .json table of token ids and their counts.")] = None,
    balance: Annotated[int | None, typer.Option(min=1, help="Most occurrences of one token type in the fit.")] = None,
    sinks: Annotated[
        bool, typer.Option("--sinks", help="Count first tokens of windows and massive tokens too.")
    ] = False,
    concepts: Annotated[bool, typer.Option("--concepts", help="Print the concepts of semi-NMF in words.")] = False,
    as_json: AsJson = False,
    **options: Any,
) -> None:
    """Test whether directions fitted on activations carry the true gradient: energies, nulls, p- and q-values.

    The same command with the same --out returns the finished test.
    """
    from anisoscope.tangent import Tangent
    from anisoscope.tangent.tangent_test import tangent_test

    request = request_of(options)
    if request.data.text is None:
        raise InputError("no text to test on: give it as --text FILE")
    others = {name: model for name, model in (("step_0", step_0), ("other_run", other_run)) if model is not None}
    with progress_bar("tokens", None) as progress:
        run = tangent_test(
            source,
            loss=loss,
            tangent=Tangent(
                proxies=split_names([proxies]) or [],
                ranks=sorted({rank, *_ranks(ranks)}),
                nulls="all" if nulls == "all" else split_names([nulls]) or [],
            ),
            gradients=split_names([gradients]) or [],
            others=others,
            earlier=earlier,
            counts=None if counts is None else _read_counts(counts),
            balance=balance,
            sinks=sinks,
            command=command_line(),
            progress=progress,
            **request.only(TANGENT_OPTIONS),
        )
    records = list(run.records())
    if as_json:
        print_json([record.to_json() for record in records])
        return
    stdout().print(tangent_table(records, run.info, rank, source))
    if concepts:
        stdout().print(concepts_table(run.info, rank))
    if request.output.out is not None:
        stderr().print(f"run written to {escape(str(request.output.out))}")


@app.command(epilog="Example:\n\n    anisoscope curvature --seeds 12")
def curvature(
    seeds: Annotated[int, typer.Option(min=4, max=10_000, help="Paired seeds per setting.")] = 12,
    tokens: Annotated[int, typer.Option(min=64, max=10_000_000, help="Tokens per cloud.")] = 4000,
    noise: Annotated[float, typer.Option(min=0, max=1e6, help="σ of the noise.")] = 0.02,
    kappa: Annotated[
        float, typer.Option(min=0, max=1e6, help="Spread of the entries of the second fundamental form.")
    ] = 0.1,
    as_json: AsJson = False,
) -> None:
    """Simulate how much of a cloud's curvature a frequency-biased sample shows."""
    from anisoscope.studies.curvature import Surface, curvature_records

    records = curvature_records(Surface(tokens=tokens, noise=noise, curvature=kappa), seeds=seeds)
    if as_json:
        print_json([record.to_json() for record in records])
    else:
        stdout().print(curvature_table(records))


def _ranks(text: str | None) -> list[int]:
    try:
        return [int(rank) for rank in split_names([text or ""]) or []]
    except ValueError as error:
        raise InputError(f"--ranks {text!r} is not a list of whole numbers. Use commas, such as 8,32.") from error


def _read_counts(path: Path) -> dict[int, int]:
    try:
        return {int(token): int(count) for token, count in read_json(path).items()}
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise InputError(
            f'{path} is not a table of counts ({first_line(error)}). Use JSON such as {{"17": 4211}}.'
        ) from None
