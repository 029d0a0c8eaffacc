"""`similarity`: how alike the layers of two models are."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.markup import escape

from anisoscope.cli.app import AsJson, app, command_line, print_json, progress_bar, stderr, stdout
from anisoscope.cli.options import request_of, with_request
from anisoscope.measurement.request import ModelOptions, names_of

_OPTIONS = (
    *("text", "field", "document_mark", "window", "batch", "sites", "seed"),
    *(name for name in names_of(ModelOptions) if name != "tensor_parallel"),
    *("out", "overwrite"),
)
_ROWS = 1024


@app.command(
    epilog="""Examples:

    anisoscope similarity ./a ./b --text corpus.jsonl

    anisoscope similarity ./gpt2 ./bert --text corpus.jsonl --rows words --out runs/words

    anisoscope similarity org/model org/model --revision step1000 --revision-b step143000 --text corpus.jsonl
"""
)
@with_request(
    _OPTIONS,
    help={
        "revision": "Revision of a hub model, for both models.",
        "sites": "Kinds (embed resid attn mlp final) or sites (resid.7), separated by commas.",
        "seed": "Seed of the chosen words and of the permutations.",
        "batch": "Documents per forward pass.",
        "window": "Most tokens per document. Default: 512, or what the model allows.",
        "out": "Run folder to write. If it is complete, the same command prints it again.",
    },
)
def similarity(
    model_a: Annotated[str, typer.Argument(help="A text model: folder, hub id, .gguf.")],
    model_b: Annotated[str, typer.Argument(help="The model to compare it with.")],
    rows: Annotated[
        str, typer.Option(help="One row per document: mean of its tokens, last or cls (first). Or one per word: words.")
    ] = "mean",
    limit: Annotated[int, typer.Option(min=4, help="Most rows to compare.")] = _ROWS,
    sinks: Annotated[
        bool, typer.Option("--sinks", help="Count first tokens of windows and massive tokens too.")
    ] = False,
    revision_b: Annotated[str | None, typer.Option(help="Revision of the second model. Default: --revision.")] = None,
    as_json: AsJson = False,
    **options: Any,
) -> None:
    """Compare every layer of one model with every layer of another: CKA, nearest neighbours, p-values."""
    from anisoscope.measurement.compare_models import SIMILARITY_OPTIONS
    from anisoscope.measurement.compare_models import similarity as compare
    from anisoscope.report.similarity_summary import similarity_table

    request = request_of(options)
    options = request.only(SIMILARITY_OPTIONS)
    with progress_bar("opening", None) as bar:
        run = compare(
            model_a,
            model_b,
            rows=rows,
            limit=limit,
            sinks=sinks,
            revision_b=revision_b,
            command=command_line(),
            progress=bar,
            on_stage=bar.begin,
            **options,
        )
    records = list(run.records())
    if as_json:
        print_json([record.to_json() for record in records])
        return
    stdout().print(similarity_table(records, run.info))
    if request.output.out is not None:
        stderr().print(f"run written to {escape(str(request.output.out))}")
