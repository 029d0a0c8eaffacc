"""Sentences of a report: what they say for known curves."""

from __future__ import annotations

from typing import Any

import pytest

from anisoscope.records import Record
from anisoscope.report.sentences import headlines, layers_text, number, sentences, span, standing_out, stream_name
from tests import report_runs as runs
from tests.report_rows import profile, rows

HIGH, LOW = {"notable": "high"}, {"notable": "low"}


def sentence_of(metric: str, records: list[Record], card: dict[str, Any] = HIGH) -> str:
    return ". ".join(sentences(metric, rows(records)[metric], card))


def curve(metric: str, values: list[float], stream: str = "resid", **more: Any) -> list[Record]:
    return [Record(f"{stream}.{i}", metric, value, **more) for i, value in enumerate(values)]


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
    assert "of the gradients' energy lies in the tangent proxy of rank 32" in text
    assert "index" not in text


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


def test_layers_beyond_the_middle_stand_out() -> None:
    assert standing_out({0: 0.0, 1: 0.6, 2: 1.0, 3: 0.4, 4: 0.9}, "high") == ([[1, 2], [4]], [0, 3])
    assert standing_out({0: 0.0, 1: 0.6, 2: 1.0, 3: 0.4, 4: 0.9}, "low") == ([[0], [3]], [1, 2, 4])


def test_a_score_whose_low_end_is_the_finding_is_described_there() -> None:
    """Layers 2 and 3 of this model collapse: they are the finding, not "elsewhere"."""
    text = sentence_of("isoscore", curve("isoscore", [0.05, 0.06, 2.8e-5, 3e-5, 0.055]), LOW)
    assert text == "layers 2–3: the IsoScore (1 is a sphere, 0 a line) is about 0; elsewhere 0.05 to 0.06"


def test_the_two_ranges_of_a_sentence_do_not_overlap() -> None:
    values = [0.12, 0.73, 0.2, 0.7, 0.15, 0.72, 0.1, 0.65]  # too many stretches to name
    assert sentence_of("relative_drift", curve("relative_drift", values)) == (
        "layers 0–7: the mean vector has 10–73 % of the tokens' norm, highest at layer 1"
    )


def test_a_metric_without_a_notable_end_is_described_by_its_range() -> None:
    assert sentence_of("two_nn", curve("two_nn", [4.0, 12.0, 9.0]), {}) == (
        "layers 0–2: the intrinsic dimension is about 4 to 12, lowest at layer 0, highest at layer 1"
    )


def test_a_cosine_near_zero_is_about_zero() -> None:
    records = curve("mean_cosine_centred", [-0.00024, 0.0004, 0.002], null=-0.0002)
    assert sentence_of("mean_cosine_centred", records) == (
        "layers 0–2: the mean cosine between two tokens after centring is about 0 (null value about 0)"
    )


def test_gradients_are_named_and_not_mixed_with_activations() -> None:
    records = curve("participation_ratio", [13.0, 14.0, 16.0], stream="grad.resid")
    assert sentence_of("participation_ratio", records, LOW) == (
        "gradients, layers 0–2: the variance is spread over about 13 to 16 directions"
    )
    both = [*curve("mean_cosine", [0.5, 0.5]), *curve("mean_cosine", [0.1, 0.1], stream="grad.resid")]
    [(_, text)] = headlines(rows(both))
    assert text == (
        "layers 0–1: the mean cosine between two tokens is 0.50. "
        "Gradients, layers 0–1: the mean cosine between two gradients is 0.10."
    )


def test_other_streams_are_described_only_without_the_residual_stream() -> None:
    queries = [Record(f"q.0.{head}", "isoscore", 0.2 + 0.04 * head) for head in range(2)]
    assert sentence_of("isoscore", queries, LOW) == (
        "queries, layer 0: the IsoScore (1 is a sphere, 0 a line) is 0.22 (mean over heads)"
    )
    assert "queries" not in sentence_of("isoscore", [*curve("isoscore", [0.5]), *queries], LOW)


def test_matrices_are_named_one_by_one() -> None:
    records = [Record(f"weight.{name}", "mean_cosine", 0.1) for name in ("a", "b", "c", "d")]
    assert sentence_of("mean_cosine", records) == (
        "weight.a, weight.b, weight.c and 1 more: the mean cosine between two rows is 0.10"
    )


def test_every_kind_of_site_has_a_name() -> None:
    streams = ("attn", "mlp", "q", "k", "q.pre", "k.pre", "pattern", "in", "weight", "dec.attn", "grad.weight")
    assert all(stream_name(stream) for stream in streams)


def test_the_headline_variant_of_the_card_is_described() -> None:
    records = [
        Record("resid.0", "effective_rank", value, variant={"of": of})
        for of, value in (("eigenvalues", 12.0), ("singular values", 29.0))
    ]
    card = {"notable": "low", "headline": {"of": "singular values"}}
    assert sentence_of("effective_rank", records, card) == "layer 0: the effective rank is 29"


def test_a_null_value_that_some_layers_lack_is_not_quoted_for_all() -> None:
    records = [Record("resid.0", "isoscore", 0.5, null=0.9), Record("resid.1", "isoscore", 0.5)]
    assert "null value" not in sentence_of("isoscore", records, LOW)


def test_layers_are_named_at_both_ends() -> None:
    assert layers_text([-1.0, 0.0, 1.0], 2.0) == "embed to layer 1"
    assert layers_text([2.0], 2.0) == "final"
