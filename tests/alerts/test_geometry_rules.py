"""Rules on the held-out tokens: each fires on its fault and stays silent otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from anisoscope import Record
from anisoscope.alerts import (
    Rule,
    constant_output,
    dead_layer,
    kurtosis_onset,
    logits_grow,
    low_rank,
    massive_onset,
    router_collapse,
)


def steps(rule: Rule, measured: Sequence[Sequence[Record]]) -> list[int]:
    return [found.step for records in measured for found in rule(records)]


def series(site: str, metric: str, values: Sequence[float], every: int = 100, **columns: Any) -> list[list[Record]]:
    return [[Record(site, metric, value, step=every * i, **columns)] for i, value in enumerate(values)]


def logits(values: Sequence[float]) -> list[list[Record]]:
    return series("pattern.1", "logit_max", values, index=2, variant={"over": "max"})


def test_logits_beyond_the_bound_or_growing_towards_it_are_an_alert() -> None:
    assert steps(logits_grow(), logits([5, 8, 120])) == [200]
    assert steps(logits_grow(), logits([5, 12, 22, 40])) == [300]
    assert steps(logits_grow(), logits([28, 33, 30, 34])) == []  # large, but not growing
    assert steps(logits_grow(), logits([1, 2, 4, 8])) == []  # growing, but small
    mean = series("pattern.1", "logit_max", [500.0], index=2, variant={"over": "mean"})
    assert steps(logits_grow(), mean) == []


def test_the_onset_of_outlier_features_needs_a_rise_over_the_own_history() -> None:
    rise, constant = [2.0, 2.1, 1.9, 2.0, 20.0, 25.0], [20.0] * 6
    assert steps(kurtosis_onset(), series("resid.1", "feature_kurtosis", rise, tokens="no-sink")) == [500]
    assert steps(kurtosis_onset(), series("resid.1", "feature_kurtosis", constant, tokens="no-sink")) == []
    entries = [100 * value for value in rise]
    medians, units = {"in": "medians"}, {"in": "units"}
    assert steps(massive_onset(), series("resid.1", "entry_max", entries, tokens="no-sink", variant=medians)) == [500]
    assert steps(massive_onset(), series("resid.1", "entry_max", entries, tokens="no-sink", variant=units)) == []


def test_a_layer_is_dead_if_both_branches_write_nothing() -> None:
    def layer(attention: float, mlp: float, step: int) -> list[Record]:
        pair = (("attn.2", attention), ("mlp.2", mlp))
        return [Record(site, "write_ratio", value, step=step, variant={"over": "all"}) for site, value in pair]

    dead = [layer(1e-6, 1e-5, step) for step in (100, 200, 300)]
    assert steps(dead_layer(), dead) == [300]
    assert steps(dead_layer(), [layer(1e-6, 0.3, step) for step in (100, 200, 300)]) == []
    assert steps(dead_layer(), [layer(0.0, 0.0, step) for step in (0, 1, 2)]) == []  # initialised to zero


def test_a_layer_without_gradients_is_dead() -> None:
    def norms(step: int, last: float) -> list[Record]:
        values = (1.0, 1.2, 0.9, last)
        return [Record(f"resid.{i}", "gradient_norm", value, step=step) for i, value in enumerate(values)]

    rule = dead_layer()
    alerts = [found for step in (20, 30, 40) for found in rule(norms(step, 0.0))]
    assert [(found.site, found.step, found.variant["since"]) for found in alerts] == [("resid.3", 40, 20)]
    assert steps(dead_layer(), [norms(step, 0.01) for step in (20, 30, 40)]) == []


def test_low_rank_is_relative_to_random_rows_and_not_for_young_models() -> None:
    columns: dict[str, Any] = {"tokens": "no-sink", "null": 100.0, "variant": {"of": "singular values"}}
    assert steps(low_rank(after=0), series("resid.1", "effective_rank", [2.0] * 3, **columns)) == [200]
    assert steps(low_rank(after=0), series("resid.1", "effective_rank", [20.0] * 3, **columns)) == []
    assert steps(low_rank(after=300), series("resid.1", "effective_rank", [2.0] * 3, **columns)) == []


def test_a_constant_output_shows_at_the_final_site_only() -> None:
    cosines = [0.99] * 3
    assert steps(constant_output(after=0), series("final", "mean_cosine", cosines, tokens="no-sink")) == [200]
    assert steps(constant_output(after=0), series("resid.3", "mean_cosine", cosines, tokens="no-sink")) == []


def test_a_router_that_leaves_out_experts_or_prefers_one_is_an_alert() -> None:
    assert steps(router_collapse(), series("router.1", "router_load", [1.6] * 4, null=0.1)) == [300]
    assert steps(router_collapse(), series("router.1", "dead_experts", [2.0] * 4, null=0.0)) == [300]
    assert steps(router_collapse(), series("router.1", "dead_experts", [2.0] * 4, null=2.0)) == []  # few tokens
    assert steps(router_collapse(), series("router.1", "router_load", [0.4] * 4, null=0.1)) == []
