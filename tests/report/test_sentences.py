"""Sentences of a report: what they say for known curves."""

from __future__ import annotations

import pytest

from anisoscope.records import Record
from anisoscope.report.sentences import layers_text, number, peak, sentences, span
from tests import report_runs as runs
from tests.report_rows import profile, rows


def sentence_of(metric: str, records: list[Record]) -> str:
    return "; ".join(sentences(metric, rows(records)[metric]))


def test_a_peak_is_described_by_its_layers_and_its_value_without_sinks() -> None:
    text = sentence_of("spectral_anisotropy", profile([0.1, 0.97, 0.97, 0.1], [0.1, 0.12, 0.12, 0.1]))
    assert text == (
        "layers 1–2: the top direction has 97 % of the variance; without first and massive tokens 12 %; elsewhere 10 %"
    )


def test_a_flat_curve_is_described_as_one_range_of_layers() -> None:
    assert sentence_of("spectral_anisotropy", profile([0.5, 0.51, 0.52])) == (
        "layers 0–2: the top direction has 50–52 % of the variance"
    )


def test_a_curve_that_sinks_do_not_change_has_one_value() -> None:
    assert "without first" not in sentence_of("spectral_anisotropy", profile([0.5, 0.51], [0.49, 0.5]))


def test_training_is_described_by_the_layer_that_changed_most() -> None:
    text = sentence_of("two_nn", [r for r in runs.profiles((0, 1000)) if r.metric == "two_nn"])
    assert "from step 0 to 1,000 it changed most at final, where it rose from 9.27 to 15.0" in text


def test_a_metric_without_a_phrase_is_described_by_its_name() -> None:
    assert sentence_of("my_metric", [Record("resid.0", "my_metric", 2.0)]) == "layer 0: my metric is 2"


def test_a_curve_by_index_without_a_phrase_has_no_sentence() -> None:
    assert sentence_of("spectrum", [Record("resid.0", "spectrum", 0.5, index=j) for j in (1, 2, 4)]) == ""


def test_gradient_energy_is_described_at_the_headline_rank_with_its_null_value() -> None:
    text = sentence_of("gradient_energy", [r for r in runs.gradients((0,)) if r.metric == "gradient_energy"])
    assert "(null value 25 %)" in text
    assert "(at index 32)" in text


@pytest.mark.parametrize(
    ("value", "percent", "text"),
    [(0.97, True, "97 %"), (0.0734, True, "7.3 %"), (0.0004, True, "0.04 %"), (1234.5, False, "1,234"),
     (0.073, False, "0.073"), (1e-9, False, "0"), (-0.5, False, "-0.50")],
)  # fmt: skip
def test_numbers_in_sentences_have_few_digits(value: float, percent: bool, text: str) -> None:
    assert number(value, percent) == text


def test_a_span_of_equal_numbers_is_one() -> None:
    assert span([0.5, 0.5001]) == "0.50"
    assert span([0.1, 0.2], percent=True) == "10–20 %"


def test_the_peak_is_the_range_of_layers_above_half_of_the_rise() -> None:
    assert peak({0: 0.0, 1: 0.6, 2: 1.0, 3: 0.4, 4: 0.9}) == ([1, 2], [0, 3, 4])


def test_layers_are_named_at_both_ends() -> None:
    assert layers_text([-1.0, 0.0, 1.0], 2.0) == "embed to layer 1"
    assert layers_text([2.0], 2.0) == "final"
