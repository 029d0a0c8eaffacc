"""What `claims run` prints."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

from rich.console import Console
from typer.testing import CliRunner

from anisoscope.cli import app
from anisoscope.cli.claims import verdicts_view
from anisoscope.studies.claims.claim import LAB, Evidence
from anisoscope.studies.claims.estimate import Estimate
from anisoscope.studies.claims.judging import judge
from anisoscope.studies.claims.runner import find_claims

VERDICTS = ("reproduced", "inconclusive")


def text_of(evidence: Evidence, width: int) -> str:
    (claim,) = find_claims(["T2"])
    console = Console(width=width, record=True, file=StringIO())
    console.print(verdicts_view([(claim, judge(claim, evidence))]))
    return console.export_text()


def test_a_smoke_test_prints_a_banner_and_no_verdict(tmp_path: Path) -> None:
    words = ["claims", "run", "N4", "--size", "tiny", "--out", str(tmp_path / "run")]
    done = CliRunner().invoke(app, words, env={"COLUMNS": "80"})
    assert done.exit_code == 0, done.output
    assert "A smoke test: models this small have learnt nothing, so no claim is judged." in done.stdout
    assert "as published: smoke test" in done.stdout
    assert not any(word in done.stdout for word in VERDICTS)
    assert "about 1 minute" in done.stderr
    again = CliRunner().invoke(app, words)
    assert "minute" not in again.stderr  # everything is there
    listed = CliRunner().invoke(app, ["claims", "--out", str(tmp_path / "run")], env={"COLUMNS": "80"})
    (row,) = (line for line in listed.stdout.splitlines() if line.split()[:1] == ["N4"])
    assert row.rstrip().endswith("▨ ▨")


def test_a_run_that_has_learnt_prints_verdicts_without_the_banner() -> None:
    quantities = {"removed": Estimate(0.97, 0.01, 5), "beyond_other_layer": Estimate(-0.2, 0.02, 5)}
    quantities |= {"learnt": Estimate.exact(1.0), "settled": Estimate.exact(0.5)}
    for width in (80, 120):
        text = text_of(Evidence("the lab", LAB, quantities), width)
        assert "smoke test" not in text
        assert "● as published: reproduced" in text
        assert "○ strongest control: not reproduced" in text
        assert text.count("Run: the lab") == 1
        assert all(len(line) <= width for line in text.splitlines())
        assert "[0.942, 0.998]" in " ".join(text.split())
