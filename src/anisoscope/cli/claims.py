"""`claims`, `claims run`, `claims report`: what four papers say, run here and judged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table

from anisoscope.cli.app import AsJson, app, command_line, progress_bar, stderr, stdout
from anisoscope.errors import InputError

if TYPE_CHECKING:
    from anisoscope.studies.claims.claim import Claim, Verdict
    from anisoscope.studies.claims.sizes import Size

claims = typer.Typer(
    help="What four papers on anisotropy say: every claim run and judged, here and on your models.",
    rich_markup_mode="markdown",
    epilog="Examples:\n\n    anisoscope claims\n\n    anisoscope claims --out runs/pythia --json",
)
app.add_typer(claims, name="claims")

Out = Annotated[Path, typer.Option(help="The run folder of the claims.")]
_OUT = Path("runs/claims")
_MARKS = {"reproduced": "[green]●[/]", "not reproduced": "[red]○[/]", "inconclusive": "[dim]·[/]"}
_LEGEND = "● reproduced   ○ not reproduced   · inconclusive, as published and under the strongest control"


@claims.callback(invoke_without_command=True)
def listed(
    called: typer.Context,
    out: Out = _OUT,
    as_json: AsJson = False,
) -> None:
    """The list: every claim, what it needs and costs, and its last verdict."""
    if called.invoked_subcommand is not None:
        return
    from anisoscope.studies.claims.runner import CLAIMS, find_size, last_verdicts

    verdicts = last_verdicts(out)
    if as_json:
        typer.echo(json.dumps([_row(claim, verdicts.get(claim.id, {})) for claim in CLAIMS]))
        return
    stdout().print(_list_table(CLAIMS, verdicts, find_size("small")))


@claims.command(
    epilog="""Examples:

    anisoscope claims run

    anisoscope claims run S1 A3 A4 --model ./smollm --text corpus.txt

    anisoscope claims run N1 N2 --model EleutherAI/pythia-70m --revisions 'step*' --out runs/pythia

    anisoscope claims run A1 --model gpt2 --text corpus.txt --model google/vit-base-patch16-224 --images photos/
"""
)
def run(
    ids: Annotated[list[str] | None, typer.Argument(help="Claims by id; all of them by default.")] = None,
    model: Annotated[
        list[str] | None, typer.Option(help="A model to judge by: folder, hub id, .gguf; may be repeated.")
    ] = None,
    text: Annotated[str | None, typer.Option(help="Text for the models; without one, what the lab trains on.")] = None,
    revisions: Annotated[
        str | None, typer.Option(help="Checkpoints of a model by revision: step*, or names with commas.")
    ] = None,
    images: Annotated[Path | None, typer.Option(help="A folder of images for models of images.")] = None,
    audio: Annotated[Path | None, typer.Option(help="A folder of recordings for models of sound.")] = None,
    size: Annotated[str, typer.Option(help="tiny, small, or paper: as published, with real weights.")] = "small",
    seeds: Annotated[int | None, typer.Option(min=3, help="Trainings of each kind in the lab.")] = None,
    out: Out = _OUT,
    as_json: AsJson = False,
) -> None:
    """Gather the evidence and judge: nothing that is in --out already is made again, so it can be broken off."""
    from anisoscope.studies.claims.runner import (
        ClaimsRequest,
        find_claims,
        find_size,
        kept_evidence,
        run_claims,
        time_to_wait,
    )

    wanted, chosen = find_claims(ids or []), find_size(size, seeds)
    asked = ClaimsRequest(chosen, tuple(model or ()), revisions, text, images, audio)
    if not model:
        minutes = time_to_wait(wanted, chosen)
        stderr().print(f"[dim]about {minutes:.0f} minutes where nothing is kept yet, in {out}[/]")
    found: list[tuple[Claim, tuple[Verdict, Verdict]]] = []
    try:
        with progress_bar("claims", len(wanted)) as bar:
            for claim, verdicts in run_claims(wanted, out, asked, say=bar.say, command=command_line()):
                found.append((claim, verdicts))
                bar(1)
    except KeyboardInterrupt:
        stderr().print(f"{len(found)} of {len(wanted)} claims judged in {escape(str(out))}; the same command goes on")
        raise
    if not any(kept_evidence(out, claim.id) for claim, _ in found):
        raise InputError(f"no evidence could be had: {found[0][1][0].reason}")
    if as_json:
        typer.echo(json.dumps([verdict.to_record().to_json() for _, pair in found for verdict in pair]))
        return
    stdout().print(_told(found))
    stderr().print(f"[dim]look at it[/]  anisoscope claims report --out {escape(str(out))}", soft_wrap=True)


@claims.command(epilog="Example:\n\n    anisoscope claims report --out runs/claims --page claims.html")
def report(
    out: Out = _OUT,
    page: Annotated[Path | None, typer.Option(help="The .html file; claims.html in the run by default.")] = None,
) -> None:
    """One page: every claim that was run, its figure, its verdicts and the reasons."""
    from anisoscope.cli.claims_page import write_claims_page

    written = write_claims_page(out, page or out / "claims.html")
    stderr().print(f"report: {escape(str(written))} ({written.stat().st_size / 1e6:.1f} MB)")


# --- tables -------------------------------------------------------------------------------------------------------


def _row(claim: Claim, verdicts: dict[str, str]) -> dict[str, object]:
    return {
        "id": claim.id,
        "paper": claim.paper,
        "claim": claim.statement,
        "needs": claim.needs,
        "cells": list(claim.cells),
        "verdicts": verdicts,
    }


def _list_table(known: tuple[Claim, ...], verdicts: dict[str, dict[str, str]], small: Size) -> Table:
    from anisoscope.report.sections import paper_name
    from anisoscope.studies.claims.runner import cost

    table = Table(box=box.SIMPLE_HEAD, caption=_LEGEND, caption_justify="left", padding=(0, 1, 0, 0))
    for name in ("id", "claim", "needs", "minutes", "last"):
        table.add_column(name, justify="right" if name == "minutes" else "left", no_wrap=name in ("id", "last"))
    paper = None
    for claim in known:
        if claim.paper != paper:
            paper = claim.paper
            table.add_section()
            table.add_row("", f"[bold]{paper_name(paper)}[/]")
        marks = " ".join(_MARKS[outcome] for outcome in verdicts.get(claim.id, {}).values())
        table.add_row(claim.id, claim.statement, claim.needs, f"{cost([claim], small):.1f}", marks or "[dim]–[/]")
    table.add_section()
    table.add_row("", "all together, trainings shared", "", f"{cost(known, small):.0f}", "")
    return table


def _told(found: list[tuple[Claim, tuple[Verdict, Verdict]]]) -> RenderableType:
    """Every claim with its two lines, and the reasons below each."""
    parts: list[RenderableType] = []
    for claim, verdicts in found:
        parts.append(Padding(f"[bold]{claim.id}[/]  {escape(claim.statement)}", (1, 0, 0, 0)))
        for verdict in verdicts:
            parts.append(Padding(f"{_MARKS[verdict.outcome]} {verdict.line}: [bold]{verdict.outcome}[/]", (0, 0, 0, 4)))
            parts.append(Padding(f"[dim]{escape(verdict.reason)}[/]", (0, 2, 0, 6)))
    return Group(*parts)
