"""Concepts over a training, as sentences and tables of a report."""

from __future__ import annotations

from pathlib import Path

from anisoscope import Record
from anisoscope.report.concept_lives import concept_lives, concept_tables, concepts_sentence
from anisoscope.report.question_sections import sections_of
from anisoscope.report.reported_run import ReportedRun, reported_runs
from tests.report_runs import make_run, profiles

STEPS = (0, 10, 100, 1000)
# (site, number): the steps that found it, and its words at each
FOUND = {
    ("resid.0", 0): (0, 10, 100, 1000),
    ("resid.2", 0): (0, 10),
    ("resid.2", 1): (0, 10, 100, 1000),
    ("resid.2", 2): (100, 1000),
    ("resid.2", 3): (100,),
}


def concept_records() -> list[Record]:
    records = [
        Record(site, metric, 0.0, step=step, tokens="no-sink")
        for site in ("resid.0", "resid.2")
        for metric in ("concepts_born", "concepts_died", "concept_stability")
        for step in STEPS
    ]
    for (site, number), steps in FOUND.items():
        for position, step in enumerate(steps):
            note = f"' word{number}' · ' at{step}'"
            records.append(
                Record(site, "concept_share", 0.1 + 0.2 * number, step=step, index=number, note=note, tokens="no-sink")
            )
            for since in ("birth", "last probe") if position else ():
                angle = 10.0 * position if since == "birth" else 10.0
                records.append(
                    Record(
                        site,
                        "concept_drift",
                        angle,
                        step=step,
                        index=number,
                        variant={"since": since},
                        tokens="no-sink",
                    )
                )
    return records


def reported(folder: Path) -> ReportedRun:
    (run,) = reported_runs([make_run(folder / "run", [*profiles(STEPS), *concept_records()])])
    return run


def test_births_deaths_drift_and_words_come_from_the_records(tmp_path: Path) -> None:
    lives = {(life.site, life.number): life for life in concept_lives(reported(tmp_path))}
    assert {key: (life.born, life.died, life.drift) for key, life in lives.items()} == {
        ("resid.0", 0): (0, None, 30.0),
        ("resid.2", 0): (0, 100, 10.0),
        ("resid.2", 1): (0, None, 30.0),
        ("resid.2", 2): (100, None, 10.0),
        ("resid.2", 3): (100, 1000, None),
    }
    assert lives["resid.2", 0].words == "' word0' · ' at10'"  # where it was last found
    assert [step for step, _ in lives["resid.2", 2].shares] == [100, 1000]


def test_the_table_has_one_row_per_concept_and_folds_other_layers_and_brief_ones(tmp_path: Path) -> None:
    main, rest = concept_tables(concept_lives(reported(tmp_path)), "resid.2")
    assert [row[:2] for row in main.rows] == [["resid.2", "0"], ["resid.2", "1"], ["resid.2", "2"]]
    assert main.rows[0][3:6] == ["0", "100", "10°"]
    assert main.rows[1][4] == "lives"
    assert rest.folded
    assert [row[:2] for row in rest.rows] == [["resid.0", "0"], ["resid.2", "3"]]


def test_the_sentence_counts_births_and_deaths(tmp_path: Path) -> None:
    sentence = concepts_sentence(concept_lives(reported(tmp_path)), "resid.2")
    assert sentence == "At resid.2, 2 concepts live at the end; 2 were born after step 0, 2 died."


def test_a_report_has_a_section_of_concepts_only_if_they_were_followed(tmp_path: Path) -> None:
    (section,) = [each for each in sections_of([reported(tmp_path)]) if each.id == "concepts"]
    assert section.sentence.startswith("At resid.2, 2 concepts live")
    assert [figure.metric for figure in section.figures] == ["concept_share", "concept_stability"]
    assert not section.notes
    plain = reported_runs([make_run(tmp_path / "plain", profiles(STEPS))])
    assert "concepts" not in [each.id for each in sections_of(plain)]
