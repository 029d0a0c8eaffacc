"""The one thing to know about a report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from anisoscope.records import Record
from anisoscope.report.reported_run import ReportedRun, page_kind, reported_runs
from anisoscope.report.thesis import Thesis, thesis_of
from tests import report_runs as runs


def reported(folder: Path, **by_name: list[Record]) -> list[ReportedRun]:
    return reported_runs([runs.make_run(folder / name, records) for name, records in by_name.items()])


def thesis(folder: Path, **by_name: list[Record]) -> Thesis:
    found = reported(folder, **by_name)
    return thesis_of(found, page_kind(found))


def layers(metric: str, values: list[float], **more: Any) -> list[Record]:
    return [Record(f"resid.{layer}", metric, value, **more) for layer, value in enumerate(values)]


def test_few_tokens_that_cause_the_anisotropy_come_first(tmp_path: Path) -> None:
    both = [
        *layers("spectral_anisotropy", [0.1, 0.99, 0.98, 0.1], n=1000, null=0.01),
        *layers("spectral_anisotropy", [0.1, 0.11, 0.09, 0.1], n=990, null=0.01, tokens="no-sink"),
    ]
    found = thesis(tmp_path, a=both)
    assert found.title == "A few tokens make this model look one-dimensional."
    assert "Layers 1–2: over all tokens one direction holds 98–99 % of the variance." in found.detail
    assert "Leave out 10 of 1,000 tokens" in found.detail
    assert "it is 9.0–11 % (no structure: 1.0 %)" in found.detail


@pytest.mark.parametrize(
    ("records", "title"),
    [
        (layers("spectral_anisotropy", [0.1, 0.8, 0.1]), "One direction holds most of the variance in layer 1."),
        (
            layers("mean_cosine", [0.5, 0.6]) + layers("mean_cosine_centred", [0.0, 0.001]),
            "Tokens point the same way: a cone, and only because of their mean.",
        ),
        (layers("participation_ratio", [3.0, 4.0], null=100.0), "The variance of this model lies in few directions."),
        (layers("spectral_anisotropy", [0.05, 0.06]), "No direction dominates this model's tokens."),
    ],
    ids=["direction", "cone", "few", "nothing"],
)
def test_the_strongest_finding_is_the_thesis(tmp_path: Path, records: list[Record], title: str) -> None:
    assert thesis(tmp_path, a=records).title == title


def test_two_models_are_distinguished_by_their_sinks(tmp_path: Path) -> None:
    sinks = layers("spectral_anisotropy", [0.9, 0.9], n=100) + layers(
        "spectral_anisotropy", [0.1, 0.1], n=99, tokens="no-sink"
    )
    plain = layers("spectral_anisotropy", [0.1, 0.1], n=100) + layers(
        "spectral_anisotropy", [0.1, 0.1], n=99, tokens="no-sink"
    )
    found = thesis(tmp_path, big=sinks, small=plain)
    assert found.title == "A few tokens make big look one-dimensional, but not small."
    assert "is similar: big 10 %; small 10 %" in found.detail


def test_a_training_is_summed_up_by_its_largest_change_its_losses_and_its_alerts(tmp_path: Path) -> None:
    records = [
        *layers("mean_cosine", [0.1, 0.1]),
        *layers("mean_cosine", [0.4, 0.6], step=100),
        *(Record("loop", "train_loss", loss, step=step) for step, loss in ((0, 4.0), (100, 2.5))),
        Record("resid.1", "alert", 0.6, step=100, variant={"rule": "high_cosine"}, note="mean cosine above 0.5"),
    ]
    found = thesis(tmp_path, a=records)
    assert found.title == "In 100 steps the mean cosine between tokens rose from 0.10 to 0.50."
    assert "The training loss fell from 4 to 2.50." in found.detail
    assert "1 alert, the first at step 100 (resid.1: mean cosine above 0.5)." in found.detail


def test_verdicts_are_counted(tmp_path: Path) -> None:
    found = thesis(tmp_path, a=runs.verdicts())
    assert found.title == "2 of 3 claims are reproduced as published, 1 stays open."


def test_a_layer_between_two_stretches_is_not_described_as_one_of_them(tmp_path: Path) -> None:
    every = [0.6, 0.1, 0.9, 0.99, 0.1]
    both = [
        *layers("spectral_anisotropy", every, n=1000),
        *[Record(f"resid.{i}", "spectral_anisotropy", 0.1, n=990 - i, tokens="no-sink") for i in range(5)],
    ]
    found = thesis(tmp_path, a=both)
    assert "Layers 2–3: over all tokens one direction holds 90–99 % of the variance." in found.detail
    assert "Leave out 13 of 1,000 tokens" in found.detail


def test_a_share_below_a_half_is_not_one_dimension(tmp_path: Path) -> None:
    both = [
        *layers("spectral_anisotropy", [0.4, 0.45], n=1000),
        *layers("spectral_anisotropy", [0.1, 0.1], n=990, tokens="no-sink"),
    ]
    assert thesis(tmp_path, a=both).title == "A few tokens cause most of what looks like one direction."


@pytest.mark.parametrize(
    ("other", "title"),
    [
        (0.1, "A few tokens cause most of what looks like one direction in big, but not in small."),
        (0.3, "A few tokens cause most of what looks like one direction in all of these models."),
    ],
)
def test_models_whose_top_direction_is_weak_are_not_called_one_dimensional(
    tmp_path: Path, other: float, title: str
) -> None:
    without = layers("spectral_anisotropy", [0.1, 0.1], tokens="no-sink")
    big = layers("spectral_anisotropy", [0.1, 0.3]) + without
    small = layers("spectral_anisotropy", [0.1, other]) + without
    assert thesis(tmp_path, big=big, small=small).title == title


def test_tokens_whose_number_is_unknown_are_not_counted(tmp_path: Path) -> None:
    both = [
        *layers("spectral_anisotropy", [0.1, 0.3]),
        *layers("spectral_anisotropy", [0.1, 0.1], tokens="no-sink"),
    ]
    found = thesis(tmp_path, a=both)
    assert found.title == "A few tokens cause most of what looks like one direction."
    assert "Leave out first and massive tokens and it is 10 %." in found.detail


def test_a_direction_that_dominates_without_sinks_comes_before_what_sinks_cause(tmp_path: Path) -> None:
    both = [
        *layers("spectral_anisotropy", [0.6, 0.9], n=1000),
        *layers("spectral_anisotropy", [0.6, 0.1], n=990, tokens="no-sink"),
    ]
    assert thesis(tmp_path, a=both).title == "One direction holds most of the variance in layer 0."


def test_a_model_with_a_direction_of_its_own_is_not_said_to_look_so_because_of_sinks(tmp_path: Path) -> None:
    own = layers("spectral_anisotropy", [0.6, 0.9]) + layers("spectral_anisotropy", [0.6, 0.1], tokens="no-sink")
    plain = layers("spectral_anisotropy", [0.1, 0.1]) + layers("spectral_anisotropy", [0.1, 0.1], tokens="no-sink")
    assert thesis(tmp_path, a=own, b=plain).title == "a is more anisotropic than b."
