"""The time that the tracker takes, and schedules that are stretched to stay within a budget."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from anisoscope import Run
from anisoscope.schedule import at, every
from anisoscope.tracker.clock import OverheadClock
from tests.training import records, small_model, tracked, train

CHEAP: dict[str, Any] = {"metrics": ["mean_cosine"]}  # for tests that use no particular metric


def test_the_tracker_reports_its_own_time(tmp_path: Path) -> None:
    model = small_model()
    with tracked(tmp_path, model, **CHEAP) as tracker:
        train(model, tracker, range(3))
        assert tracker.overhead > 0
    facts = Run.open(tmp_path / "run").info["tracker"]
    assert facts["probes"] == 2
    assert facts["seconds"] > 0


def test_a_budget_that_is_spent_stretches_the_schedule(tmp_path: Path) -> None:
    model = small_model()
    with tracked(tmp_path, model, schedule=every(1), max_overhead=1e-6, gradients=False, **CHEAP) as tracker:
        train(model, tracker, range(4))
    assert {r.step for r in records(tmp_path)} == {0}
    assert Run.open(tmp_path / "run").info["tracker"]["skipped to stay within max_overhead"] == 3


def test_a_budget_that_is_not_spent_does_not_change_the_schedule(tmp_path: Path) -> None:
    model = small_model()
    with tracked(tmp_path, model, schedule=at(0, 1), max_overhead=1e6, gradients=False, **CHEAP) as tracker:
        train(model, tracker, range(2))
    assert {r.step for r in records(tmp_path)} == {0, 1}


def test_the_clock_adds_the_watch_of_a_step_to_its_probe() -> None:
    clock = OverheadClock()
    assert clock.affords(0.0)  # nothing is known about the cost before the first probe
    with clock.working():
        pass
    clock.add(5.0, same_step=True)
    assert clock.spent >= 5.0
    assert not clock.affords(1.0)
