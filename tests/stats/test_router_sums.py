"""Sums of routers, and their metrics, against plain numpy."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from anisoscope import metrics
from anisoscope.errors import MetricError
from anisoscope.stats.cloud import Cloud
from anisoscope.stats.packing import pack, unpack
from anisoscope.stats.router_sums import RouterSums, Routing

G = torch.Generator().manual_seed(0)
LOGITS = 2 * torch.randn(4, 9, 5, generator=G, dtype=torch.float64)
COUNTS = torch.ones(4, 9, dtype=torch.bool)
COUNTS[3, 5:] = False


def routing(logits: torch.Tensor, k: int) -> Routing:
    index = logits.topk(k, dim=-1).indices
    return Routing(logits, torch.zeros(logits.shape, dtype=torch.bool).scatter(-1, index, True))


def value(name: str, sums: RouterSums) -> metrics.Value:
    (found,) = metrics.find([name])[0].values(Cloud({"RouterSums": sums}))
    return found


@pytest.mark.parametrize("k", [1, 2, 4])
def test_router_metrics_equal_numpy_with_padding(k: int) -> None:
    sums = RouterSums.of(routing(LOGITS, k), COUNTS)
    rows = LOGITS.numpy()[COUNTS.numpy()]  # (n, e)
    p = np.exp(rows) / np.exp(rows).sum(1, keepdims=True)
    order = np.argsort(-rows, axis=1)
    load = np.bincount(order[:, :k].ravel(), minlength=5)
    ranked = np.take_along_axis(p, order, 1)
    assert value("router_load", sums).value == pytest.approx(load.std() / load.mean())
    assert value("router_entropy", sums).value == pytest.approx(-(p * np.log(p)).sum(1).mean() / np.log(5))
    assert value("router_margin", sums).value == pytest.approx((ranked[:, k - 1] - ranked[:, k]).mean())
    assert value("dead_experts", sums).value == (load == 0).sum()
    assert value("router_load", sums).n == len(rows)


def test_one_expert_that_gets_everything_is_the_worst_load() -> None:
    logits = torch.zeros(2, 50, 4)
    logits[..., 2] = 40.0
    sums = RouterSums.of(routing(logits, 1), torch.ones(2, 50, dtype=torch.bool))
    assert value("router_load", sums).value == pytest.approx(3**0.5)
    assert value("router_entropy", sums).value == pytest.approx(0, abs=1e-6)
    assert value("router_margin", sums).value == pytest.approx(1)
    assert value("dead_experts", sums).value == 3
    assert value("dead_experts", sums).note == "experts 0, 1, 3"


def test_the_nulls_are_those_of_random_choices() -> None:
    """500 draws: the mean of the squared load is exact in expectation, within five standard errors of 4 %."""
    draw, loads, dead = torch.Generator().manual_seed(1), [], []
    counts = torch.ones(1, 40, dtype=torch.bool)
    for _ in range(500):
        sums = RouterSums.of(routing(torch.rand(1, 40, 16, generator=draw), 2), counts)
        loads.append((value("router_load", sums).value or 0.0) ** 2)
        dead.append(value("dead_experts", sums).value or 0.0)
    null, empty = value("router_load", sums).null, value("dead_experts", sums).null
    assert null is not None
    assert np.mean(loads) == pytest.approx(null**2, rel=0.1)
    assert np.mean(dead) == pytest.approx(empty, rel=0.4)


def test_sums_of_parts_add_up_and_can_be_subtracted() -> None:
    whole = RouterSums.of(routing(LOGITS, 2), COUNTS)
    parts = [RouterSums.of(routing(LOGITS[i], 2), COUNTS[i]) for i in (slice(0, 1), slice(1, 4))]
    for name, total in pack(parts[0] + parts[1]).items():
        torch.testing.assert_close(total, pack(whole)[name])
        torch.testing.assert_close(pack(whole.without(parts[0]))[name], pack(parts[1])[name])
    assert all(torch.equal(x, pack(unpack(RouterSums, pack(whole)))[name]) for name, x in pack(whole).items())


def test_tokens_beyond_the_capacity_have_no_margin_and_no_expert() -> None:
    chosen = torch.zeros(1, 3, 4, dtype=torch.bool)
    chosen[0, 0, 1] = True
    sums = RouterSums.of(Routing(torch.zeros(1, 3, 4), chosen), torch.ones(1, 3, dtype=torch.bool))
    assert float(sums.load.sum()) == 1
    assert value("router_margin", sums).n == 1
    none = RouterSums.of(Routing(torch.zeros(1, 3, 4), chosen & False), torch.ones(1, 3, dtype=torch.bool))
    for name in ("router_load", "router_entropy", "router_margin", "dead_experts"):
        with pytest.raises(MetricError):
            value(name, none)
