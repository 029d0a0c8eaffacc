"""Figures compare at most seven things, each labelled in words."""

from __future__ import annotations

import pytest

from anisoscope.records import Record
from anisoscope.studies.claims.figure_labels import MOST, label, shown_records
from anisoscope.studies.claims.run_sizes import cause_cells


def records(*of: str) -> list[Record]:
    return [Record("vectors", "m", float(n), error=0.1, variant={"of": name}) for n, name in enumerate(of)]


@pytest.mark.parametrize(
    ("of", "words"),
    [
        ("weight_in, semi_nmf, step 3000, against error_shuffle", "weight gradients, input side, semi-NMF"),
        ("s = 1, γ = 0.25", "frequency bias 1, pinning 0.25"),
        ("centring: short-decoder", "mean removed, share 0"),
        ("centring: centring-0.5", "mean removed, share 0.5"),
        ("temperature-2", "softmax, temperature 2"),
        ("GPT-2, published", "GPT-2, published"),
    ],
)
def test_labels_are_words(of: str, words: str) -> None:
    assert label(of).startswith(words)


def test_few_things_are_all_shown() -> None:
    assert [r.variant["of"] for r in shown_records(records("decoder", "off-by-one"))] == [
        "decoder",
        "softmax with 1 more in the sum",
    ]


def test_gradients_are_shown_at_their_first_step() -> None:
    kinds = [(g, n) for g in ("hidden", "embedding") for n in ("orientation", "coordinates")]
    many = records(*(f"{g}, pca, step {s}, against {n}" for s in (900, 3000) for g, n in kinds))
    shown = shown_records(many)
    assert [record.value for record in shown] == [0, 1, 2, 3]


def test_exponents_are_averaged() -> None:
    shown = shown_records(records(*cause_cells().values()))
    assert [record.value for record in shown] == [2, 3, 4, 5]  # the mean of n and n + 4
    assert shown[0].variant["of"] == "softmax attention, next token"


def test_no_figure_has_more_than_seven_things() -> None:
    shown = shown_records(records(*(f"model {n}" for n in range(20))))
    assert len(shown) == MOST


def test_a_withdrawn_control_is_not_drawn() -> None:
    both = [Record("resid.0", "m", 1.0, variant={"of": "decoder", "null": null}) for null in ("normal", "equal_energy")]
    assert [record.variant["null"] for record in shown_records(both)] == ["normal"]
