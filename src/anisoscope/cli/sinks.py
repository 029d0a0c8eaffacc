"""`sinks`: which tokens of a model are massive, as a table and a file."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import RenderableType
from rich.markup import escape
from rich.table import Table

from anisoscope.cli.app import app, print_json, progress_bar, stderr, stdout
from anisoscope.cli.options import request_of, with_request
from anisoscope.measurement.request import ModelOptions, names_of
from anisoscope.report.cells import FittedTable, new_table

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
    out: Annotated[Path | None, typer.Option(help="The .json file to write, for `anisoscope.Sinks.load`.")] = None,
    map_file: Annotated[
        Path | None, typer.Option("--map", help="For images: a .png, .svg, .pdf or .html map of patch norms to write.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the profile as one JSON object and nothing else.")
    ] = False,
    **options: Any,
) -> None:
    """Find massive tokens (attention sinks): layer by layer, by class of token and by coordinate.

    A token is massive at the first layer where its norm exceeds five medians, and stays flagged after it. The file is
    what a mask for SAE training, quantisation or steering needs.
    """
    from anisoscope.measurement.find_sinks import SINK_OPTIONS
    from anisoscope.measurement.find_sinks import sinks as find

    request = request_of(options)
    options = request.only(SINK_OPTIONS)
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
    return FittedTable([partial(_layout, profile, stacked=False), partial(_layout, profile, stacked=True)])


def _layout(profile: Sinks, *, stacked: bool) -> Table:
    """The table, or the same with p under the expected number and the energy under the coordinate."""
    name = str(profile.model.get("source") or profile.model.get("architecture", "?"))
    columns = ("site", "threshold", "massive", "flagged", "most in", "expected", "p", "coordinate", "energy")
    title = f"{name}: massive tokens among {profile.data.get('tokens', '?'):,} tokens"
    heads = (*columns[:5], "expected\np", "coordinate\nenergy") if stacked else columns
    table = new_table(title, *heads, left=("most in",))
    for entry in profile.sites:
        flagged = sum(each.flagged for each in entry.classes)
        if not flagged:
            continue
        most: SinkClass = max(entry.classes, key=lambda each: (each.massive, each.flagged))
        top = most.coordinates[0] if most.coordinates else None
        null, coordinate = (f"{most.null:.2g}", f"{most.p:.1g}"), ("–", "–")
        if top is not None:
            coordinate = str(top.coordinate), f"{100 * top.energy:.0f} %"
        counts = (entry.site, f"{entry.threshold:.4g}", f"{entry.massive:,}", f"{flagged:,}")
        rest = ("\n".join(null), "\n".join(coordinate)) if stacked else (*null, *coordinate)
        table.add_row(*counts, f"{most.name}:{chr(10) if stacked else ' '}{most.massive:,}", *rest)
    if not table.row_count:
        table.add_row("none", *["–"] * (len(heads) - 1))
    return table
