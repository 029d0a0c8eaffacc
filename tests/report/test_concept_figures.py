"""Figures of concepts over training."""

from __future__ import annotations

from anisoscope.report.concept_figures import life_figure
from anisoscope.report.concept_lives import ConceptLife
from anisoscope.report.figure import TrainingAxis

STEPS = (0, 10, 20, 30)


def life(number: int, born: int, last: int) -> ConceptLife:
    shares = [(step, 0.5) for step in STEPS if born <= step <= last]
    return ConceptLife("resid.1", 1.0, number, f"'w{number}'", born, None if last == 30 else last + 10, 5.0, shares)


def test_each_concept_is_a_row_in_the_order_of_birth_with_a_cell_per_step() -> None:
    figure = life_figure([life(1, 20, 30), life(0, 0, 10)], "Concepts", TrainingAxis(STEPS))
    cells = figure.spec["data"]["values"]
    assert [(cell["concept"], cell["step"]) for cell in cells] == [
        ("0  'w0'", 0),
        ("0  'w0'", 10),
        ("1  'w1'", 20),
        ("1  'w1'", 30),
    ]
    assert figure.spec["encoding"]["y"]["sort"] == ["0  'w0'", "1  'w1'"]
    assert figure.alt == "Concepts: 2 concepts, of which 1 died."


def test_of_many_concepts_those_that_live_or_lived_longest_are_drawn() -> None:
    short = [life(number, 10, 10) for number in range(100)]
    figure = life_figure([*short, life(100, 0, 20), life(101, 30, 30)], "Concepts", TrainingAxis(STEPS))
    drawn = {cell["concept"] for cell in figure.spec["data"]["values"]}
    assert {"100  'w100'", "101  'w101'"} <= drawn
    assert len(drawn) < 50
    assert "that live or lived longest are drawn" in figure.alt
