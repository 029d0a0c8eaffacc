"""Neighbours within fewer tokens, filtered from a search that was made before, are those a new search would find."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from anisoscope.metrics.dimension import _gride
from anisoscope.stats.cloud import Cloud
from anisoscope.stats.collector import Collector
from anisoscope.stats.neighbours import Neighbours, TwoNeighbours
from anisoscope.stats.rows import Rows, token_table
from anisoscope.stats.threads import in_threads


def cloud_with_firsts(copies: bool, window: int) -> Cloud:
    """Rows in windows whose first tokens lie together, so that many lists lose neighbours; some rows twice."""
    make = torch.Generator().manual_seed(3)
    x = torch.randn(600, 12, generator=make)
    offset = torch.arange(600) % window
    x[offset == 0] *= 0.2
    if copies:
        x[100:160] = x[200:260]
    tokens = token_table(torch.arange(600) // 50, torch.arange(600) % 50, offset=offset, block=torch.arange(600) // 100)
    collector = Collector({"Moments", "Sample"}, sample=400, extremes=16, sinks=True)
    collector.add(Rows(x, tokens))
    return collector.finish()


@pytest.mark.parametrize("copies", [False, True])
@pytest.mark.parametrize("window", [10, 150])
@pytest.mark.parametrize("kind", [Neighbours, TwoNeighbours])
def test_neighbours_without_tokens_are_those_of_a_new_search(copies: bool, window: int, kind: Any) -> None:
    cloud = cloud_with_firsts(copies, window)
    cloud.get(kind)
    without = cloud.without_tokens(torch.zeros(0, dtype=torch.int64), first=True)
    filtered, searched = kind.derive(without), kind.derive(Cloud(without.stats, without.blocks))
    if isinstance(filtered, TwoNeighbours):
        filtered, searched = filtered.found, searched.found
    k = filtered.distance.shape[1]
    assert k >= 2
    assert torch.equal(filtered.x, searched.x)
    assert torch.allclose(filtered.distance, searched.distance[:, :k], rtol=1e-9)
    assert torch.equal(filtered.copies, searched.copies)
    assert torch.equal(filtered.block, searched.block)
    assert torch.allclose(filtered.other, searched.other, rtol=1e-9)
    assert torch.equal(filtered.same_document, searched.same_document)


def test_threads_give_what_a_loop_gives_and_leave_torch_as_it_was() -> None:
    before = torch.get_num_threads()
    matrices = [torch.randn(20, 20, dtype=torch.float64, generator=torch.Generator().manual_seed(i)) for i in range(9)]
    torch.set_num_threads(2)
    try:
        many = in_threads(lambda m: torch.linalg.eigvalsh(m @ m.T), matrices)
        assert torch.get_num_threads() == 2
        assert torch.get_float32_matmul_precision() == "highest"
    finally:
        torch.set_num_threads(before)
    for found, matrix in zip(many, matrices, strict=True):
        assert torch.allclose(found, torch.linalg.eigvalsh(matrix @ matrix.T))


@pytest.mark.parametrize("k", [2, 16])
@pytest.mark.parametrize("far", [1e-9, 1.0, 40.0])
def test_gride_finds_its_root_wherever_it_lies(k: int, far: float) -> None:
    """Ratios of two kinds pull the root to either end of where it can lie; the likelihood is looked at on a grid."""
    log_mu = torch.cat((torch.full((90,), 1e-3), torch.full((10,), far))).double()
    found = _gride(log_mu, k)
    d = torch.logspace(math.log10(found) - 3, math.log10(found) + 3, 6001, dtype=torch.float64)[:, None]
    # ln of d·(μ^d − 1)^(k−1)/μ^((2k−1)d+1), up to what does not depend on d
    each = d.log() + (k - 1) * (-(-d * log_mu).expm1()).log() - k * d * log_mu
    best = float(d[each.sum(1).argmax(), 0])
    assert found == pytest.approx(best, rel=3e-3)
