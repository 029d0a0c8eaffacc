"""Calibration of the tangent test: nothing is found where there is nothing, and what was planted is found.

The short form has 60 simulated runs, the slow one 200. With a true rate of 5 % the number of false positives in 60 runs
lies in [0, 9] but for one chance in a thousand; in 200 runs it must lie in 2-9 %.
"""

from __future__ import annotations

from functools import cache

import pytest
import torch
from scipy.stats import binom

from anisoscope.records import Record
from anisoscope.tangent.proxies import svd
from anisoscope.tangent.summary import summarise
from anisoscope.tangent.weight_gradients import error_shuffle
from tests.tangent_worlds import RANK, N, World, examined, fitted, world

DECIDING = ("orientation", "coordinates", "variance_matched", "transfer_slope", "local_test", "error_shuffle")
SHORT, LONG = 60, 200
MOST = int(binom.ppf(0.999, SHORT, 0.05))


@cache
def null_p_values(runs: int) -> dict[str, list[float]]:
    """p-values of every deciding null over simulated runs without any relation; of plain rows, first proxy asked."""
    found: dict[str, list[float]] = {name: [] for name in DECIDING}
    for seed in range(runs):
        made = world(10_000 + seed)
        for record in examined(made, made.unrelated_gradients(), seed=seed):
            variant = record.variant
            if record.metric == "gradient_p" and variant["rows"] == "plain" and variant["null"] in found:
                wanted = "broad" if variant["null"] == "variance_matched" else "pca"
                if variant.get("proxy", wanted) == wanted and record.value is not None:
                    found[variant["null"]].append(record.value)
        inputs, errors = made.test[:200], made.normal(200, 6)
        level = error_shuffle(inputs, errors, [svd(made.fit, RANK)], seed=seed)[0]
        found["error_shuffle"].append(level.p or 0.0)
    return found


@pytest.mark.parametrize("null", DECIDING)
def test_in_sixty_runs_without_a_relation_few_are_called(null: str) -> None:
    p = torch.tensor(null_p_values(SHORT)[null])
    assert len(p) > 0.9 * SHORT
    assert int((p <= 0.05).sum()) <= MOST
    assert 0.3 < float(p.median()) < 0.7


@pytest.mark.slow
@pytest.mark.parametrize("null", DECIDING)
def test_in_two_hundred_runs_the_false_positive_rate_is_right(null: str) -> None:
    p = torch.tensor(null_p_values(LONG)[null])
    assert 0.02 <= float((p <= 0.05).double().mean()) <= 0.09


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


@pytest.mark.parametrize("seed", range(5))
def test_a_local_tangent_share_of_a_tenth_is_found(seed: int) -> None:
    made = world(30_000 + seed)
    records = examined(made, made.local_gradients(0.1))
    assert p_of(records, "local_test") <= 0.01
    assert p_of(records, "local_test", "unit") <= 0.01
    assert words(records) == "tangent to its own patch"
    assert local_energy(records) > 0


@pytest.mark.parametrize("share", [0.2, 0.5, 0.8])
def test_a_planted_tangent_share_is_recovered(share: float) -> None:
    """Gradients with a known share inside the true leading subspace: E_T is that share to 2 %."""
    draw = torch.Generator().manual_seed(5)
    axes = torch.linalg.qr(torch.randn(24, 24, generator=draw))[0]
    scale = torch.cat((torch.full((RANK,), 4.0), torch.full((24 - RANK,), 0.3)))
    x = torch.randn(2 * N, 24, generator=draw) * scale @ axes.T
    inside = torch.nn.functional.normalize(torch.randn(N, RANK, generator=draw), dim=1) @ axes[:, :RANK].T
    outside = torch.nn.functional.normalize(torch.randn(N, 24 - RANK, generator=draw), dim=1) @ axes[:, RANK:].T
    g = share**0.5 * inside + (1 - share) ** 0.5 * outside
    made = World(x[:N], x[N:], torch.zeros(N).long(), torch.zeros(8, 24, RANK), draw)
    for record in examined(made, g):
        if record.metric == "gradient_energy" and record.variant == {
            "gradient": "hidden",
            "basis": "refreshed",
            "proxy": "pca",
            "rows": record.variant["rows"],
        }:
            assert record.value == pytest.approx(share, abs=0.02)


def test_one_massive_token_cannot_make_a_finding() -> None:
    """One gradient of ten thousand times the length, wholly inside the basis: the plain energy is 1, and no finding."""
    made = world(40_000)
    g = made.unrelated_gradients()
    g[17] = 1e4 * fitted(made).bases[0].q[:, 0].float()
    records = examined(made, g)
    plain = next(r for r in records if r.metric == "gradient_energy" and r.variant["rows"] == "plain")
    assert (plain.value or 0.0) > 0.99
    assert words(records) == "no relation found"
    assert all(r.q.get(null, 1.0) > 0.05 for r in summarise(records) for null in DECIDING)


def test_the_tautology_of_weight_gradients_is_caught() -> None:
    """Noise errors through inputs with a strong mean: energy far above chance, and the shuffle calls it nothing."""
    calls = 0
    for seed in range(20):
        made = world(50_000 + seed)
        x = made.test[:256] + 4 * made.fit.mean(0)
        basis = svd(made.fit + 4 * made.fit.mean(0), RANK)
        (level,) = error_shuffle(x, made.normal(256, 8), [basis], seed=seed)
        assert (level.level or 0.0) > 3 * RANK / 24
        calls += (level.p or 0.0) <= 0.05
    assert calls <= int(binom.ppf(0.999, 20, 0.05))


def test_references_that_do_not_decide_have_a_difference_and_no_p() -> None:
    made = world(60_000)
    records = examined(made, made.unrelated_gradients())
    for null in ("next_band", "matched_covariance"):
        mine = [r for r in records if r.variant.get("null") == null]
        assert {r.metric for r in mine} >= {"gradient_excess"}
        assert not [r for r in mine if r.metric in ("gradient_p", "gradient_q")]
        assert all(r.error is not None for r in mine if r.metric == "gradient_excess")


def test_every_deciding_p_has_a_q_that_is_no_smaller() -> None:
    made = world(70_000)
    records = examined(made, made.covariance_gradients())
    p = {(r.index, tuple(sorted(r.variant.items()))): r.value for r in records if r.metric == "gradient_p"}
    q = {(r.index, tuple(sorted(r.variant.items()))): r.value for r in records if r.metric == "gradient_q"}
    assert p.keys() == q.keys()
    assert all((q[key] or 0.0) >= (p[key] or 0.0) for key in p)
