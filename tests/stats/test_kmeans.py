"""k-means: its starts, its rounds, and its fixed point."""

from __future__ import annotations

import torch

from anisoscope.stats.kmeans import cluster_means, distant_starts, kmeans, nearest_centre, spread_starts

G = torch.Generator().manual_seed(0)
TRUE = torch.tensor([0, 1, 2]).repeat_interleave(40)
X = torch.randn(120, 3, generator=G, dtype=torch.float64) * 0.1 + 5.0 * torch.eye(3, dtype=torch.float64)[TRUE]


def test_starts_are_far_from_each_other() -> None:
    starts = spread_starts(X, 3, 0, lambda square: int(square.argmax()))
    assert sorted(nearest_centre(starts, 5.0 * torch.eye(3, dtype=torch.float64)).tolist()) == [0, 1, 2]


def test_separate_clusters_are_recovered() -> None:
    labels, centres = kmeans(X, X[[0, 40, 80]], rounds=10)
    assert torch.equal(labels, TRUE)
    torch.testing.assert_close(centres, torch.stack([X[j == TRUE].mean(0) for j in range(3)]))


def test_the_result_is_a_fixed_point() -> None:
    labels, centres = kmeans(X, X[[0, 1, 2]], rounds=100)
    assert torch.equal(labels, nearest_centre(X, centres))
    means, count = cluster_means(X, labels, 3)
    torch.testing.assert_close(torch.where(count[:, None] > 0, means, centres), centres)


def test_a_cluster_without_rows_keeps_its_centre() -> None:
    far = torch.full((1, 3), 1e6, dtype=torch.float64)
    labels, centres = kmeans(X, torch.cat((X[[0, 40, 80]], far)), rounds=5)
    assert int(labels.max()) == 2
    assert torch.equal(centres[3], far[0])


def test_well_separated_clusters_are_recovered() -> None:
    draw = torch.Generator().manual_seed(0)
    true = torch.arange(300) % 3
    x = 100 * torch.eye(3, 5)[true] + torch.randn(300, 5, generator=draw)
    _, centres = kmeans(x, distant_starts(x, 3, 0, draw), 5)
    label = nearest_centre(x, centres)
    assert len({(int(a), int(b)) for a, b in zip(true, label, strict=True)}) == 3


def test_equal_rows_give_equal_centres() -> None:
    x = torch.ones(10, 4)
    centres = distant_starts(x, 3, 0, torch.Generator().manual_seed(0))
    assert torch.equal(kmeans(x, centres, 2)[1], torch.ones(3, 4))
