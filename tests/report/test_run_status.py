"""What the list of runs shows of each run."""

from __future__ import annotations

from pathlib import Path

import pytest

from anisoscope.records import Record
from anisoscope.report import run_index
from anisoscope.report.run_index import RunIndex
from anisoscope.report.run_status import config_of, tail_facts
from anisoscope.store.run import Run
from tests import report_runs as runs


def test_the_list_shows_step_loss_and_last_alert(tmp_path: Path) -> None:
    records = [
        *(Record("loop", "train_loss", 4.0 - step / 100, step=step) for step in (0, 100)),
        Record("loop", "validation_loss", 3.5, step=50),
        Record("resid.1", "alert", 0.6, step=60, variant={"rule": "r"}, note="too narrow"),
    ]
    runs.make_run(tmp_path / "exp", records, settings={"layers": 4, "text": None, "sites": ["resid"]})
    [entry] = RunIndex(tmp_path).listing()
    assert (entry["step"], entry["loss"], entry["alert"], entry["alert_step"]) == (100, 3.5, "too narrow", 60)
    assert entry["config"] == {"layers": 4}


def test_only_the_end_of_a_long_file_is_read(tmp_path: Path) -> None:
    many = [Record("resid.0", "isoscore", 0.1, step=step) for step in range(3000)]
    runs.make_run(tmp_path / "exp", [Record("loop", "train_loss", 9.0), *many])
    facts = tail_facts(tmp_path / "exp" / "records.jsonl")
    assert facts["step"] == 2999
    assert facts["loss"] is None  # far from the end


def test_a_run_is_running_while_a_process_holds_it_and_stopped_if_it_ended_early(tmp_path: Path) -> None:
    index = RunIndex(tmp_path)
    with Run.create(tmp_path / "exp", {"settings": {"steps": 100}}) as run:
        run.append([Record("loop", "train_loss", 3.0, step=10)])
        assert index.listing()[0]["status"] == "running"
    assert index.listing()[0]["status"] == "stopped"
    with Run.create(tmp_path / "exp", resume=True) as run:
        run.append([Record("loop", "train_loss", 2.0, step=100)])
    assert index.listing()[0]["status"] == "finished"


def test_a_damaged_file_of_records_has_no_facts(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    path.write_text("not json\n[1, 2]\n")
    assert tail_facts(path)["step"] is None
    assert tail_facts(tmp_path / "missing")["step"] is None


def test_an_entry_is_read_again_only_if_a_file_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs.make_run(tmp_path / "exp", runs.profiles())
    index = RunIndex(tmp_path)
    first = index.listing()
    monkeypatch.setattr(run_index, "tail_facts", lambda path: pytest.fail("read again"))
    assert index.listing() == first


def test_long_and_nested_settings_are_not_columns() -> None:
    assert config_of({"settings": {"a": 1, "b": "x" * 100, "c": [1]}, "config": {"d": 0.5}}) == {"a": 1, "d": 0.5}
