"""Caveats of a run: which problem gives which caveat."""

from __future__ import annotations

from typing import Any

from anisoscope.records import Record
from anisoscope.report.caveats import caveats
from tests.report_rows import profile, rows


def caveats_of(records: list[Record], **info: Any) -> str:
    return "\n".join(caveats(rows(records), info))


def test_a_sample_too_small_for_its_dimension_has_a_caveat() -> None:
    records = [Record("vectors", "isoscore", 0.3, n=384, null=0.33)]
    assert "a perfect sphere of this size would have an IsoScore of 0.33 at vectors, not 1" in caveats_of(
        records, data={"d": 768}
    )
    assert "few for" not in caveats_of([Record("vectors", "isoscore", 0.9, n=100_000, null=0.99)], data={"d": 768})


def test_a_low_null_value_is_blamed_on_few_tokens_only_if_these_are_the_cause() -> None:
    """64,825 independent tokens of a 576-sphere have an IsoScore of 0.99; a null value of 0.62 has another cause."""
    few = [Record("final", "isoscore", 0.1, n=384, null=0.39)]
    assert "384 tokens are few for 576 dimensions" in caveats_of(few, data={"d": 576})
    many = [
        Record("resid.3", "isoscore", 0.1, n=64_825, null=0.88),
        Record("final", "isoscore", 0.1, n=64_825, null=0.62),
    ]
    text = caveats_of(many, data={"d": 576})
    assert "tokens are few" not in text
    assert "would have an IsoScore of 0.62 at final, not 1" in text
    assert "these documents and these lengths of rows" in text
    assert "64,825 independent tokens would give 0.99" in text


def test_the_width_comes_from_a_spectrum_if_the_info_lacks_it() -> None:
    records = [Record("vectors", "spectral_anisotropy", 0.3, n=500)]
    records += [Record("vectors", "spectrum", 0.1, index=j) for j in (1, 2, 100)]
    assert "500 tokens are few for 100 dimensions" in caveats_of(records)


def test_equal_notes_are_one_caveat_for_all_sites() -> None:
    notes = [
        Record(f"resid.{i}", "two_nn", 5.0, error=0.1, note=f"{i + 1} duplicate {name} removed")
        for i, name in enumerate(("row", "rows", "rows"))
    ]
    assert caveats_of(notes) == "two_nn: 1 duplicate row removed (at resid.0, with similar notes at 2 other sites)."
    same = [Record(f"resid.{i}", "two_nn", 5.0, error=0.1, note="7 duplicate rows removed") for i in range(3)]
    assert caveats_of(same) == "two_nn: 7 duplicate rows removed (at 3 sites)."


def test_a_note_that_only_counts_what_was_used_is_no_caveat() -> None:
    notes = ("over 12 words", "from the 1,223 largest eigenvalues", "coordinate 7", "dimensions 3, 9")
    assert not caveats_of([Record("resid.0", f"m{i}", 5.0, error=0.1, note=note) for i, note in enumerate(notes)])


def test_one_token_that_dominates_has_a_caveat() -> None:
    assert "A few tokens dominate" in caveats_of([Record("resid.1", "tokens_to_halve", 1 / 4096, n=4096)])


def test_a_curve_dominated_by_sinks_has_a_caveat() -> None:
    text = caveats_of(profile([0.1, 0.95], [0.1, 0.1]))
    assert "the top direction's share of the variance falls from 95 % to 10 % at layer 1" in text


def test_a_saturated_dimension_has_a_caveat() -> None:
    assert "underestimated" in caveats_of([Record("resid.0", "two_nn", 32.0, error=1.0)])


def test_a_metric_without_a_value_is_a_caveat_with_the_reason() -> None:
    assert "No value: tyler_share (too few rows)." in caveats_of(
        [Record("vectors", "tyler_share", None, note="too few rows")]
    )


def test_interruption_random_weights_and_alerts_are_caveats() -> None:
    alert = Record("resid.3", "alert", 0.99, step=40, variant={"rule": "collapse"}, note="mean cosine over 0.98")
    text = caveats_of([alert], interrupted=True, model={"random_weights": ["pooler"]})
    assert "interrupted" in text
    assert "pooler" in text
    assert "Alert at step 40, resid.3: mean cosine over 0.98." in text


def test_a_run_without_problems_has_no_caveats() -> None:
    assert caveats_of([Record("resid.0", "isoscore", 0.9, error=0.01, n=100_000, null=0.99)], data={"d": 64}) == ""
