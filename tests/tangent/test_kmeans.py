"""K-means on clusters that are easy to separate."""

from __future__ import annotations

import torch

from anisoscope.tangent.kmeans import lloyd, nearest_centre, spread_centres


def test_well_separated_clusters_are_recovered() -> None:
    draw = torch.Generator().manual_seed(0)
    true = torch.arange(300) % 3
    x = 100 * torch.eye(3, 5)[true] + torch.randn(300, 5, generator=draw)
    centres = lloyd(x, spread_centres(x, x[:1], 3, draw), 5)
    label = nearest_centre(x, centres)
    assert len({(int(a), int(b)) for a, b in zip(true, label, strict=True)}) == 3


def test_equal_rows_give_equal_centres() -> None:
    x = torch.ones(10, 4)
    centres = spread_centres(x, x[:1], 3, torch.Generator().manual_seed(0))
    assert torch.equal(lloyd(x, centres, 2), torch.ones(3, 4))
