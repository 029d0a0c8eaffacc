"""Where records go: loggers and rules that fail, alerts, and runs that are continued."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from anisoscope import InputError, Record, StoreError, Tracker
from anisoscope.alerts import (
    collapse,
    high_cosine,
    standard,
    stop,
)
from tests.training import records, small_model, tracked, train, words

CHEAP: dict[str, Any] = {"metrics": ["mean_cosine"]}  # for tests that use no particular metric


def test_a_logger_that_fails_does_not_end_the_training(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    counts: list[int] = []

    def lost(_: Any) -> None:
        raise ConnectionError("no network")

    model = small_model()
    with tracked(tmp_path, model, **CHEAP, log=[lost, lambda records: counts.append(len(records))]) as tracker:
        train(model, tracker, range(1))
    assert "no network" in caplog.text
    assert len(counts) == 2  # the probe and the watch
    assert sum(counts) == len(records(tmp_path))


def test_a_run_is_not_continued_with_other_held_out_tokens(tmp_path: Path) -> None:
    tracked(tmp_path, small_model()).close()
    with pytest.raises(InputError, match="other held-out tokens"):
        Tracker(small_model(), words(5), tmp_path / "run", resume=1)
    tracked(tmp_path, small_model(), resume=1).close()  # the run is free again


def test_an_existing_run_is_not_overwritten_by_accident(tmp_path: Path) -> None:
    tracked(tmp_path, small_model()).close()
    with pytest.raises(StoreError, match="resume=step"):
        tracked(tmp_path, small_model())


def test_alerts_are_recorded_and_logged_once_and_can_stop_training(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = small_model()
    rules = [stop(high_cosine(above=-1, after=0)), *standard()]
    with tracked(tmp_path, model, alerts=rules, gradients=False) as tracker:
        before = tracker.should_stop
        train(model, tracker, range(5))
        assert (before, tracker.should_stop) == (False, True)
    found = records(tmp_path, metric="alert")
    assert [(r.step, r.site, dict(r.variant)) for r in found] == [
        (0, "resid.0", {"rule": "high_cosine", "since": 0, "stop": True})
    ]
    assert caplog.text.count("mean cosine above -1") == 1


def test_a_rule_that_fails_does_not_end_the_training(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def broken(_: object) -> list[Record]:
        raise LookupError("no such thing")

    model = small_model()
    with tracked(tmp_path, model, alerts=[broken], gradients=False, metrics=["mean_cosine"]) as tracker:
        train(model, tracker, range(1))
    assert "no such thing" in caplog.text


def test_a_restarted_training_restores_the_memory_of_its_rules(tmp_path: Path) -> None:
    def options() -> dict[str, object]:
        return {"alerts": [collapse(below=1.1, probes=3, after=0)], "gradients": False, "metrics": ["isoscore"]}

    model = small_model()
    with tracked(tmp_path, model, **options()) as tracker:
        train(model, tracker, range(3))
    assert not records(tmp_path, metric="alert")
    with tracked(tmp_path, model, **options(), resume=4) as tracker:
        train(model, tracker, range(4, 5))
    assert {r.step for r in records(tmp_path, metric="alert")} == {4}
