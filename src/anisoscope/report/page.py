"""Runs as one HTML file that opens from disk: nothing is loaded from elsewhere, and no text of a run becomes HTML."""

from __future__ import annotations

import base64
import hashlib
import shlex
from collections.abc import Sequence
from pathlib import Path

from markupsafe import Markup

from anisoscope.errors import InputError
from anisoscope.report.outline import cards_of, outline_of
from anisoscope.report.packed_table import pack
from anisoscope.report.page_top import largest_differences, legends_of, side_of
from anisoscope.report.question_sections import general_notes, sections_of
from anisoscope.report.reported_run import measured_runs, reported_runs
from anisoscope.report.section_tables import style_of_verdict
from anisoscope.report.sections import metric_cards, run_facts, run_results
from anisoscope.report.summary import summary_of
from anisoscope.report.tables import table_of
from anisoscope.report.templates import asset, render
from anisoscope.report.topics import DETAILS
from anisoscope.report.vega import scoped, vega_script
from anisoscope.store.files import write_text
from anisoscope.store.run import Run

SCRIPTS = ("table.js", "chart.js", "figures.js", "page.js")


def write_report(runs: Sequence[Run], path: str | Path) -> Path:
    """Write the report of one or more runs to an .html file.

    Raises:
        InputError: `path` does not end in .html, its folder does not exist, or the runs have no records.
    """
    target = Path(path)
    if target.suffix.lower() not in (".html", ".htm"):
        raise InputError(f"The name of a report must end in .html; {target.name!r} does not")
    if not target.parent.is_dir():
        raise InputError(f"cannot write {target}: the folder {target.parent} does not exist; create it first")
    write_text(target, report_page(runs))
    return target


def report_page(runs: Sequence[Run]) -> str:
    """The report of one or more runs as HTML: thesis, tiles, hero chart, questions, explorer, details, all records."""
    table = table_of(runs)
    if not len(table):
        raise InputError(f"{' and '.join(run.name for run in runs)} has no records yet; measure something first")
    reported = [run for run in reported_runs(runs, table) if len(run.table)]
    measured = measured_runs(reported)
    summary, sections, cards = summary_of(measured), sections_of(reported), cards_of(runs)
    figures = {f"hero-{i}": figure.to_json() for i, figure in enumerate(summary.heroes)}
    figures |= {f"{s.id}-{i}": figure.to_json() for s in sections for i, figure in enumerate(s.figures)}
    scripts, vega = own_scripts("startReport();"), vega_script()
    # Marked as safe: our own scripts and styles. Texts from the run are not, so the template escapes them.
    return render(
        "report.html",
        policy=Markup(_policy(scripts, vega)),
        title=", ".join(run.label for run in reported),
        style=Markup(asset("page.css")),
        summary=summary,
        side=side_of(summary, measured, largest_differences(runs)),
        sections=sections,
        legends=legends_of(summary, sections, measured),
        general=general_notes(measured),
        metric_notes=general_notes(measured, DETAILS),
        verdict_style=style_of_verdict,
        results=[run_results(run) for run in reported],
        measured=[(each.label, run_facts(run)) for each, run in zip(reported, runs, strict=False)],
        cards=metric_cards(cards, list(table["metric"].unique())),
        count=f"{len(table):,}",
        export=f"anisoscope export {shlex.quote(str(runs[0].path))} --to records.parquet",
        records=pack(table, {**outline_of(table, cards), "figures": figures}),
        vega=Markup(vega),
        scripts=Markup(scripts),
    )


def live_page() -> str:
    """The page that `serve` shows; its scripts and records come from the server."""
    return render("live.html")


def own_scripts(start: str, *more: str) -> str:
    """The scripts of our pages and the call that starts them, in one scope."""
    return scoped("\n".join([*map(asset, (*SCRIPTS, *more)), start]))


def _policy(*scripts: str) -> str:
    """A content policy under which only these inline scripts run and nothing is fetched or sent."""
    hashes = " ".join(f"'sha256-{base64.b64encode(hashlib.sha256(s.encode()).digest()).decode()}'" for s in scripts)
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
