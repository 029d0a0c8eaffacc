"""Records of the tangent test: calibrated p-values, q-values, references.

The short calibration has 60 simulated runs, the slow one 200. With a true rate of 5 % the number of false positives in
60 runs lies in [0, 9] except for one chance in a thousand; in 200 runs it must lie in 2-9 %.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
import torch
from scipy.stats import binom

from anisoscope.stats.inference import false_discovery
from anisoscope.tangent.gradient_records import NULLS
from anisoscope.tangent.null import GRADIENTS
from anisoscope.tangent.proxies import svd
from anisoscope.tangent.weight_gradients import error_shuffle
from tests.oracles import tangent as oracle
from tests.tangent_worlds import DECIDING, RANK, N, World, examined, world

SHORT, LONG = 60, 200


MOST = int(binom.ppf(0.999, SHORT, 0.05))


@cache
def null_p_values(runs: int) -> dict[str, list[float]]:
    """p-values of every deciding null over simulated runs without any relation; of plain rows, first proxy."""
    p_values: dict[str, list[float]] = {name: [] for name in DECIDING}
    for seed in range(runs):
        made = world(10_000 + seed)
        for record in examined(made, made.unrelated_gradients(), seed=seed):
            variant = record.variant
            if record.metric == "gradient_p" and variant["rows"] == "plain" and variant["null"] in p_values:
                wanted = "broad" if variant["null"] == "variance_matched" else "pca"
                if variant.get("proxy", wanted) == wanted and record.value is not None:
                    p_values[variant["null"]].append(record.value)
        inputs, errors = made.test[:200], made.normal(200, 6)
        level = error_shuffle(inputs, errors, [svd(made.fit, RANK)], seed=seed)[0]
        p_values["error_shuffle"].append(level.p or 0.0)
    return p_values


@pytest.mark.parametrize("null", DECIDING)
def test_few_of_sixty_runs_without_a_relation_are_significant(null: str) -> None:
    p = torch.tensor(null_p_values(SHORT)[null])
    assert len(p) > 0.9 * SHORT
    assert int((p <= 0.05).sum()) <= MOST
    assert 0.3 < float(p.median()) < 0.7


@pytest.mark.slow
@pytest.mark.parametrize("null", DECIDING)
def test_the_false_positive_rate_is_five_percent_in_two_hundred_runs(null: str) -> None:
    p = torch.tensor(null_p_values(LONG)[null])
    assert 0.02 <= float((p <= 0.05).double().mean()) <= 0.09


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


def test_references_have_a_difference_and_no_p_value() -> None:
    made = world(60_000)
    records = examined(made, made.unrelated_gradients())
    for null in ("next_band", "matched_covariance"):
        mine = [r for r in records if r.variant.get("null") == null]
        assert {r.metric for r in mine} >= {"gradient_excess"}
        assert not [r for r in mine if r.metric in ("gradient_p", "gradient_q")]
        assert all(r.error is not None for r in mine if r.metric == "gradient_excess")


def test_every_p_value_has_a_q_value_that_is_not_smaller() -> None:
    made = world(70_000)
    records = examined(made, made.covariance_gradients())
    p = {(r.index, tuple(sorted(r.variant.items()))): r.value for r in records if r.metric == "gradient_p"}
    q = {(r.index, tuple(sorted(r.variant.items()))): r.value for r in records if r.metric == "gradient_q"}
    assert p.keys() == q.keys()
    assert all((q[key] or 0.0) >= (p[key] or 0.0) for key in p)


def test_q_values_are_those_of_the_step_up_rule() -> None:
    for seed in range(5):
        p = torch.rand(9, generator=torch.Generator().manual_seed(seed)).pow(3).tolist()
        assert false_discovery(p) == pytest.approx(oracle.benjamini_hochberg(p))
    assert false_discovery([]) == []


def test_the_page_names_every_null_with_the_gradients_it_applies_to() -> None:
    page = (Path(__file__).parents[2] / "docs" / "tangent.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| `") and line.endswith(("yes |", "no |"))]
    for null in NULLS.values():
        (row,) = [line for line in rows if f"`{null.name}`" in line]
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        applies = set(GRADIENTS) if cells[2] == "all" else {kind.strip() for kind in cells[2].split(",")}
        assert applies == null.gradients, null.name
        assert (cells[3] == "yes") == null.decides, null.name
