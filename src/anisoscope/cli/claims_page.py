"""The page of claims: every claim with its verdicts, reasons and figures, in one HTML file without scripts."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import Any

from anisoscope.errors import InputError, StoreError
from anisoscope.report.charts import plot
from anisoscope.report.sections import paper_name
from anisoscope.report.shapes import colours_of, fitting_kinds
from anisoscope.report.tables import of_metric, table_of
from anisoscope.report.templates import asset
from anisoscope.store.files import understood, write_text
from anisoscope.store.run import Run
from anisoscope.studies.claims.claim import Claim, Evidence, Verdict, judge
from anisoscope.studies.claims.runner import CLAIMS, evidence_run, kept_evidence

_STYLE = """
.claim { border-top: 1px solid var(--line); padding: .6rem 0 1.2rem; }
.claim .figures { display: flex; flex-wrap: wrap; gap: 1rem; }
.claim .figures svg { max-width: 100%; height: auto; background: #fff; border-radius: 6px; }
table.summary td { white-space: nowrap; } table.summary td:nth-child(2) { white-space: normal; }
"""
_WIDTH, _HEIGHT = 420, 240
_MOST = 4  # figures per claim
_LABEL = 360  # largest width of a label in pixels
_OF = "v_of"  # the column that names what a record describes


def write_claims_page(folder: Path, page: Path) -> Path:
    """Write the page of a run of claims.

    Raises:
        InputError: The page is not an .html file, or the run has no evidence.
    """
    if page.suffix.lower() not in (".html", ".htm"):
        raise InputError(f"Cannot write {page.name!r}: the page must be an .html file.")
    run = Run.open(folder)
    evidence_of = [(claim, evidence) for claim in CLAIMS if (evidence := kept_evidence(folder, claim.id)) is not None]
    if not evidence_of:
        raise InputError(f"{folder} has no evidence yet. Gather some with: anisoscope claims run --out {folder}")
    write_text(page, _page(run, evidence_of))
    return page


def _page(run: Run, evidence_of: Sequence[tuple[Claim, Evidence]]) -> str:
    with understood(run.path / "run.json", "restore it from a copy, or run the claims again", StoreError):
        request = ", ".join(f"{name} {value}" for name, value in run.info["asked"].items() if value not in (None, []))
        versions = ", ".join(f"{name} {value}" for name, value in run.info["versions"].items())
    judged = [(claim, evidence, judge(claim, evidence)) for claim, evidence in evidence_of]
    missing = [claim.id for claim in CLAIMS if claim.id not in {each.id for each, _ in evidence_of}]
    not_run = f"<p class='quiet'>Not run: {', '.join(missing)}.</p>" if missing else ""
    sections = "".join(_section(run.path, claim, evidence, verdicts) for claim, evidence, verdicts in judged)
    return (
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>"
        "<meta http-equiv='Content-Security-Policy' content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        "<meta name='viewport' content='width=device-width, initial-scale=1'>"
        f"<title>Claims: {escape(run.name)}</title><style>{asset('page.css')}{_STYLE}</style></head><body>"
        f"<header><div><h1>Four papers, claim by claim</h1><p class='quiet'>{escape(request)} · {escape(versions)} · "
        f"made {datetime.now(UTC):%Y-%m-%d}</p></div></header>"
        f"{_summary([(claim, verdicts) for claim, _, verdicts in judged])}{not_run}{sections}</body></html>"
    )


def _summary(judged: Sequence[tuple[Claim, tuple[Verdict, Verdict]]]) -> str:
    rows = "".join(
        f"<tr><td><a href='#{claim.id}'>{claim.id}</a></td><td>{escape(claim.statement)}</td>"
        f"<td>{_badge(verdicts[0])}</td><td>{_badge(verdicts[1])}</td></tr>"
        for claim, verdicts in judged
    )
    head = "<tr><th></th><th>claim</th><th>as published</th><th>strongest control</th></tr>"
    return f"<section><div class='scroll'><table class='summary'>{head}{rows}</table></div></section>"


def _section(folder: Path, claim: Claim, evidence: Evidence, verdicts: tuple[Verdict, Verdict]) -> str:
    lines = "".join(
        f"<p>{_badge(verdict)} <b>{verdict.line}</b>{_effect(verdict)}<br><span class='quiet'>"
        f"{'<br>'.join(map(escape, verdict.reasons.lines))}</span></p>"
        for verdict in verdicts
    )
    figures = "".join(_figures(folder, claim))
    return (
        f"<section class='claim' id='{claim.id}'><h2>{claim.id} · {escape(claim.statement)}</h2>"
        f"<p class='quiet'>{escape(paper_name(claim.paper))}</p>{lines}<div class='figures'>{figures}</div></section>"
    )


def _badge(verdict: Verdict) -> str:
    return f'<span class="verdict {verdict.outcome.replace(" ", "-")}">{verdict.outcome}</span>'


def _effect(verdict: Verdict) -> str:
    return "" if verdict.effect is None else f" · {escape(str(verdict.effect))}"


def _figures(folder: Path, claim: Claim) -> list[str]:
    """The charts of the metrics of a claim, as SVG."""
    import vl_convert

    run = evidence_run(folder, claim.id)
    if run is None:
        return []
    measured = run.metrics()
    drawn = [metric for metric in claim.figure if metric in measured][:_MOST]
    return [vl_convert.vegalite_to_svg(_with_whole_labels(_chart(run, metric).to_dict())) for metric in drawn]


def _with_whole_labels(spec: dict[str, Any]) -> dict[str, Any]:
    """Allow long labels: the default length suits names of layers."""
    config = spec.setdefault("config", {})
    for part in ("axis", "legend"):
        config[part] = {**config.get(part, {}), "labelLimit": _LABEL}
    return spec


def _chart(run: Run, metric: str) -> Any:
    """The first kind of chart that colours by what the records describe, if they describe several things."""
    fitting = fitting_kinds(of_metric(table_of([run]), metric))
    kinds = [kind for kind, (_, shape) in fitting.items() if _OF in colours_of(kind, shape)]
    if not kinds:
        return plot([run], metric, width=_WIDTH, height=_HEIGHT)
    return plot([run], metric, kind=kinds[0], colour=_OF, width=_WIDTH, height=_HEIGHT)
