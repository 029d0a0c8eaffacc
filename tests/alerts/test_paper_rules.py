"""Alert rules: each fires on its signature, stays silent otherwise, and can call back or stop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from anisoscope import Record
from anisoscope.alerts import (
    Rule,
    call,
    collapse,
    collapsing_profile,
    dimension_fell,
    flat_profile,
    high_cosine,
    missing_bell,
    sharp_parallel_drift,
    stop,
)
from anisoscope.alerts.rules import YOUNG


def probe(metric: str, values: Sequence[float | None], step: int = 0, tokens: str = "no-sink") -> list[Record]:
    return [Record(f"resid.{i}", metric, value, step=step, tokens=tokens) for i, value in enumerate(values)]


def heads(entropy: list[float], cosine: list[float]) -> list[Record]:
    found = [Record("pattern.2", "attention_entropy", value, index=head) for head, value in enumerate(entropy)]
    return [*found, *(Record("pattern.2", "qk_cosine", value, index=head) for head, value in enumerate(cosine))]


def fired(rule: Rule, *probes: list[Record]) -> list[list[str]]:
    """The sites of the alerts at each probe."""
    return [[found.site for found in rule(records)] for records in probes]


def test_collapse_needs_the_given_number_of_low_probes_in_a_row() -> None:
    low, high = probe("isoscore", [0.005, 0.3]), probe("isoscore", [0.2, 0.3])
    assert fired(collapse(0.01, probes=3, after=0), low, low, low, low) == [[], [], ["resid.0"], ["resid.0"]]
    assert fired(collapse(0.01, probes=3, after=0), low, low, high, low, low) == [[], [], [], [], []]


def test_collapse_ignores_sinks_gradients_and_missing_values() -> None:
    rule = collapse(0.01, probes=1, after=0)
    assert fired(rule, probe("isoscore", [0.001], tokens="all")) == [[]]
    assert fired(rule, [Record("grad.resid.0", "isoscore", 0.001, tokens="no-sink")]) == [[]]
    assert fired(rule, probe("isoscore", [None])) == [[]]


def test_a_fall_in_dimension_counts_only_within_its_window() -> None:
    probes = [probe("two_nn", [value], step) for value, step in ((10, 0), (9, 200), (6.5, 400), (6.5, 1200))]
    assert fired(dimension_fell(0.3, within=500, probes=1, after=0), *probes) == [[], [], ["resid.0"], []]
    assert fired(dimension_fell(0.3, within=100, probes=1, after=0), *probes) == [[], [], [], []]


def test_high_cosine_means_all_layers() -> None:
    assert fired(high_cosine(0.9, after=0), probe("mean_cosine", [0.95, 0.99, 0.92])) == [["resid.0"]]
    assert fired(high_cosine(0.9, after=0), probe("mean_cosine", [0.95, 0.5, 0.92])) == [[]]
    assert fired(high_cosine(0.9, after=0), probe("isoscore", [0.95])) == [[]]


def test_sharp_attention_alone_or_parallel_drift_alone_raises_no_alert() -> None:
    rule = sharp_parallel_drift(entropy=0.3, cosine=0.7, after=0)
    assert fired(rule, heads([0.1, 0.2, 0.9], [-0.9, 0.8, 0.1])) == [["pattern.2"]]  # the sign does not matter
    assert fired(rule, heads([0.1, 0.2, 0.1], [0.1, 0.2, 0.1])) == [[]]
    assert fired(rule, heads([0.9, 0.9, 0.9], [0.9, 0.9, 0.9])) == [[]]
    assert fired(rule, heads([0.1, 0.9, 0.9], [0.9, 0.9, 0.9])) == [[]]


def test_a_flat_profile_is_the_same_value_in_many_layers() -> None:
    assert fired(flat_profile(after=0), probe("spectral_anisotropy", [0.5, 0.501, 0.502, 0.5])) == [["resid.0"]]
    assert fired(flat_profile(after=0), probe("spectral_anisotropy", [0.1, 0.101, 0.102, 0.1])) == [[]]
    assert fired(flat_profile(after=0), probe("spectral_anisotropy", [0.5, 0.7, 0.7, 0.5])) == [[]]
    assert fired(flat_profile(after=0), probe("spectral_anisotropy", [0.5, 0.5])) == [[]]


def test_a_profile_that_loses_its_bell_raises_an_alert_and_a_flat_one_does_not() -> None:
    bell, flat = [0.1, 0.5, 0.6, 0.1], [0.1, 0.2, 0.2, 0.1]
    probes = [probe("spectral_anisotropy", values, step) for values, step in ((bell, 0), (bell, 100), (flat, 200))]
    assert fired(collapsing_profile(after=0), *probes) == [[], [], ["resid.2"]]
    assert fired(
        collapsing_profile(after=0), probe("spectral_anisotropy", flat), probe("spectral_anisotropy", flat)
    ) == [
        [],
        [],
    ]


def test_a_decoder_without_a_bell_raises_an_alert_after_some_probes() -> None:
    bell, rising = [0.1, 0.3, 0.6, 0.6, 0.3, 0.2], [0.1, 0.2, 0.3, 0.4, 0.5, 0.6]
    probes = [probe("spectral_anisotropy", values, tokens="all") for values in (rising, bell, rising, rising)]
    assert fired(missing_bell(probes=2, after=0), *probes) == [[], [], [], ["resid.3"]]
    few = probe("spectral_anisotropy", rising[:5], tokens="all")
    assert fired(missing_bell(probes=1, after=0), few) == [[]]


def test_a_wrapped_rule_calls_back_and_marks_its_alerts_as_stopping() -> None:
    received: list[Record] = []
    (found,) = stop(call(high_cosine(0.5, after=0), received.append))(probe("mean_cosine", [0.9]))
    assert [record.variant for record in received] == [{"rule": "high_cosine", "since": 0}]
    assert found.variant == {"rule": "high_cosine", "since": 0, "stop": True}


@pytest.mark.parametrize(
    "rule", [high_cosine(-1.0), collapse(2.0, 1), flat_profile(9.0, -1.0), dimension_fell(-9.0, probes=1)]
)
def test_no_rule_fires_in_the_first_steps_of_a_young_model(rule: Rule) -> None:
    metrics = ("mean_cosine", "isoscore", "spectral_anisotropy", "two_nn")
    records = [record for metric in metrics for record in probe(metric, [0.5, 0.5, 0.5, 0.5], step=YOUNG - 1)]
    later = [replace(record, step=YOUNG) for record in records]
    assert fired(rule, records) == [[]]
    assert fired(rule, later) != [[]]


def test_a_dimension_that_falls_while_the_loss_improves_raises_no_alert() -> None:
    def alerts(losses: Sequence[float]) -> list[list[str]]:
        rule = dimension_fell(probes=1, after=0)
        steps = [(10.0, 0, losses[0]), (5.0, 100, losses[1])]
        return [
            site
            for value, step, loss in steps
            for site in fired(
                rule, [Record("loop", "train_loss", loss, step=step)] * 20, probe("two_nn", [value], step)
            )
        ]

    assert alerts([3.0, 2.0]) == [[], [], [], []]
    assert alerts([3.0, 3.0]) == [[], [], [], ["resid.0"]]
