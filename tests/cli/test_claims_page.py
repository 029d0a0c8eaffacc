"""The page of claims."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from anisoscope.cli.claims_page import write_claims_page
from anisoscope.store.run import Run
from anisoscope.studies.claims.claim import LAB, Evidence
from anisoscope.studies.claims.committed_evidence import committed, unpack_evidence
from anisoscope.studies.claims.estimate import Estimate


def page_of(folder: Path, *, smoke_test: bool, ran: str = "the lab", **settings: object) -> str:
    """The page of a run with made-up evidence for T2."""
    info = {"kind": "claims", "settings": {"size": "small", **settings}, "versions": {"anisoscope": "0"}}
    Run.create(folder, info).close()
    quantities = {"removed": Estimate(0.97, 0.01, 5), "beyond_other_layer": Estimate(-0.1, 0.01, 5)}
    quantities |= {"learnt": Estimate.exact(1.0), "settled": Estimate.exact(1.0)}  # the gates are open
    evidence = Evidence(ran, LAB, quantities, smoke_test=smoke_test).to_json()
    Run.create(folder / "evidence" / "T2", {"kind": "evidence", "evidence": evidence}).close()
    return write_claims_page(folder, folder / "page.html").read_text()


def badges(page: str) -> list[str]:
    return re.findall(r'<span class="verdict [^"]*">([^<]*)</span>', page)


@pytest.mark.parametrize("smoke_test", [True, False])
def test_only_a_smoke_test_has_a_banner_and_no_verdicts(smoke_test: bool, tmp_path: Path) -> None:
    page = page_of(tmp_path / "run", smoke_test=smoke_test)
    assert ('<p class="banner"' in page) == smoke_test
    verdicts = ["smoke test"] * 2 if smoke_test else ["reproduced", "not reproduced"]
    assert badges(page) == verdicts * 2  # in the table at the top, and next to the reasons
    assert ("learnt nothing" in page) == smoke_test
    assert "Not run: T1, T3" in page


def test_texts_are_escaped_and_the_style_is_not(tmp_path: Path) -> None:
    page = page_of(tmp_path / "run", smoke_test=False, ran="<b>bold</b>", text="<script>", models=["a", "b&c"])
    assert "<script" not in page
    assert "Run: &lt;b&gt;bold&lt;/b&gt;" in page
    assert "text &lt;script&gt;, models a, b&amp;c" in page
    assert 'font: 15px/1.55 system-ui, -apple-system, "Segoe UI"' in page


def test_what_was_run_is_stated_once_per_claim(tmp_path: Path) -> None:
    page = page_of(tmp_path / "run", smoke_test=False)
    assert page.count("Run: the lab") == 1
    assert "−0.1 [−0.128, −0.0722] over 5 seeds" in page.replace("-", "−")


def test_figures_are_labelled_in_whole_words(tmp_path: Path) -> None:
    packed = committed()
    folder = unpack_evidence({**packed, "claims": {"T1": packed["claims"]["T1"]}}, tmp_path / "run")
    page = write_claims_page(folder, tmp_path / "page.html").read_text()
    labels = re.findall(r"<text[^>]*>([^<]*)</text>", page)
    assert "energy by gradient" in labels
    assert "hidden gradients, PCA, against subspaces orthogonal to the basis" in labels
    assert [label for label in labels if "_" in label or "…" in label] == []
