"""Verdicts of the tangent test on worlds with known relations."""

from __future__ import annotations

from dataclasses import replace

import pytest

from anisoscope.records import Record
from anisoscope.report.tangent_summary import summarise
from tests.tangent_worlds import DECIDING, RANK, examined, fitted, world


def words(records: list[Record], proxy: str = "pca") -> str:
    return next(r.words for r in summarise(records) if r.proxy == proxy)


def p_of(records: list[Record], null: str, rows: str = "plain") -> float:
    return min(
        r.value
        for r in records
        if r.metric == "gradient_p"
        and r.value is not None
        and (r.variant["null"], r.variant["rows"]) == (null, rows)
        and r.variant.get("proxy", "pca") == "pca"
    )


def local_energy(records: list[Record], rows: str = "plain") -> float:
    return next(r.value or 0.0 for r in records if r.metric == "local_excess" and r.variant["rows"] == rows)


@pytest.mark.parametrize("seed", range(5))
def test_gradients_that_follow_the_covariance_are_called_exactly_that(seed: int) -> None:
    made = world(20_000 + seed)
    records = examined(made, made.covariance_gradients())
    assert words(records) == "follows the covariance, and nothing else"
    energy = next(r.value for r in records if r.metric == "gradient_energy" and r.variant["rows"] == "plain")
    assert (energy or 0.0) > 3 * RANK / 24


def test_a_finding_carries_the_size_of_its_effect() -> None:
    made = world(20_000)
    summary = next(s for s in summarise(examined(made, made.covariance_gradients())) if s.proxy == "pca")
    assert summary.level == pytest.approx(RANK / 24)
    assert summary.enrichment == pytest.approx((summary.energy.value or 0.0) / summary.level)
    assert summary.interval is not None
    assert summary.interval[0] < summary.enrichment < summary.interval[1]
    assert summary.interval[1] - summary.enrichment == pytest.approx(
        2.3646 * (summary.energy.error or 0.0) / summary.level, rel=1e-4
    )  # the t quantile of eight blocks
    assert summary.verdict == f"{summary.effect}: {summary.words}"


@pytest.mark.parametrize(
    ("value", "effect"), [(0.03, "hardly any"), (0.05, "weak"), (0.07, "clear"), (0.14, "strong"), (1.0, "strong")]
)
def test_a_significant_energy_near_chance_is_called_hardly_any_effect(value: float, effect: str) -> None:
    """E = 0.030 against chance 0.028 with q = 0 is tangent to its own patch, but hardly any effect."""
    made = world(30_000)
    summary = next(s for s in summarise(examined(made, made.local_gradients(0.1))) if s.proxy == "pca")
    near = replace(summary, energy=replace(summary.energy, value=value, null=0.028), level=0.028)
    assert near.words == "tangent to its own patch"
    assert near.verdict == f"{effect} effect: tangent to its own patch"


def test_what_is_no_finding_has_no_effect() -> None:
    made = world(40_000)
    summary = next(s for s in summarise(examined(made, made.unrelated_gradients())) if s.proxy == "pca")
    assert summary.verdict == summary.words == "no relation found"


@pytest.mark.parametrize("seed", range(5))
def test_a_local_tangent_share_of_a_tenth_is_detected(seed: int) -> None:
    made = world(30_000 + seed)
    records = examined(made, made.local_gradients(0.1))
    assert p_of(records, "local_test") <= 0.01
    assert p_of(records, "local_test", "unit") <= 0.01
    assert words(records) == "tangent to its own patch"
    assert local_energy(records) > 0


def test_one_massive_gradient_cannot_cause_a_finding() -> None:
    """One gradient of ten thousand times the length, wholly inside the basis: the plain energy is 1, and no finding."""
    made = world(40_000)
    g = made.unrelated_gradients()
    g[17] = 1e4 * fitted(made).bases[0].q[:, 0].float()
    records = examined(made, g)
    plain = next(r for r in records if r.metric == "gradient_energy" and r.variant["rows"] == "plain")
    assert (plain.value or 0.0) > 0.99
    assert words(records) == "no relation found"
    assert all(r.q.get(null, 1.0) > 0.05 for r in summarise(records) for null in DECIDING)
