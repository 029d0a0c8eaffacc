"""The held-out tokens: which metrics they have, drift from the reference, failing metrics."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from anisoscope import InputError, Run, Tracker, metric
from anisoscope.schedule import every
from anisoscope.stats.moments import Moments
from tests.training import held_out, hooks_of, records, small_model, tracked, train, value, words

CHEAP: dict[str, Any] = {"metrics": ["mean_cosine"]}  # for tests that use no particular metric


class Caching(nn.Module):
    """A model that makes a table for a shape of batch when it first needs it, and keeps it."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = small_model()
        self.scale = nn.Parameter(torch.ones(1))
        self.kept: Tensor | None = None

    def forward(self, input_ids: Tensor, labels: Tensor) -> Any:
        if self.kept is None or self.kept.shape != input_ids.shape:
            self.kept = torch.ones(input_ids.shape)
        output = self.inner(input_ids=input_ids, labels=labels)
        return {"loss": output.loss + (self.scale * self.kept).mean()}


def test_tensors_that_a_model_caches_during_a_probe_can_be_used_in_training(tmp_path: Path) -> None:
    model = Caching()
    with tracked(tmp_path, model, **CHEAP) as tracker:
        train(model, tracker, range(2), batch=lambda seed: words(seed, items=8))  # of the probe's shape


def test_steps_are_paired_and_the_reference_has_not_drifted(tmp_path: Path) -> None:
    model = small_model()
    with tracked(tmp_path, model) as tracker:
        train(model, tracker, range(3))
    for site in ("embed", "resid.1"):
        assert value(tmp_path, step=0, site=site, metric="cka") == pytest.approx(1, abs=1e-9)
        assert value(tmp_path, step=0, site=site, metric="mean_direction_drift") == pytest.approx(1, abs=1e-9)
        assert 0.5 < value(tmp_path, step=2, site=site, metric="cka") < 0.999999


def test_the_path_of_the_mean_is_recorded_on_two_axes_and_survives_a_restart(tmp_path: Path) -> None:
    """The axes come from the stored reference: a restarted training measures the same coordinates at the same step."""
    few: dict[str, Any] = {"gradients": False, "metrics": ["trajectory"], "sites": ["resid"]}
    model = small_model()
    with tracked(tmp_path, model, **few) as tracker:
        train(model, tracker, range(3))
        tracker.probe(4)
    path = {(r.site, r.step, r.variant["axis"]): r for r in records(tmp_path, metric="trajectory")}
    sites = {site for site, _, _ in path}
    assert path.keys() == {(site, step, axis) for site in sites for step in (0, 2, 4) for axis in (1, 2)}
    assert all(record.variant["of"] == "mean" and record.value is not None for record in path.values())
    assert all(path[site, 0, 2].value == pytest.approx(0, abs=1e-9) for site in sites)
    assert any(abs((path[site, 4, 1].value or 0) - (path[site, 0, 1].value or 0)) > 1e-4 for site in sites)
    with tracked(tmp_path, model, **few, resume=4) as tracker:
        tracker.probe(4)
    again = {(r.site, r.variant["axis"]): r.value for r in records(tmp_path, metric="trajectory", step=4)}
    assert again == {(site, axis): pytest.approx(path[site, 4, axis].value, abs=1e-9) for site, axis in again}


def test_the_reference_can_be_a_later_step(tmp_path: Path) -> None:
    model = small_model()
    with tracked(tmp_path, model, reference=2, gradients=False, metrics=["cka"]) as tracker:
        train(model, tracker, range(5))
    assert {r.step for r in records(tmp_path, metric="cka")} == {2, 4}


def test_error_bars_are_computed_only_at_every_second_probe(tmp_path: Path) -> None:
    model = small_model()
    with tracked(tmp_path, model, schedule=every(1), bars_every=2, gradients=False, metrics=["isoscore"]) as tracker:
        for step in range(4):
            tracker.probe(step)
    found = records(tmp_path, site="resid.1", metric="isoscore", tokens="no-sink")
    assert {r.step: r.error is not None for r in found} == {0: True, 1: False, 2: True, 3: False}


def test_each_part_of_a_packed_sequence_is_a_window(tmp_path: Path) -> None:
    model = small_model()
    parts = held_out(4)["input_ids"]
    packed = {
        "input_ids": parts.reshape(1, -1),
        "position_ids": torch.arange(16).repeat(4)[None],
    }
    with Tracker(model, packed, tmp_path / "run", gradients=False, metrics=["mean_cosine"]) as tracker:
        tracker.probe(0)
    (found,) = records(tmp_path, site="resid.1", tokens="no-sink")
    assert found.n == 4 * 15  # each part's first token is a sink
    assert Run.open(tmp_path / "run").info["unit"] == "windows"


@metric(Moments, low=0, high=1, keeps=set(), paper="none")
def broken(moments: Moments) -> float:
    """Always fails."""
    raise ZeroDivisionError("as it must")


def test_a_failing_metric_is_recorded_and_training_continues(tmp_path: Path) -> None:
    model = small_model()
    with tracked(tmp_path, model, metrics=["isoscore", broken], gradients=False) as tracker:
        train(model, tracker, range(2))
    (found,) = records(tmp_path, site="resid.0", metric="broken", tokens="all")
    assert found.value is None
    assert "ZeroDivisionError: as it must" in (found.note or "")
    assert value(tmp_path, site="resid.0", metric="isoscore", tokens="all") > 0


def test_strict_raises_if_a_metric_fails(tmp_path: Path) -> None:
    model = small_model()
    tracker = tracked(tmp_path, model, metrics=[broken], strict=True)
    with pytest.raises(ZeroDivisionError):
        tracker.probe(0)
    assert hooks_of(model) == 0
    assert all(module.training for module in model.modules())


def test_an_empty_probe_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="held-out tokens"):
        Tracker(small_model(), [], tmp_path / "run")
