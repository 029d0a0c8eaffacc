"""Runs as one HTML file that opens from disk: nothing is loaded from elsewhere, no text in a run becomes markup."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from functools import cache
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template

from anisoscope.errors import InputError
from anisoscope.report.book import cards_of, outline_of
from anisoscope.report.packed import pack
from anisoscope.report.sections import cards_part, claims_part, measured_part, reading_part
from anisoscope.report.tidy import by_metric, depths_of, first_and_last, rows_of, run_labels, table_of
from anisoscope.store.files import write_text
from anisoscope.store.run import Run

SCRIPTS = ("table.js", "chart.js", "page.js")


def write_report(runs: Sequence[Run], path: str | Path) -> Path:
    """The report of some runs as a file."""
    target = Path(path)
    if target.suffix.lower() not in (".html", ".htm"):
        raise InputError(f"a report is an .html file; {target.name!r} is not one")
    if not target.parent.is_dir():
        raise InputError(f"cannot write {target}: there is no folder {target.parent}; make it first")
    write_text(target, report_page(runs))
    return target


def report_page(runs: Sequence[Run]) -> str:
    """The report of some runs as HTML: sentences, charts, what was measured, cards, and all records inside."""
    table = table_of(runs)
    if not len(table):
        raise InputError(f"{' and '.join(run.name for run in runs)} holds no records yet; measure something first")
    labels, depths, cards = run_labels(runs), depths_of(table), cards_of(runs)
    ends = first_and_last(table)  # what sentences and tables speak of; charts show the steps between
    told = [
        (label, run, {name: rows_of(group, depths) for name, group in by_metric(ends[ends["run"] == label]).items()})
        for label, run in zip(labels, runs, strict=True)
    ]
    verdicts = [row for _, _, rows in told for row in rows.get("verdict", ())]
    scripts = own_scripts("startReport();")
    vega = vega_script()
    return Template(asset("report.html")).substitute(
        policy=_policy(scripts, vega),
        title=escape(", ".join(labels)),
        subtitle=escape(_subtitle(runs, len(table))),
        style=asset("page.css"),
        reading=reading_part(told),
        claims=claims_part(verdicts),
        explore=asset("explore.html"),
        measured=measured_part(told),
        cards=cards_part(cards, list(table["metric"].unique())),
        count=f"{len(table):,}",
        records=pack(table, outline_of(table, cards)),
        vega=vega,
        scripts=scripts,
    )


def live_page() -> str:
    """The page that `serve` shows; its scripts and records come from the server."""
    return Template(asset("live.html")).substitute(explore=asset("explore.html"))


def asset(name: str) -> str:
    """One of the package's own page files."""
    return files("anisoscope.report").joinpath("assets", name).read_text(encoding="utf-8")


def own_scripts(start: str, *more: str) -> str:
    """The page's own scripts and how they start, in a scope of their own."""
    return _scoped("\n".join([*map(asset, (*SCRIPTS, *more)), start]))


def _scoped(script: str) -> str:
    # Vega's bundle declares one-letter names: each script keeps its own to itself.
    return f"(() => {{\n{script}\n}})();"


@cache
def vega_script() -> str:
    """Vega, Vega-Lite and vega-embed as one script that sets window.vegaEmbed; vl-convert carries them."""
    import vl_convert

    bundle = vl_convert.javascript_bundle()  # type: ignore[call-arg]  # its stub forgets the default
    # A script must not hold its own end, nor the start of a comment; both are legal inside a string as escapes.
    return _scoped(bundle.replace("</script", "<\\/script").replace("<!--", "<\\!--"))


def _policy(*scripts: str) -> str:
    """A content policy under which only these inline scripts run and nothing is fetched or sent."""
    hashes = " ".join(f"'sha256-{base64.b64encode(hashlib.sha256(s.encode()).digest()).decode()}'" for s in scripts)
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _subtitle(runs: Sequence[Run], count: int) -> str:
    models = dict.fromkeys(str(name) for run in runs if (name := _model(run)))
    return " · ".join([*models, f"{count:,} records", f"made {runs[0].created[:10]}"])


def _model(run: Run) -> str | None:
    model = run.info.get("model")
    if isinstance(model, dict):
        return model.get("source") or model.get("architecture")
    return model if isinstance(model, str) else None
