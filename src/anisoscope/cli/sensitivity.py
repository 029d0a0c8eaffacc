"""`sensitivity`: metrics against n, batch size and shuffling."""

from __future__ import annotations

import shlex
from typing import Annotated, Any

import typer
from rich.markup import escape

from anisoscope.cli.app import app, command_line, print_json, progress_bar, stderr, stdout
from anisoscope.cli.measure import is_vectors
from anisoscope.cli.options import request_of, with_request
from anisoscope.errors import InputError
from anisoscope.measurement.request import VectorOptions, names_of

_OPTIONS = (
    *("text", "window", "batch", "field", "document_mark", "sites", "metrics", "sample", "seed", "errors"),
    *names_of(VectorOptions),
    *("revision", "dtype", "device", "device_map", "trust_remote_code", "allow_pickle", "tokenizer"),
    *("out", "overwrite"),
)
_METRICS = ("mean_cosine", "spectral_anisotropy", "isoscore", "two_nn")


@app.command(
    epilog="""Examples:

    anisoscope sensitivity ./smollm --text corpus.jsonl

    anisoscope sensitivity ./smollm --text corpus.jsonl --tokens 1024,4096,65536 --batch-tokens 4096 --shuffles 10

    anisoscope sensitivity ./smollm --text corpus.jsonl --sites embed,resid.5,final -m mean_cosine,two_nn --out runs/n

    anisoscope sensitivity vectors.npy --tokens 500,1000,2000 --batch-tokens 500 --json
"""
)
@with_request(
    _OPTIONS,
    defaults={"sites": None, "metrics": _METRICS},
    help={
        "sites": "Sites (embed, resid.7, final) or kinds, separated by commas. Default: the middle layer.",
        "metrics": "Metrics by name, separated by commas.",
        "seed": "Seed of the sample of rows and of the shuffles.",
        "batch": "Windows per forward pass.",
        "out": "Run folder to write. If it is complete, the same command prints it again.",
    },
)
def sensitivity(
    source: Annotated[str, typer.Argument(help="A text model: folder, hub id, .gguf. Or a file of vectors.")],
    tokens: Annotated[
        str | None, typer.Option(help="Sizes n of samples, separated by commas [1024,4096,16384]; rows, for vectors.")
    ] = None,
    batch_tokens: Annotated[
        str | None, typer.Option(help="Sizes of batches, separated by commas [1024,4096, if there are two].")
    ] = None,
    shuffles: Annotated[int, typer.Option(min=0, help="How many times the documents are shuffled.")] = 5,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the rows of all tables, of both token policies, as one JSON list.")
    ] = False,
    **options: Any,
) -> None:
    """Show whether a number is a property of the model or of the sample: its value against n, batch size and shuffling.

    The model runs over the text once. Each sample holds whole windows and is measured as `measure` would. A number that
    changes with n by many error bars, or with the size of batches, cannot be compared with one at another n.
    """
    from anisoscope.measurement.sample_plan import SampleDesign
    from anisoscope.measurement.sample_sensitivity import Listeners, model_sensitivity, vector_sensitivity
    from anisoscope.report.sensitivity_summary import sample_rows, sensitivity_tables

    design = SampleDesign(_sizes("tokens", tokens), _sizes("batch-tokens", batch_tokens), shuffles)
    middle = not options["sites"]
    request = request_of({name: value for name, value in options.items() if name != "sites" or not middle})
    if middle:
        request = request.having(sites=())
    measure = vector_sensitivity if is_vectors(source, request) else model_sensitivity
    with progress_bar("opening", None) as bar:
        listeners = Listeners(stage=bar.begin, progress=bar)
        run = measure(source, request, design, listeners=listeners, command=command_line())
    records = run.records()
    if as_json:
        print_json([row.to_json() for row in sample_rows(records, run.info)])
        return
    stdout().print(sensitivity_tables(records, run.info))
    if request.output.out is not None:
        stderr().print(f"run written to {escape(str(request.output.out))}")
        stderr().print(f"next: anisoscope report {escape(shlex.quote(str(request.output.out)))}", soft_wrap=True)


def _sizes(name: str, text: str | None) -> tuple[int, ...] | None:
    """The numbers in a text that separates them by commas; None if the option was not given."""
    if text is None:
        return None
    try:
        return tuple(int(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise InputError(f"--{name} is {text!r}. Give whole numbers, separated by commas, such as 1024,4096.") from None
