"""The list of runs below a folder."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from starlette.testclient import TestClient

from anisoscope.report.live import live_app
from tests import report_runs as runs


def test_a_pipe_named_run_json_does_not_hang_the_list_of_runs(tmp_path: Path) -> None:
    (tmp_path / "bad").mkdir()
    os.mkfifo(tmp_path / "bad" / "run.json")
    runs.make_run(tmp_path / "good", runs.profiles())
    client = TestClient(live_app(str(tmp_path)), base_url="http://127.0.0.1")
    assert {entry["name"] for entry in client.get("/api/runs").json()} == {"good", "bad"}


def test_a_deeply_nested_run_json_does_not_hide_the_other_runs(tmp_path: Path) -> None:
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "run.json").write_text("[" * 200_000)
    runs.make_run(tmp_path / "good", runs.profiles())
    client = TestClient(live_app(str(tmp_path)), base_url="http://127.0.0.1")
    assert {entry["name"] for entry in client.get("/api/runs").json()} == {"good", "bad"}


def test_a_folder_whose_name_is_not_unicode_does_not_break_the_list(tmp_path: Path) -> None:
    runs.make_run(tmp_path / "good", runs.profiles())
    shutil.copytree(tmp_path / "good", os.fsdecode(os.fsencode(tmp_path) + b"/bad\xff"))
    client = TestClient(live_app(str(tmp_path)), base_url="http://127.0.0.1")
    assert [entry["id"] for entry in client.get("/api/runs").json()] == ["good"]
