"""Tables of rules and verdicts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from anisoscope.errors import InputError
from anisoscope.store.run import Run
from anisoscope.studies.claims.claim import CONTROL, PUBLISHED
from anisoscope.studies.claims.claim_tables import verdicts_summary, verdicts_table
from anisoscope.studies.claims.runner import CLAIMS, ClaimsRequest, find_claims, find_size, run_claims

ROOT = Path(__file__).parents[3]


def test_the_table_keeps_intervals_within_the_possible_values() -> None:
    (t2,) = find_claims(["T2"])
    verdict = {"claim": "T2", "line": PUBLISHED, "verdict": "reproduced", "effect": 0.967, "error": 0.049, "n": 5}
    verdict |= {"unit": "seeds", "quantity": t2.published[0][0].quantity}
    versions = {"anisoscope": "0", "torch": "0"}
    summary = {"verdicts": [verdict], "minutes": {"clock": 1, "processor": 1}, "machine": "", "versions": versions}
    assert "0.967 [0.831, 1] over 5 seeds" in verdicts_table(summary, [t2])


def test_a_summary_holds_the_verdicts_of_the_run(tmp_path: Path) -> None:
    asked = ClaimsRequest(find_size("tiny"))
    judged = list(run_claims(find_claims(["A4", "N4"]), tmp_path / "run", asked))
    first = verdicts_summary(tmp_path / "run", CLAIMS)
    assert [(each["claim"], each["line"]) for each in first["verdicts"]] == [
        (name, line) for name in ("A4", "N4") for line in (PUBLISHED, CONTROL)
    ]
    for claim, pair in judged:
        for verdict in pair:
            (kept,) = (e for e in first["verdicts"] if (e["claim"], e["line"]) == (claim.id, verdict.line))
            assert (kept["verdict"], kept["reason"]) == (verdict.outcome, verdict.reason)
            assert verdict.effect is not None
            assert f"{verdict.effect}" in verdicts_table(json.loads(json.dumps(first)), [claim])
    assert first["minutes"]["clock"] > 0
    assert "cores" in first["machine"]
    list(run_claims(find_claims(["N4"]), tmp_path / "run", asked))
    assert verdicts_summary(tmp_path / "run", CLAIMS)["minutes"]["clock"] > first["minutes"]["clock"]  # it adds up
    Run.create(tmp_path / "other", {"kind": "lab"}).close()
    with pytest.raises(InputError, match="not of claims"):
        verdicts_summary(tmp_path / "other", CLAIMS)


def test_the_docs_show_the_verdicts_of_the_summary() -> None:
    summary = json.loads((ROOT / "docs" / "claims-small.json").read_text())
    there = {each["claim"] for each in summary["verdicts"]}
    assert [(each["claim"], each["line"]) for each in summary["verdicts"]] == [
        (claim.id, line) for claim in CLAIMS if claim.id in there for line in (PUBLISHED, CONTROL)
    ]
    assert (summary["settings"]["size"], summary["settings"]["models"]) == ("small", [])
    assert summary["settings"]["seeds"] >= 5
    page = (ROOT / "docs" / "claims.md").read_text()
    assert verdicts_table(summary, CLAIMS) in page
    for claim in CLAIMS:
        assert page.count(f"| {claim.id} | not run | not run |") == (claim.id not in there)
