"""A training restarted before its last probe counted the later probes too, and repeated alerts that still held."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from anisoscope import alerts
from anisoscope.schedule import every
from tests.training import records, small_model, tracked, train

OPTIONS: dict[str, Any] = {"schedule": every(1), "bars_every": 3, "gradients": False, "metrics": ["isoscore", "two_nn"]}


def follow(folder: Path, steps: range, resume: int | None = None) -> None:
    """The model does not change, so only the state of the tracker can differ."""
    rules = [alerts.collapse(below=2.0, probes=1, after=0)]  # holds from the first probe to the last
    model = small_model().eval()
    with tracked(folder, model, **OPTIONS, alerts=rules, resume=resume) as tracker:
        for step in steps:
            tracker.probe(step)


def test_error_bars_and_alerts_after_a_restart_are_those_of_one_run(tmp_path: Path) -> None:
    follow(tmp_path / "whole", range(8))
    follow(tmp_path / "restarted", range(6))
    follow(tmp_path / "restarted", range(4, 8), resume=4)
    found, expected = ([replace(r, run="") for r in records(tmp_path / name)] for name in ("restarted", "whole"))
    assert found == expected
    assert {r.step for r in expected if r.error is not None} == {0, 3, 6}
    assert {r.step for r in expected if r.metric == "alert"} == {0}


def test_a_folder_with_only_the_lock_of_a_killed_tracker_can_be_used(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "lock").write_text("123\n")
    train(small_model(), tracked(tmp_path, small_model(), gradients=False), range(2))
