"""`claims`, `claims run`, `claims report`: test the claims of four papers."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table

from anisoscope.cli.app import (
    AsJson,
    WrittenAsJson,
    app,
    command_line,
    print_json,
    print_written,
    progress_bar,
    stderr,
    stdout,
)
from anisoscope.cli.lab import Overwrite
from anisoscope.errors import InputError

if TYPE_CHECKING:
    from anisoscope.studies.claims.claim import Claim, Verdict
    from anisoscope.studies.claims.run_sizes import Size

claims = typer.Typer(
    help="Test the claims of four papers on anisotropy, on small models trained here or on your models.",
    rich_markup_mode="markdown",
    epilog="Examples:\n\n    anisoscope claims\n\n    anisoscope claims --out runs/pythia --json",
)
app.add_typer(claims, name="claims")

Out = Annotated[Path, typer.Option(help="The run folder of the claims.")]
PackageSize = Annotated[
    str, typer.Option("--size", help="Evidence of the package that is used without a run in --out: small or medium.")
]
_OUT = Path("runs/claims")
_MARKS = {
    "reproduced": "[green]●[/]",
    "not reproduced": "[red]○[/]",
    "inconclusive": "[dim]·[/]",
    "untestable here": "[dim]–[/]",
    "smoke test": "[dim]▨[/]",
}
_LEGEND = (
    "● reproduced   ○ not reproduced   · inconclusive   – untestable here   ▨ smoke test, not judged\n"
    "First mark: as published; second mark: strongest control. Minutes: one core, size small."
)


@claims.callback(invoke_without_command=True)
def listed(
    called: typer.Context,
    out: Out = _OUT,
    as_json: AsJson = False,
) -> None:
    """List every claim with what it needs, what it costs, and its last verdicts."""
    if called.invoked_subcommand is not None:
        return
    from anisoscope.studies.claims.runner import CLAIMS, find_size, last_verdicts

    verdicts = last_verdicts(out)
    if as_json:
        print_json([_row(claim, verdicts.get(claim.id, {})) for claim in CLAIMS])
        return
    stdout().print(_list_table(CLAIMS, verdicts, find_size("small")))


@claims.command(
    epilog="""Examples:

    anisoscope claims run

    anisoscope claims run S1 A3 A4 --model ./smollm --text corpus.txt

    anisoscope claims run N1 N2 --model EleutherAI/pythia-70m --revisions 'step*' --out runs/pythia

    anisoscope claims run P1 N6 --task reviews.jsonl --task questions.csv --out runs/tasks

    anisoscope claims run --size tiny --out runs/smoke-test

    anisoscope claims run A1 --model gpt2 --text corpus.txt --model google/vit-base-patch16-224 --images photos/
"""
)
def run(
    ids: Annotated[list[str] | None, typer.Argument(help="Ids of claims; all claims by default.")] = None,
    model: Annotated[
        list[str] | None, typer.Option(help="A model to test: folder, hub id or .gguf; may be repeated.")
    ] = None,
    text: Annotated[
        str | None, typer.Option(help="Text for the models; by default the text that the lab trains on.")
    ] = None,
    revisions: Annotated[
        str | None, typer.Option(help="Checkpoints of a model by revision: step*, or names separated by commas.")
    ] = None,
    images: Annotated[Path | None, typer.Option(help="A folder of images, for image models.")] = None,
    audio: Annotated[Path | None, typer.Option(help="A folder of recordings, for audio models.")] = None,
    task: Annotated[
        list[Path] | None,
        typer.Option(help="A task for P1 and N6: .jsonl, .csv or .tsv with text and label, or text and match."),
    ] = None,
    size: Annotated[
        str, typer.Option(help="tiny (a smoke test without verdicts), small, medium or paper (published models).")
    ] = "small",
    seeds: Annotated[int | None, typer.Option(min=3, help="Lab trainings of each kind.")] = None,
    out: Out = _OUT,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Gather evidence and judge each claim.

    Interrupt it at any time: the same command resumes. Other claims with the same options reuse what --out holds.
    """
    from anisoscope.studies.claims.claim import SMOKE_TEST
    from anisoscope.studies.claims.runner import (
        ClaimsRequest,
        find_claims,
        find_size,
        kept_evidence,
        run_claims,
        time_to_wait,
    )

    wanted, chosen = find_claims(ids or []), find_size(size, seeds)
    request = ClaimsRequest(chosen, tuple(model or ()), revisions, text, images, audio, tuple(task or ()))
    todo = wanted if overwrite else [claim for claim in wanted if kept_evidence(out, claim.id) is None]
    if todo and not model:
        minutes = max(1, round(time_to_wait(todo, chosen, out)))
        stderr().print(f"[dim]about {minutes} {'minute' if minutes == 1 else 'minutes'}[/]")
    judged: list[tuple[Claim, tuple[Verdict, Verdict]]] = []
    try:
        with progress_bar("claims", len(wanted)) as bar:
            how: dict[str, Any] = {"on_status": bar.say, "command": command_line(), "overwrite": overwrite}
            for claim, verdicts in run_claims(wanted, out, request, **how):
                judged.append((claim, verdicts))
                bar(1)
    except KeyboardInterrupt:
        stderr().print(
            f"{len(judged)} of {len(wanted)} claims judged in {escape(str(out))}. Run the same command to continue."
        )
        raise
    if not any(kept_evidence(out, claim.id) for claim, _ in judged):
        raise InputError(f"No evidence for any claim. {judged[0][0].id}: {judged[0][1][0].reason}")
    if as_json:
        print_json([verdict.to_record().to_json() for _, pair in judged for verdict in pair])
        return
    stdout().print(verdicts_view(judged))
    if any(verdict.outcome == SMOKE_TEST for _, pair in judged for verdict in pair):
        stderr().print("[yellow]This was a smoke test: no claim was judged.[/]")
    stderr().print(f"[dim]report[/]  anisoscope claims report --out {escape(str(out))}", soft_wrap=True)


