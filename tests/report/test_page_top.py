"""What stands next to the hero chart."""

from __future__ import annotations

from pathlib import Path

from anisoscope.records import Record
from anisoscope.report.page_top import largest_differences, side_of
from anisoscope.report.reported_run import reported_runs
from anisoscope.report.summary import summary_of
from tests import report_runs as runs
from tests.report_pages import tangent


def layers(values: list[float], **more: object) -> list[Record]:
    return [
        Record(f"resid.{i}", "mean_cosine", v, error=0.01, error_kind="jackknife-16-documents", n=100, **more)  # type: ignore[arg-type]
        for i, v in enumerate(values)
    ]


def test_two_runs_have_their_largest_difference_with_its_error(tmp_path: Path) -> None:
    pair = [
        runs.make_run(tmp_path / "a", layers([0.1, 0.2, 0.3])),
        runs.make_run(tmp_path / "b", layers([0.1, 0.5, 0.3])),
    ]
    found = largest_differences(pair)
    assert found == {"mean_cosine": "+0.30 ± 0.014 *"}
    reported = reported_runs(pair)
    side = side_of(summary_of(reported), reported, found)
    assert side is not None
    assert side["heads"] == ["question", "a", "b", "largest difference"]
    assert side["rows"][0]["cells"][-1]["value"] == "+0.30 ± 0.014 *"


def test_one_run_and_runs_without_common_numbers_have_no_difference(tmp_path: Path) -> None:
    one = runs.make_run(tmp_path / "a", layers([0.1, 0.2]))
    other = runs.make_run(tmp_path / "b", [Record("resid.0", "isoscore", 0.1)])
    assert largest_differences([one]) == {}
    assert largest_differences([one, other]) == {}


def test_the_verdicts_of_a_tangent_test_stand_next_to_its_chart(tmp_path: Path) -> None:
    reported = reported_runs(tangent(tmp_path))
    side = side_of(summary_of(reported), reported)
    assert side is not None
    assert side["kind"] == "verdicts"
    assert side["table"].heads == ["verdict", "effect", "site", "basis"]
