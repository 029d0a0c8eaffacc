"""A metric that is computed from stored statistics has the value that the measurement had, under both policies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import anisoscope
from anisoscope.errors import InputError, MetricError
from anisoscope.schedule import every
from tests.sweep_folders import documents
from tests.training import LAYERS, held_out, small_model, train

NAMES = ["mean_cosine", "mean_cosine_across_documents", "isoscore", "two_nn"]


def test_recomputed_values_equal_those_that_were_measured(folder: Path, tmp_path: Path) -> None:
    request: dict[str, Any] = {"text": documents(tmp_path / "text.jsonl"), "tokens": 600, "window": 32}
    request |= {"sites": ["resid"], "metrics": NAMES, "errors": False, "keep_statistics": True}
    run = anisoscope.measure(folder, **request, out=tmp_path / "run")
    measured = {(r.site, r.metric, r.tokens, r.index, str(r.variant)): r.value for r in run.records()}
    again = anisoscope.recompute(tmp_path / "run", NAMES)
    assert {r.tokens for r in again} == {"all", "no-sink"}
    for r in again:
        # sums are those of all rows, or are added block by block: 600 roundings at most
        before = measured[r.site, r.metric, r.tokens, r.index, str(r.variant)]
        assert r.value == pytest.approx(before, rel=600 * 2.3e-16 * 100)


def test_a_run_without_statistics_says_how_to_keep_them(tmp_path: Path) -> None:
    with anisoscope.Run.create(tmp_path / "run"):
        pass
    with pytest.raises(InputError, match=r"keeps no statistics; measure it again with --keep-statistics"):
        anisoscope.recompute(tmp_path / "run", ["isoscore"])


def test_an_error_bar_is_not_replaced_by_none(folder: Path, tmp_path: Path) -> None:
    request: dict[str, Any] = {"text": documents(tmp_path / "text.jsonl"), "tokens": 600, "window": 32}
    request |= {"sites": ["resid"], "metrics": NAMES, "keep_statistics": True}
    run = anisoscope.measure(folder, **request, out=tmp_path / "run")
    measured, replicates = run.records(), run.replicates()
    assert any(r.error is not None for r in measured)
    again = anisoscope.recompute(tmp_path / "run", [*NAMES, "rankme"])
    assert [r for r in again if r.metric != "rankme" and r.error is not None] == [r for r in measured if r.error]
    assert again.replicates() == replicates
    assert all(r.value is not None and r.error is None for r in again if r.metric == "rankme")


@pytest.fixture(scope="module")
def training(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A training with pattern sites, whose reference step has error bars."""
    folder = tmp_path_factory.mktemp("training")
    model = small_model()
    names = ["two_nn", "attention_entropy", "q_drift"]
    with anisoscope.Tracker(model, held_out(16), folder / "run", metrics=names, schedule=every(2)) as tracker:
        train(model, tracker, range(4))
    return folder / "run"


def test_a_training_with_patterns_is_recomputed_at_the_sites_of_each_metric(training: Path) -> None:
    before = anisoscope.Run.open(training).records()
    again = anisoscope.recompute(training, ["two_nn", "gride", "qk_cosine"]).records()
    assert [r for r in again if r.metric in {b.metric for b in before}] == before
    rows = ["embed", *(f"resid.{layer}" for layer in range(LAYERS)), "final"]
    assert {(r.site, r.tokens, r.step) for r in again if r.metric == "gride"} == {(s, "no-sink", 0) for s in rows}
    patterns = {(f"pattern.{layer}", "all", 0) for layer in range(LAYERS)}
    assert {(r.site, r.tokens, r.step) for r in again if r.metric == "qk_cosine"} == patterns
    assert all(r.value is not None for r in again if r.metric in ("gride", "qk_cosine"))


def test_a_metric_that_a_training_kept_nothing_for_is_refused_with_the_way_out(training: Path) -> None:
    with pytest.raises(MetricError, match=r"keeps no Moments at embed. Pass it to the tracker"):
        anisoscope.recompute(training, ["rankme"])
    with pytest.raises(MetricError, match=r"compares two measurements"):
        anisoscope.recompute(training, ["cka"])
    with pytest.raises(MetricError, match=r"no site that it applies to"):
        anisoscope.recompute(training, ["router_load"])
