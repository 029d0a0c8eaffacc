"""The page shows what the evidence holds, escapes every text, and loads nothing."""

from __future__ import annotations

import re
from dataclasses import replace

from anisoscope.studies.atlas.atlas_findings import findings
from anisoscope.studies.atlas.atlas_page import atlas_html, atlas_markdown
from anisoscope.studies.atlas.atlas_svg import half_depth
from anisoscope.studies.atlas.quantisation import Shift
from tests.studies.atlas.made_evidence import model

BELL, FLAT = [0.1, 0.6, 0.9, 0.5, 0.2], [0.12, 0.12, 0.14, 0.12, 0.12]
TINY = model(
    "tiny", spectral_anisotropy=(BELL, FLAT), two_nn=[3.0, 8.0, 9.0, 8.0, 7.0], mean_cosine=BELL, isoscore=FLAT
)
SHIFT = Shift("tiny", "Q4_0", "two_nn", "all", 0.5, 2.0, 0.75)


def test_findings_state_the_numbers_of_the_evidence() -> None:
    text = " ".join(findings([TINY], [SHIFT]))
    assert "in 1 of 1 models" in text
    assert "0.90 with all tokens, 0.14 without sinks" in text
    assert "Q4_0 moves 1 of 1 profiles" in text


def test_a_missing_model_drops_its_finding() -> None:
    assert not any("SCEPTR" in text or "IgLM" in text for text in findings([TINY]))


def test_the_html_page_loads_nothing_and_names_every_model() -> None:
    page = atlas_html([TINY], [SHIFT])
    assert not re.search(r"(src|href)\s*=|url\(|@import|fetch\(", page)
    assert page.count("<svg") == 4 + 1  # one per metric drawn, and the scatter
    assert "default-src 'none'" in page.replace("&#39;", "'")


def test_texts_of_a_model_do_not_become_html() -> None:
    evil = replace(TINY, name="<script>alert(1)</script>", check='"><b>', licence="<i>")
    assert "<script>alert" not in atlas_html([evil])
    assert "<i>" not in atlas_html([evil])


def test_markdown_has_a_row_per_model_and_the_matrix() -> None:
    page = atlas_markdown([TINY, replace(TINY, name="other")], [SHIFT])
    assert page.count("| tiny | GPT-2 | decoder |") == 1
    assert "| other | untestable here | untestable here |" in page  # S1: the bell needs 12 states
    assert "| tiny | Q4_0 | two_nn | all | 0.5 | 2.00 | 75% | **yes** |" in page


def test_half_depth_is_the_middle_site_without_sinks() -> None:
    point = half_depth(TINY, "spectral_anisotropy")
    assert point is not None
    assert point[:2] == ("resid.1", 0.14)
    assert half_depth(TINY, "massive_tokens") is None
