"""The page of claims: every claim with its verdicts, reasons and figures, in one HTML file without scripts."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from markupsafe import Markup

from anisoscope.errors import InputError, StoreError
from anisoscope.report.charts import plot
from anisoscope.report.sections import paper_name
from anisoscope.report.shapes import colours_of, fitting_kinds
from anisoscope.report.tables import of_metric, table_of
from anisoscope.report.templates import asset, render
from anisoscope.store.files import parse_errors, write_text
from anisoscope.store.run import Run
from anisoscope.studies.claims.claim import SMOKE_TEST_NOTE, Claim, Evidence, Verdict, shared_context
from anisoscope.studies.claims.claim_tables import what_decided
from anisoscope.studies.claims.disputes import DISPUTES, dispute_summary, measured_on
from anisoscope.studies.claims.figure_labels import shown_records
from anisoscope.studies.claims.judging import judge
from anisoscope.studies.claims.runner import CLAIMS, evidence_run, kept_evidence

_WIDTH, _HEIGHT = 420, 240
_MOST = 4  # figures per claim
_LABEL = 480  # largest width of a label in pixels
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
    with parse_errors(run.path / "run.json", "restore it from a copy, or run the claims again", StoreError):
        request = ", ".join(_setting(*each) for each in run.info["settings"].items() if each[1] not in (None, []))
        versions = ", ".join(f"{name} {value}" for name, value in run.info["versions"].items())
    return render(
        "claims.html",
        title=f"Claims: {run.name}",
        style=Markup(asset("page.css")),
        request=request,
        versions=versions,
        made=f"{datetime.now(UTC):%Y-%m-%d}",
        note=SMOKE_TEST_NOTE if any(evidence.smoke_test for _, evidence in evidence_of) else None,
        claims=(claims := [_claim(run.path, claim, judge(claim, evidence)) for claim, evidence in evidence_of]),
        disputes=_disputes(claims),
        not_run=[]
        if "demo" in run.info["settings"]
        else [claim.id for claim in CLAIMS if claim.id not in {each.id for each, _ in evidence_of}],
    )


def _disputes(claims: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The claims that were run by dispute, each dispute with its text and its verdicts in words."""
    by_id = {claim["id"]: claim for claim in claims}
    verdicts = {name: claim["verdicts"] for name, claim in by_id.items()}
    parts = []
    for dispute in DISPUTES:
        shown = [by_id[name] for name in (*dispute.headline, *dispute.others) if name in by_id]
        if shown:
            ran = replace(dispute, headline=tuple(claim["id"] for claim in shown), others=())
            summary = dispute_summary(ran, verdicts)
            parts.append({"question": dispute.question, "text": dispute.text, "summary": summary, "claims": shown})
    return parts


def _setting(name: str, value: Any) -> str:
    return f"{name} {', '.join(map(str, value)) if isinstance(value, list) else value}"


def _claim(folder: Path, claim: Claim, verdicts: tuple[Verdict, Verdict]) -> dict[str, Any]:
    """What the page shows of a claim."""
    return {
        "id": claim.id,
        "statement": claim.statement,
        "plain": claim.plain,
        "found": claim.found,
        "on": measured_on(verdicts),
        "decided": what_decided(verdicts),
        "paper": paper_name(claim.paper),
        "verdicts": verdicts,
        "more": shared_context(verdicts),
        "figures": [Markup(svg) for svg in _figures(folder, claim)],
    }


def _figures(folder: Path, claim: Claim) -> list[str]:
    """The charts of the metrics of a claim, as SVG."""
    import vl_convert

    stored = evidence_run(folder, claim.id)
    if stored is None:
        return []
    measured = stored.metrics()
    drawn = [metric for metric in claim.figure if metric in measured][:_MOST]
    with tempfile.TemporaryDirectory() as temporary:
        run = _labelled(stored, drawn, Path(temporary) / claim.id)
        return [vl_convert.vegalite_to_svg(_in_words(_chart(run, metric).to_dict())) for metric in drawn]


def _labelled(stored: Run, metrics: Sequence[str], folder: Path) -> Run:
    """A copy of some records of a run with labels in words, at most seven things per metric."""
    records = list(stored.records())
    with Run.create(folder, {"kind": "evidence", "metrics": stored.info.get("metrics", {})}, name=stored.name) as run:
        for metric in metrics:
            run.append(shown_records([record for record in records if record.metric == metric]))
    return Run.open(folder)


def _in_words(spec: dict[str, Any]) -> dict[str, Any]:
    """Write titles of a chart in words and allow long labels: the default length suits names of layers."""
    config = spec.setdefault("config", {})
    for part in ("axis", "legend"):
        config.setdefault(part, {})["labelLimit"] = _LABEL
    _reword(spec)
    return spec


def _reword(part: Any) -> None:
    """Change titles and limits of labels in every part of a chart; the title `of` goes, since labels say what it is."""
    for each in part.values() if isinstance(part, dict) else part if isinstance(part, list) else ():
        _reword(each)
    if not isinstance(part, dict):
        return
    if "labelLimit" in part:
        part["labelLimit"] = _LABEL
    for name in {"title", "text"} & part.keys():
        if isinstance(part[name], str):
            part[name] = None if part[name] == "of" else part[name].replace("_", " ")


def _chart(run: Run, metric: str) -> Any:
    """The first kind of chart that colours by what the records describe, if they describe several things."""
    fitting = fitting_kinds(of_metric(table_of([run]), metric))
    kinds = [kind for kind, (_, shape) in fitting.items() if _OF in colours_of(kind, shape)]
    if not kinds:
        return plot([run], metric, width=_WIDTH, height=_HEIGHT)
    return plot([run], metric, kind=kinds[0], colour=_OF, width=_WIDTH, height=_HEIGHT)
