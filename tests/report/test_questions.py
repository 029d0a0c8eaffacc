"""Questions are answered with the right end of a curve, with and without sink tokens, in words that fit the numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from anisoscope.records import Record
from anisoscope.report.overview import frame_of, rows_by_metric
from anisoscope.report.questions import QuestionAnswer, answers, questions_table, streams_of

LAYERS = ("embed", "resid.0", "resid.1", "resid.2", "final")


def curve(metric: str, values: Sequence[float], tokens: str = "no-sink", **more: Any) -> list[Record]:
    more = {"n": 4000 if tokens == "no-sink" else 4096, **more}
    return [Record(site, metric, value, tokens=tokens, **more) for site, value in zip(LAYERS, values, strict=True)]


def answered(records: Sequence[Record], stream: str = "resid") -> Mapping[str, QuestionAnswer]:
    return {answer.question: answer for answer in answers(rows_by_metric(frame_of(records)), stream)}


def test_a_low_isoscore_is_the_finding() -> None:
    records = curve("isoscore", (0.4, 0.3, 0.02, 0.2, 0.5), null=0.8)
    answer = answered(records)["Is the variance even?"]
    assert answer.reading == "no"  # 0.02 of 0.8 at layer 1
    assert "lowest at layer 1" in answer.sentence
    assert answer.values == "0.02–0.50"
    assert answer.null == "0.80"
    assert answered(curve("isoscore", (0.6,) * 5, null=0.8))["Is the variance even?"].reading == "yes"


def test_few_directions_are_judged_by_their_null() -> None:
    few = answered(curve("participation_ratio", (50.0, 12.0, 40.0, 45.0, 50.0), null=500.0))["How many directions?"]
    assert few.reading == "few"
    assert "lowest at layer 0" in few.sentence
    without = answered(curve("participation_ratio", (50.0, 12.0, 40.0, 45.0, 50.0)))["How many directions?"]
    assert without.reading == "–"  # without a null nobody can tell


@pytest.mark.parametrize(("top", "reading"), [(0.12, "no"), (0.3, "partly"), (0.9, "yes")])
def test_one_direction_is_judged_where_it_is_strongest(top: float, reading: str) -> None:
    answer = answered(curve("spectral_anisotropy", (0.05, 0.06, top, 0.05, 0.05), null=0.01))
    assert answer["One direction dominates?"].reading == reading
    assert "highest at layer 1" in answer["One direction dominates?"].sentence


def test_a_coordinate_is_judged_only_if_a_direction_dominates() -> None:
    coordinate = curve("top_coordinate", (0.9, 0.1, 0.1, 0.1, 0.1))
    for top, reading in ((0.05, "–"), (0.9, "yes")):
        found = answered([*coordinate, *curve("spectral_anisotropy", (top,) * 5)])
        assert found["One coordinate carries it?"].reading == reading


def test_sink_tokens_that_cause_the_anisotropy_are_reported_with_their_number() -> None:
    records = curve("spectral_anisotropy", (0.1, 0.1, 0.08, 0.1, 0.1))
    records += curve("spectral_anisotropy", (0.1, 0.1, 0.99, 0.5, 0.1), tokens="all")
    answer = answered(records)["Due to few tokens?"]
    assert answer.reading == "yes"
    assert answer.values == "99 % → 8.0 %"
    assert (
        "99 % of the variance at layer 1, without 96 of 4,096 tokens (first and massive ones) 8.0 %" in answer.sentence
    )


@pytest.mark.parametrize(
    ("over_all", "without", "reading"), [(0.29, 0.09, "yes"), (0.4, 0.25, "no"), (0.12, 0.04, "no")]
)
def test_sink_tokens_are_the_cause_if_a_share_loses_a_tenth_and_half_of_itself(
    over_all: float, without: float, reading: str
) -> None:
    records = curve("spectral_anisotropy", (0.1, 0.1, without, 0.1, 0.1), n=None)
    records += curve("spectral_anisotropy", (0.1, 0.1, over_all, 0.1, 0.1), tokens="all", n=None)
    answer = answered(records)["Due to few tokens?"]
    assert answer.reading == reading
    assert "without first and massive tokens" in answer.sentence  # their number is not recorded


def test_sink_tokens_are_a_part_of_the_cause_if_a_direction_dominates_elsewhere_without_them() -> None:
    records = curve("spectral_anisotropy", (0.6, 0.1, 0.1, 0.1, 0.1))
    records += curve("spectral_anisotropy", (0.6, 0.1, 0.9, 0.1, 0.1), tokens="all")
    assert answered(records)["Due to few tokens?"].reading == "partly"


def test_sinks_that_change_nothing_are_no_cause() -> None:
    records = [r for t in ("all", "no-sink") for r in curve("spectral_anisotropy", (0.1, 0.2, 0.3, 0.2, 0.1), tokens=t)]
    answer = answered(records)["Due to few tokens?"]
    assert answer.reading == "no"
    assert "the same share at every layer" in answer.sentence
    assert "over all tokens" not in answered(records)["One direction dominates?"].sentence


def test_a_cone_that_vanishes_with_the_mean_is_due_to_it() -> None:
    cone = curve("mean_cosine", (0.1, 0.5, 0.6, 0.6, 0.7))
    gone = answered([*cone, *curve("mean_cosine_centred", (0.0, 0.001, -0.001, 0.0, 0.0))])["Only due to the mean?"]
    assert (gone.reading, gone.values) == ("yes", "about 0")
    kept = answered([*cone, *curve("mean_cosine_centred", (0.0, 0.5, 0.4, 0.3, 0.2))])["Only due to the mean?"]
    assert kept.reading == "no"
    none = answered([*curve("mean_cosine", (0.01,) * 5), *curve("mean_cosine_centred", (0.0,) * 5)])
    assert none["Only due to the mean?"].reading == "–"  # no cone to explain
    assert none["How narrow is the cone?"].reading == "no cone"


def test_vectors_have_answers_without_layers() -> None:
    records = [
        Record("vectors", "spectral_anisotropy", 0.6, null=0.01, n=200),
        Record("vectors", "tokens_to_halve", 0.005, n=200),
    ]
    found = answered(records, "vectors")
    assert (
        found["One direction dominates?"].sentence == "the top direction has 60 % of the variance (no structure: 1.0 %)"
    )
    assert found["Due to few rows?"].reading == "yes"


def test_gradients_and_heads_do_not_answer_for_the_residual_stream() -> None:
    records = [Record(f"grad.resid.{i}", "isoscore", 0.9, null=1.0) for i in range(3)]
    records += curve("isoscore", (0.1, 0.1, 0.1, 0.1, 0.1), null=1.0)
    records += [Record("q.0.0", "isoscore", 0.7, null=1.0)]
    rows = rows_by_metric(frame_of(records))
    assert streams_of(rows) == ["resid"]
    assert answers(rows, "resid")[0].values == "0.10"
    assert answers(rows, "q") == []


@pytest.mark.parametrize("width", [80, 120])
def test_the_table_is_whole_and_has_at_most_twelve_lines(width: int) -> None:
    sites = ["embed", *(f"resid.{i}" for i in range(30)), "final"]
    numbers = {"spectral_anisotropy": 0.9, "mean_cosine": 0.7, "mean_cosine_centred": 0.0123, "top_coordinate": 0.9}
    numbers |= {"isoscore": 0.0123, "participation_ratio": 123.4, "two_nn": 12.3}
    records = [
        Record(site, metric, value * (1 - place / 40), tokens=tokens, null=value * 0.987 * (1 + place / 99), n=4096)
        for metric, value in numbers.items()
        for tokens in ("all", "no-sink")
        for place, site in enumerate(sites)
    ]
    found = answered(records)
    console = Console(width=width, file=StringIO(), record=True)
    console.print(questions_table(list(found.values())))
    text = console.export_text()
    assert max(map(len, text.splitlines())) <= width
    assert len(text.splitlines()) <= 12
    for answer in found.values():
        for cell in (answer.question, answer.values, answer.null, answer.reading):
            assert cell in text, text
