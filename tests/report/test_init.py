"""The package of reports can be called, whether or not one of its modules was imported before."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import anisoscope
from tests.report_runs import make_run, profiles

CODE = """
import sys, anisoscope
if sys.argv[1] == "module first":
    import anisoscope.report.page
run = anisoscope.Run.open(sys.argv[2])
print(anisoscope.report(run, sys.argv[3]), "torch" in sys.modules)
"""


@pytest.mark.parametrize("order", ["function first", "module first"])
def test_a_report_is_one_call(tmp_path: Path, order: str) -> None:
    make_run(tmp_path / "run", profiles())
    page = tmp_path / "page.html"
    command = [sys.executable, "-c", CODE, order, str(tmp_path / "run"), str(page)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(page), "False"]
    assert "<svg" in page.read_text()


def test_help_shows_how_to_call_it() -> None:
    assert list(inspect.signature(anisoscope.report).parameters) == ["runs", "path"]
    assert "Args:" in (anisoscope.report.__doc__ or "")
    assert {"report", "compare"} <= set(dir(anisoscope))