@claims.command(
    epilog="Examples:\n\n    anisoscope claims report\n\n    anisoscope claims report --size medium\n\n"
    "    anisoscope claims report --out runs/pythia --page p.html"
)
def report(
    out: Out = _OUT,
    size: PackageSize = "small",
    page: Annotated[Path | None, typer.Option(help="The .html file; claims.html in the run by default.")] = None,
    as_json: WrittenAsJson = False,
) -> None:
    """Write one HTML page with every claim that was run: figures, verdicts and reasons.

    Without a run in --out, the page shows the evidence that comes with the package.
    """
    from anisoscope.cli.claims_page import write_claims_page
    from anisoscope.studies.claims.committed_evidence import committed, unpack_evidence

    if not out.exists():
        with tempfile.TemporaryDirectory() as temporary:
            folder = unpack_evidence(committed(size), Path(temporary) / "claims")
            written = write_claims_page(folder, page or Path("claims.html"))
        source = f"the evidence of size {size} that comes with the package"
        stderr().print(f"[dim]{escape(str(out))} does not exist: this is {source}[/]")
    else:
        written = write_claims_page(out, page or out / "claims.html")
    print_written("report", written, as_json=as_json)


@claims.command(epilog="Examples:\n\n    anisoscope claims power\n\n    anisoscope claims power --out runs/pythia")
def power(out: Out = _OUT, size: PackageSize = "small", as_json: AsJson = False) -> None:
    """Show how reliable each rule is at the noise of the evidence.

    Each rule judges 200 simulated worlds in which its claim holds and 200 in which it does not. Power is the share of
    the first that it calls reproduced, false alarms the share of the second. Below 80 % power a claim is never called
    "not reproduced". Without a run in --out, the evidence that comes with the package is used.
    """
    from anisoscope.studies.claims.committed_evidence import committed, judged
    from anisoscope.studies.claims.judging import judge
    from anisoscope.studies.claims.runner import CLAIMS, kept_evidence

    if out.exists():
        evidence = [(claim, kept_evidence(out, claim.id)) for claim in CLAIMS]
        pairs = [(claim, judge(claim, each)) for claim, each in evidence if each is not None]
    else:
        pairs = [(claim, (a, b)) for claim, (a, b) in judged(committed(size))]
    verdicts = [verdict for _, pair in pairs for verdict in pair if verdict.power is not None]
    if not verdicts:
        raise InputError(f"{out} has no evidence with an interval. Gather some with: anisoscope claims run --out {out}")
    if as_json:
        print_json([verdict.to_record().variant for verdict in verdicts])
        return
    stdout().print(_power_view(verdicts))


# --- tables -------------------------------------------------------------------------------------------------------


def _power_view(verdicts: Sequence[Verdict]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for name in ("id", "line", "verdict", "power", "false alarms", "refuted if it does not hold"):
        table.add_column(name, justify="left" if name in ("id", "line", "verdict") else "right")
    for verdict in verdicts:
        shares = verdict.power
        assert shares is not None
        values = (shares.power, shares.false_alarms, shares.refuted)
        table.add_row(verdict.claim, verdict.line, verdict.outcome, *(f"{value:.0%}" for value in values))
    return table


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
    table.add_row("", "all claims together; they share trainings", "", f"{cost(known, small):.0f}", "")
    return table


def verdicts_view(judged: Sequence[tuple[Claim, tuple[Verdict, Verdict]]]) -> RenderableType:
    """Every claim with its two verdicts, the reasons, what was run and what would settle it."""
    from anisoscope.studies.claims.claim import SMOKE_TEST, SMOKE_TEST_NOTE, shared_context

    parts: list[RenderableType] = []
    if any(verdict.outcome == SMOKE_TEST for _, verdicts in judged for verdict in verdicts):
        parts.append(Panel(SMOKE_TEST_NOTE, style="yellow"))
    for claim, verdicts in judged:
        parts.append(Padding(_hanging(f"[bold]{claim.id}[/]", escape(claim.statement)), (1, 0, 0, 0)))
        for verdict in verdicts:
            heading = f"{verdict.line}: [bold]{verdict.outcome}[/]"
            parts.append(Padding(_hanging(_MARKS[verdict.outcome], heading), (0, 0, 0, 4)))
            parts += [
                Padding(_hanging("[dim]–[/]", f"[dim]{escape(r)}[/]"), (0, 2, 0, 6)) for r in verdict.reasons.conditions
            ]
        parts += [Padding(f"[dim]{escape(line)}[/]", (0, 2, 0, 4)) for line in shared_context(verdicts)]
    return Group(*parts)


def _hanging(mark: str, text: str) -> Table:
    """A text whose lines all begin after the mark."""
    grid = Table.grid(padding=(0, 1, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_row(mark, text)
    return grid
