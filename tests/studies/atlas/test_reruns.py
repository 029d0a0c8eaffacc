"""Two measurements of a model are compared value by value, in errors of their difference."""

from __future__ import annotations

from pathlib import Path

import pytest

from anisoscope.errors import InputError
from anisoscope.studies.atlas.reruns import compare_reruns, read_reruns, write_reruns
from tests.studies.atlas.made_evidence import model

FIRST = model("tiny", isoscore=[0.1, 0.2, 0.3])


def test_differences_are_counted_in_errors_of_both_values() -> None:
    again = model("tiny", isoscore=([0.1, 0.2, 0.3], [0.1, 0.2, 0.35]))
    rerun = compare_reruns(FIRST, again)
    assert (rerun.values, rerun.within) == (3 + 3 + 5 + 5, 15)  # two token policies; the twin has five sites
    assert rerun.largest == pytest.approx(0.05 / (0.01 * 2**0.5), rel=1e-3)
    assert rerun.where == "isoscore at resid.1, trained, no-sink, text"
    assert "15 of 16 values (93.8%) agree within 2 errors" in rerun.text


def test_measurements_without_a_common_value_are_refused() -> None:
    with pytest.raises(InputError, match="no value in common"):
        compare_reruns(FIRST, model("tiny", two_nn=[1.0, 2.0]))


def test_comparisons_read_back_as_written(tmp_path: Path) -> None:
    rerun = compare_reruns(FIRST, FIRST)
    assert rerun.text == "**tiny**: all 16 values are the same as before."
    write_reruns([rerun], tmp_path / "again.json")
    assert read_reruns(tmp_path / "again.json") == [rerun]
    assert read_reruns(tmp_path / "absent.json") == []
