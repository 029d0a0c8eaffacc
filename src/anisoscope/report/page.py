"""Runs as one HTML file that opens from disk: nothing is loaded from elsewhere, and no text of a run becomes HTML."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from markupsafe import Markup

from anisoscope.errors import InputError
from anisoscope.report.outline import cards_of, outline_of
from anisoscope.report.packed_table import pack
from anisoscope.report.sections import claim_row, metric_cards, run_facts, run_results
from anisoscope.report.tables import (
    by_metric,
    depths_of,
    first_and_last,
    last_tests,
    records_of,
    rows_of,
    run_labels,
    table_of,
)
from anisoscope.report.templates import asset, render
from anisoscope.store.files import write_text
from anisoscope.store.run import Run

SCRIPTS = ("table.js", "chart.js", "page.js")


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
    """The report of one or more runs as HTML: sentences, charts, what was measured, metric cards and all records."""
    table = table_of(runs)
    if not len(table):
        raise InputError(f"{' and '.join(run.name for run in runs)} has no records yet; measure something first")
    labels, depths, cards = run_labels(runs), depths_of(table), cards_of(runs)
    ends = first_and_last(table)  # sentences and tables use only these steps; charts show all
    parts = [
        (label, run, {name: rows_of(group, depths) for name, group in by_metric(ends[ends["run"] == label]).items()})
        for label, run in zip(labels, runs, strict=True)
    ]
    tests = {label: records_of(last_tests(ends[ends["run"] == label])) for label in labels}
    scripts, vega = own_scripts("startReport();"), vega_script()
    # Marked as safe: our own scripts and styles. Texts from the run are not, so the template escapes them.
    return render(
        "report.html",
        policy=Markup(_policy(scripts, vega)),
        title=", ".join(labels),
        subtitle=_subtitle(runs, len(table)),
        style=Markup(asset("page.css")),
        results=[run_results(*part, tests[part[0]]) for part in parts],
        claims=[claim_row(row) for _, _, rows in parts for row in rows.get("verdict", ())],
        measured=[(label, run_facts(run)) for label, run, _ in parts],
        cards=metric_cards(cards, list(table["metric"].unique())),
        count=f"{len(table):,}",
        records=pack(table, outline_of(table, cards)),
        vega=Markup(vega),
        scripts=Markup(scripts),
    )


def live_page() -> str:
    """The page that `serve` shows; its scripts and records come from the server."""
    return render("live.html")


def own_scripts(start: str, *more: str) -> str:
    """The scripts of our pages and the call that starts them, in one scope."""
    return _scoped("\n".join([*map(asset, (*SCRIPTS, *more)), start]))


def _scoped(script: str) -> str:
    # Vega's bundle declares one-letter names: a scope per script keeps them apart.
    return f"(() => {{\n{script}\n}})();"


@cache
def vega_script() -> str:
    """Vega, Vega-Lite and vega-embed as one script that sets window.vegaEmbed; vl-convert carries them."""
    import vl_convert

    bundle = vl_convert.javascript_bundle()  # type: ignore[call-arg]  # its stub forgets the default
    # A script must contain neither </script nor <!--; both can be written with an escape inside a string.
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
