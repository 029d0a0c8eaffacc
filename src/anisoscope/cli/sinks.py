"""`sinks`: which tokens of a model are massive, as a table and a file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.console import RenderableType
from rich.markup import escape
from rich.table import Table

from anisoscope.cli.app import app, print_json, progress_bar, stderr, stdout
from anisoscope.cli.options import with_request
from anisoscope.measurement.request import ModelOptions, Request, names_of

if TYPE_CHECKING:
    from anisoscope.measurement.sink_profile import SinkClass, Sinks

_OPTIONS = (
    *("text", "field", "document_mark", "images", "audio", "seconds", "window", "batch", "tokens", "special", "seed"),
    *(name for name in names_of(ModelOptions) if name != "tensor_parallel"),
)


@app.command(
    epilog="""Examples:

    anisoscope sinks ./model --text corpus.jsonl --out sinks.json

    anisoscope sinks ./vit --images photos/ --out sinks.json --map patches.png
"""
)
@with_request(_OPTIONS)
def sinks(
    model: Annotated[str, typer.Argument(help="A model: folder, hub id, .gguf.")],
    request: Request,
    out: Annotated[Path | None, typer.Option(help="The .json file to write, for `anisoscope.Sinks.load`.")] = None,
    map_file: Annotated[
        Path | None, typer.Option("--map", help="For images: a .png, .svg, .pdf or .html map of patch norms to write.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the profile as one JSON object and nothing else.")
    ] = False,
) -> None:
    """Find massive tokens (attention sinks): layer by layer, by class of token and by coordinate.

    A token is massive at the first layer where its norm exceeds five medians, and stays flagged after it. The file is
    what a mask for SAE training, quantisation or steering needs.
    """
    from anisoscope.measurement.find_sinks import SINK_OPTIONS
    from anisoscope.measurement.find_sinks import sinks as find

    options = {name: value for name, value in request.flat().items() if name in SINK_OPTIONS}
    with progress_bar("tokens", request.statistics.tokens) as bar:
        profile = find(model, progress=bar, **options)
    if out is not None:
        stderr().print(f"profile: {escape(str(profile.save(out)))}")
    if map_file is not None:
        from anisoscope.report.patch_map import patch_map
        from anisoscope.report.theme import save_chart

        stderr().print(f"map: {escape(str(save_chart(patch_map(profile.patch_rows()), map_file)))}")
    if as_json:
        print_json(profile.to_json())
    else:
        stdout().print(sinks_table(profile))


def sinks_table(profile: Sinks) -> RenderableType:
    """One row per site with massive or flagged tokens: how many, of which class, in which coordinate."""
    name = str(profile.model.get("source") or profile.model.get("architecture", "?"))
    title = f"{name}: massive tokens among {profile.data.get('tokens', '?'):,} tokens"
    table = Table(title=escape(title), box=box.SIMPLE_HEAD, title_justify="left", title_style="bold", padding=(0, 1))
    for column in ("site", "threshold", "massive", "flagged", "most in", "expected", "p", "coordinate", "energy"):
        table.add_column(column, justify="left" if column in ("site", "most in") else "right", no_wrap=True)
    for entry in profile.sites:
        flagged = sum(each.flagged for each in entry.classes)
        if not flagged:
            continue
        most: SinkClass = max(entry.classes, key=lambda each: (each.massive, each.flagged))
        top = most.coordinates[0] if most.coordinates else None
        table.add_row(
            entry.site,
            f"{entry.threshold:.4g}",
            str(entry.massive),
            str(flagged),
            f"{most.name}: {most.massive}",
            f"{most.null:.2g}",
            f"{most.p:.1g}",
            str(top.coordinate) if top else "–",
            f"{top.energy:.0%}" if top else "–",
        )
    if not table.row_count:
        table.add_row("none", *["–"] * 8)
    return table
