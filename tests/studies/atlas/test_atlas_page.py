"""The page shows what the evidence holds, escapes every text, and loads nothing."""

from __future__ import annotations

import re
from dataclasses import replace

from anisoscope.studies.atlas.atlas_details import moved_metrics
from anisoscope.studies.atlas.atlas_findings import findings
from anisoscope.studies.atlas.atlas_page import atlas_html, atlas_markdown
from anisoscope.studies.atlas.atlas_svg import half_depth, profile_svg
from anisoscope.studies.atlas.quantisation import Shift
from tests.studies.atlas.made_evidence import model

BELL, FLAT = [0.1, 0.6, 0.9, 0.5, 0.2], [0.12, 0.12, 0.14, 0.12, 0.12]
TINY = model(
    "tiny", spectral_anisotropy=(BELL, FLAT), two_nn=[3.0, 8.0, 9.0, 8.0, 7.0], mean_cosine=BELL, isoscore=FLAT
)
SHIFT = Shift("tiny", "Q4_0", "two_nn", "all", 0.5, 2.0, 0.75, "1.20 nats per token (≤ 2)")


def test_findings_state_the_numbers_of_the_evidence() -> None:
    text = " ".join(findings([TINY], [SHIFT]))
    assert "in 1 of 1 models" in text
    assert "0.90 with all tokens, 0.14 without sinks" in text
    assert "Q4_0 moves 1 of 1 metrics by more than their error (two_nn)" in text


def test_a_missing_model_drops_its_finding() -> None:
    assert not any("SCEPTR" in text or "IgLM" in text for text in findings([TINY]))


def test_contrastive_training_is_judged_by_all_metrics_together() -> None:
    even, narrow = [0.1] * 5, [0.3] * 5
    pair = [
        model(name, "encoder", spectral_anisotropy=share, mean_cosine=share, isoscore=score)
        for name, share, score in (("SCEPTR", narrow, even), ("SCEPTR-MLM", even, narrow))
    ]
    titles = []
    for names in (("SCEPTR", "SCEPTR-MLM"), ("SCEPTR-MLM", "SCEPTR")):
        renamed = [replace(each, name=name) for each, name in zip(pair, names, strict=True)]
        titles += [text.split("**")[1] for text in findings(renamed) if "Contrastive" in text]
    assert titles == ["Contrastive training narrows the cloud", "Contrastive training spreads the cloud"]
    mixed = [pair[0], replace(pair[1], inputs=pair[0].inputs)]
    assert any("Contrastive training has no one effect on the cloud" in text for text in findings(mixed))


def test_the_html_page_loads_nothing_and_names_every_model() -> None:
    page = atlas_html([TINY], [SHIFT])
    assert not re.search(r"""src\s*=|href\s*=\s*["'](?!#)|url\(|@import|fetch\(""", page)
    assert page.count("<svg") == 4 + 1 + 4  # one per metric drawn, the scatter, and the report's
    assert "default-src 'none'" in page.replace("&#39;", "'")


def test_every_model_links_to_its_report_in_the_page() -> None:
    page = atlas_html([TINY, replace(TINY, name="other one")], [SHIFT])
    for address in ("model-tiny", "model-other-one"):
        assert f'href="#{address}"' in page
        assert page.count(f'id="{address}"') == 1
    assert "On 16,384 tokens: a text" in page
    assert "<td>resid.1</td><td>0.14 ± 0.01</td><td>9 ± 0.01</td>" in page  # numbers by site


def test_metrics_that_rounding_moves_are_marked_on_rounded_models_only() -> None:
    rounded = replace(TINY, name="rounded", precision="Q4_1")
    assert moved_metrics([SHIFT, replace(SHIFT, metric="isoscore", errors=0.5)]) == {"two_nn"}
    page = atlas_markdown([TINY, rounded], [SHIFT])
    (exact_row, rounded_row) = [row for row in page.splitlines() if re.match(r"\| (tiny|rounded) \| 0\.14", row)]
    assert "≈" not in exact_row
    assert rounded_row.count("≈") == 1
    assert "9 ± 0.01 ≈" in rounded_row


def test_texts_of_a_model_do_not_become_html() -> None:
    evil = replace(TINY, name="<script>alert(1)</script>", check='"><b>', licence="<i>")
    assert "<script>alert" not in atlas_html([evil])
    assert "<i>" not in atlas_html([evil])


def test_markdown_has_a_row_per_model_and_the_matrix() -> None:
    page = atlas_markdown([TINY, replace(TINY, name="other")], [SHIFT])
    assert page.count("| tiny | GPT-2 | decoder |") == 1
    assert "| other | untestable here | untestable here |" in page  # S1: the bell needs 12 states
    assert "| metric | tokens | tiny, Q4_0 |" in page
    assert "| two_nn | all | 0.5 (**2 errors**) |" in page
    assert "Check of tiny: exact 1.00 nats per token (≤ 2); Q4_0 1.20 nats per token (≤ 2)." in page


def test_models_of_the_registry_without_evidence_are_named() -> None:
    page = atlas_markdown([replace(TINY, name="stories15M")])
    (line,) = [line for line in page.splitlines() if "have no evidence yet" in line]
    assert "MiniLM-L6" in line
    assert "stories15M" not in line


def test_a_time_that_is_not_known_is_not_shown() -> None:
    unknown = replace(TINY, seconds=None)
    assert "| – | 100 | MIT |" in atlas_markdown([unknown])
    assert "of processor time" not in atlas_html([unknown])
    assert "Measured in 10 s of processor time." in atlas_html([TINY])


def test_what_training_does_counts_each_kind_of_data_once() -> None:
    low = [0.05, 0.05, 0.05, 0.05, 0.05]  # untrained twins have 0.1 everywhere
    fallen = [replace(model(f"t{i}", spectral_anisotropy=low, two_nn=low), modality="tables") for i in range(3)]
    risen = model("r", spectral_anisotropy=BELL, two_nn=low)
    (text,) = [text for text in findings([*fallen, risen]) if "What training does" in text]
    assert "share of the top direction is above that of the untrained twin in 1 of 2 kinds" in text
    assert "(tables 0.5, English 9)" in text
    assert "Common to all kinds of data: the intrinsic dimension falls." in text


def test_a_convolutional_model_is_shown_with_all_positions() -> None:
    images = model("net", "convolutional", spectral_anisotropy=BELL, two_nn=FLAT)
    for metric in images.inputs["text"]["trained"].values():
        del metric["no-sink"]
    point = half_depth(images, "spectral_anisotropy")
    assert point is not None
    assert point[1] == 0.9
    assert "| net | 0.9 ± 0.01 |" in atlas_markdown([images])
    drawn = profile_svg(images, "spectral_anisotropy")
    assert re.findall(r'class="line ([a-z-]+)" points="([^"]?)', drawn) == [
        ("untrained", "3"),
        ("all", ""),
        ("no-sink", "3"),
    ]
    assert drawn.count('class="error"') == 5


def test_half_depth_is_the_middle_site_without_sinks() -> None:
    point = half_depth(TINY, "spectral_anisotropy")
    assert point is not None
    assert point[:2] == ("resid.1", 0.14)
    assert half_depth(TINY, "massive_tokens") is None
