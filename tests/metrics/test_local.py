"""Isotropy inside clusters."""

from __future__ import annotations

import torch

from anisoscope import metrics
from anisoscope.stats.collect import cloud_of


def test_round_clusters_are_locally_isotropic_beyond_the_null() -> None:
    g = torch.Generator().manual_seed(0)
    centres = 100 * torch.randn(16, 12, generator=g)[torch.arange(2000) % 16]
    centres[:, 3:] = 0.0
    (found,) = metrics.local_isotropy.values(cloud_of(centres + torch.randn(2000, 12, generator=g), {"Sample"}))
    assert found.value is not None
    assert found.null is not None
    assert found.value > 0.9 > found.null + 0.2
