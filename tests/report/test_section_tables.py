"""The tables of a report's sections."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from anisoscope.records import Record
from anisoscope.report.reported_run import ReportedRun, reported_runs
from anisoscope.report.section_tables import massive_table, number_table, tangent_tables, verdict_table
from anisoscope.report.tiles import tangent_tests
from tests import report_runs as runs
from tests.tangent_worlds import examined, world


def reported(folder: Path, records: list[Record], **more: Any) -> ReportedRun:
    [run] = reported_runs([runs.make_run(folder / "exp", records, **more)])
    return run


def test_a_tangent_test_has_verdicts_instead_of_a_list_of_p_values(tmp_path: Path) -> None:
    made = world(30_000)
    [table, *_] = tangent_tables(tangent_tests(reported(tmp_path, examined(made, made.local_gradients(0.1)))))
    assert {row[0] for row in table.rows if row[4] == "pca"} == {"tangent to its own patch"}


def test_energies_without_tests_have_no_verdict(tmp_path: Path) -> None:
    assert tangent_tests(reported(tmp_path, runs.gradients((0,)))) == []


def test_massive_tokens_are_counted_by_their_text(tmp_path: Path) -> None:
    token = {"site": "resid.2", "position": 3, "token": 5, "norm over median": 11.0, "text": " the"}
    removed = {"count": 3, "tokens": [token, {**token, "position": 9}, {**token, "text": "=", "token": 7}]}
    table = massive_table(reported(tmp_path, runs.profiles(), removed=removed), named=False)
    assert table is not None
    assert table.rows == [["“the”", "2", "layer 2", "11 ×"], ["“=”", "1", "layer 2", "11 ×"]]
    assert table.heads == ["token", "times", "first massive at", "largest norm / median there"]
    assert table.context is None


def test_massive_tokens_have_context_and_the_count_of_all_of_them(tmp_path: Path) -> None:
    word = {"token": 5, "text": " the", "count": 300, "site": "resid.2", "norm over median": 1200.0,
            "left": "in", "shown": " the", "right": " house\nof"}  # fmt: skip
    removed = {"count": 310, "tokens": [{"text": " the"}] * 256, "words": [word]}
    table = massive_table(reported(tmp_path, runs.profiles(), removed=removed), named=False)
    assert table is not None
    assert table.rows == [["“the”", "300", ("in ", "the", " house⏎of"), "layer 2", "1,200 ×"]]
    assert table.context == 2
    assert "There are 310 massive tokens" in table.caption
    assert "the most frequent, 300 together" in table.caption


def test_a_run_that_lists_a_part_of_its_massive_tokens_says_so(tmp_path: Path) -> None:
    removed = {"count": 600, "tokens": [{"text": "x", "site": "embed"}] * 256}
    table = massive_table(reported(tmp_path, runs.profiles(), removed=removed), named=False)
    assert table is not None
    assert table.rows == [["“x”", "256", "embed"]]
    assert "This run lists 256 of them" in table.caption


def test_a_reason_does_not_repeat_what_was_run(tmp_path: Path) -> None:
    record = Record(
        "vectors", "verdict", 0.4, variant={"claim": "S1", "line": "as published", "verdict": "reproduced"},
        note="slope 0.4 (required: > 0). Run: lab, 3 seeds",
    )  # fmt: skip
    table = verdict_table(reported(tmp_path, [record]).rows["verdict"])
    assert table is not None
    assert table.caption == "Run: lab, 3 seeds"
    assert table.rows[0] == ["S1", "as published", "reproduced", "0.40", "slope 0.4 (required: > 0)"]


def test_numbers_of_vectors_have_their_null(tmp_path: Path) -> None:
    record = Record("vectors", "mean_cosine", 0.5, error=0.01, null=0.0, n=100)
    table = number_table([reported(tmp_path, [record])], "cone")
    assert table is not None
    assert table.rows == [["mean_cosine", "0.50 ± 0.01", "0", "100"]]
