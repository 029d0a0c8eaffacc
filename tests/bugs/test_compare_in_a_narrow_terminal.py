"""In a terminal of a hundred columns `compare` broke its numbers into pieces of four letters."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from anisoscope.records import Record
from anisoscope.report.compare import compare
from anisoscope.report.terminal import differences_table
from tests import report_runs as runs


@pytest.mark.parametrize("width", [80, 100])
def test_numbers_and_sites_stay_whole(tmp_path: Path, width: int) -> None:
    def records(scale: float) -> list[Record]:
        variant = {"neighbours": "other documents"}
        return [
            Record(f"resid.{layer}", "two_nn", scale * layer, step=60, variant=variant, error=0.25, tokens="no-sink")
            for layer in range(24)
        ]

    one, other = runs.make_run(tmp_path / "a", records(1.0)), runs.make_run(tmp_path / "b", records(2.5))
    console = Console(width=width, record=True, file=StringIO())
    console.print(differences_table(compare(one, other), "a and b"))
    text = console.export_text()
    for whole in ("no-sink", "+34.5 ± 0.35", "resid.23", "23 of 24", "at step 60"):
        assert whole in text, text
    assert max(map(len, text.splitlines())) <= width
