"""`look`: the headline numbers of a model or of vectors in one call."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Group
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from anisoscope.cli.app import AsJson, app, command_line, print_json, progress_bar, stdout
from anisoscope.cli.measure import is_vectors, require_sound, require_value
from anisoscope.cli.options import request_of, with_request
from anisoscope.measurement.request import ModelOptions, Request, VectorOptions, names_of
from anisoscope.report.questions import METRICS

if TYPE_CHECKING:
    from anisoscope.store.run import Run

_OPTIONS = (  # what `measure` takes, except what needs several processes or what a first look fixes
    *("text", "images", "audio", "window", "batch", "field", "document_mark", "tokens", "sample"),
    *(name for name in names_of(VectorOptions, ModelOptions) if name != "tensor_parallel"),
    "out",
)
_DEFAULTS = {"tokens": 4096, "sample": 2048}
_HELP = {
    "text": "Text: a file, a folder, .jsonl, .parquet, - or datasets:NAME. Default: sample:topics, part of Python.",
    "sample": "Rows per site from which the intrinsic dimension is estimated.",
    "out": "Run folder to write. Default: runs/look-NAME, which is replaced.",
}


@app.command(
    epilog="""Examples:

    anisoscope look ./smollm

    anisoscope look model.gguf --text corpus.txt

    anisoscope look google/vit-base-patch16-224 --images photos/

    anisoscope look vectors.npy
"""
)
@with_request(_OPTIONS, help=_HELP, defaults=_DEFAULTS)
def look(
    source: Annotated[
        str, typer.Argument(help="A model: folder, hub id, .gguf; or vectors (.npy .npz .safetensors .parquet .pt).")
    ],
    as_json: AsJson = False,
    **options: Any,
) -> None:
    """Take a first look: eight headline metrics of a model or of vectors, in sentences, a short table and a page.

    A model reads 4,096 tokens. There are no error bars: the last line is the command that computes them. Readings are
    rules of thumb for the layer with the strongest finding: a share under 20 % is "no", from 50 % on "yes".
    """
    from anisoscope.report.overview import rows_by_metric
    from anisoscope.report.page import write_report
    from anisoscope.report.questions import answers, questions_table, streams_of
    from anisoscope.report.run_tables import GLOSSARY, stream_title
    from anisoscope.report.sentences import in_rows
    from anisoscope.report.tables import table_of

    request = request_of(options)
    vectors = is_vectors(source, request)
    if request.source() is None and not vectors:
        request = request.having(text="sample:topics")
    run = _run_of(source, request, vectors)
    page = write_report([run], _folder(source, request) / "report.html")
    if as_json:
        print_json([record.to_json() for record in run.records()])
        require_sound(run, run.path)
        return
    rows = rows_by_metric(table_of([run]))
    results = {stream: answers(rows, stream) for stream in streams_of(rows)}
    parts: list[Any] = [Text(_title(source, run), style="bold"), Text("")]
    for stream, of_stream in results.items():
        title = "" if vectors or list(results) == ["resid"] else stream_title(stream)
        sentences = Table.grid(padding=(0, 2))
        for answer in of_stream:
            sentence = in_rows(answer.sentence, tokens=not vectors)
            sentences.add_row(Text(answer.question, style="bold"), Text(f"{sentence[:1].upper()}{sentence[1:]}."))
        parts += [sentences, Text(""), questions_table(of_stream, title), Text("")]
    policy = "" if vectors else "Values are without first and massive tokens unless stated. "
    console = stdout()
    console.print(Group(*parts, Text(f"{policy}No error bars. {GLOSSARY}", style="dim")))
    console.print(f"[bold]page[/]        {escape(str(page))}", soft_wrap=True)
    console.print(f"[bold]error bars[/]  {escape(_with_errors(source, request))}", soft_wrap=True)
    require_sound(run, run.path)


def _run_of(source: str, request: Request, vectors: bool) -> Run:
    """Measure the headline metrics into a run, with the same engine as `measure`."""
    from anisoscope.measurement.measure_model import MEASURE_OPTIONS, measure
    from anisoscope.measurement.measure_rows import ROW_OPTIONS, measure_rows

    out = _folder(source, request)
    request = request.having(metrics=list(METRICS), errors=False, out=out, overwrite=request.output.out is None)
    names = ROW_OPTIONS if vectors else MEASURE_OPTIONS
    options = request.only(names)
    if vectors:
        with progress_bar("rows", None) as bar:
            run = measure_rows(source, list(METRICS), command=command_line(), progress=bar, **options)
        require_value(run.records())
        return run
    total = request.statistics.tokens if request.data.text is not None else None
    with progress_bar("tokens", total) as bar:
        run = measure(source, command=command_line(), progress=bar, on_status=bar.say, **options)
    require_value(run.records())
    return run


def _folder(source: str, request: Request) -> Path:
    """The folder of the run."""
    return Path(request.output.out or Path("runs") / f"look-{_name(source)}")


def _name(source: str) -> str:
    """A source as the name of a folder.

    >>> _name("models/SmolLM2-135M.Q4_1.gguf"), _name("EleutherAI/pythia-160m")
    ('SmolLM2-135M.Q4_1', 'pythia-160m')
    """
    path = Path(source)
    whole = path.name or path.resolve().name  # "." has no name of its own
    name = whole if path.is_dir() else re.sub(r"\.(gguf|npy|npz|safetensors|parquet|pt)$", "", whole)
    return re.sub(r"[^\w.-]+", "-", name).strip(".-") or "model"


def _title(source: str, run: Run) -> str:
    """What was measured, in one line."""
    data = run.info.get("data", {})
    if run.info.get("kind") == "vectors":
        count = next((record.n for record in run.records() if record.n is not None), None)
        return source if count is None else f"{source}: {count:,} rows"
    return f"{source}: {data.get('tokens', 0):,} tokens of {data.get('source')}"


def _with_errors(source: str, request: Request) -> str:
    """The command that measures every metric with error bars."""
    values = {"text": request.data.text, "images": request.data.images, "audio": request.data.audio}
    values |= {name: request.flat()[name] for name in ("tensor", "column", "documents", "revision", "dtype")}
    options = [word for name, value in values.items() if value is not None for word in (f"--{name}", str(value))]
    return shlex.join(["anisoscope", "measure", source, *options, "--out", f"runs/{_name(source)}"])
