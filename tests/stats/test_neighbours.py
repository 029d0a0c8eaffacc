"""Neighbours of the sampled rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from anisoscope import metrics
from anisoscope.stats.cloud import Cloud
from anisoscope.stats.collect import cloud_of
from anisoscope.stats.collector import Collector
from anisoscope.stats.neighbours import Neighbours, TwoNeighbours
from anisoscope.stats.rows import Rows, token_table


def test_neighbours_in_other_documents_are_found_if_rows_of_the_same_document_are_nearer() -> None:
    random = np.random.default_rng(5)
    document = np.repeat(np.arange(100), 40)
    x = random.standard_normal((100, 10))[document] + 0.05 * random.standard_normal((4000, 10))
    values = {v.variant["neighbours"]: v for v in metrics.two_nn.values(cloud_of(x, {"Sample"}, documents=document))}
    assert values["other documents"].note == "100 % of rows have their nearest neighbour in their own document"
    other = [np.sort(np.linalg.norm(x[document != document[i]] - x[i], axis=1))[:2] for i in range(0, 4000, 400)]
    cloud = cloud_of(x, {"Sample"}, documents=document)
    metrics.two_nn.values(cloud)
    neighbours = cloud.get(TwoNeighbours).neighbours
    rows = {tuple(row.tolist()): place for place, row in enumerate(neighbours.x)}
    for i, expected in zip(range(0, 4000, 400), other, strict=True):
        assert neighbours.other[rows[tuple(x[i].tolist())]].numpy() == pytest.approx(expected)


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
def test_filtered_neighbours_equal_those_of_a_new_search(copies: bool, window: int, kind: Any) -> None:
    cloud = cloud_with_firsts(copies, window)
    cloud.get(kind)
    without = cloud.without_tokens(torch.zeros(0, dtype=torch.int64), first=True)
    filtered, searched = kind.derive(without), kind.derive(Cloud(without.stats, without.blocks))
    if isinstance(filtered, TwoNeighbours):
        filtered, searched = filtered.neighbours, searched.neighbours
    k = filtered.distance.shape[1]
    assert k >= 2
    assert torch.equal(filtered.x, searched.x)
    assert torch.allclose(filtered.distance, searched.distance[:, :k], rtol=1e-9)
    assert torch.equal(filtered.copies, searched.copies)
    assert torch.equal(filtered.block, searched.block)
    assert torch.allclose(filtered.other, searched.other, rtol=1e-9)
    assert torch.equal(filtered.same_document, searched.same_document)
