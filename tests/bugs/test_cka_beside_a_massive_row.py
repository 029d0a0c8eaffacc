"""With one massive row the cka of float32 rows was off by 1e-2: the row's own square cancels out of large products."""

from __future__ import annotations

import pytest
import torch

from anisoscope import metrics
from tests.oracles import drift


def test_cka_beside_a_massive_row_is_that_of_the_kernels() -> None:
    g = torch.Generator().manual_seed(0)
    now = torch.randn(64, 512, generator=g)
    then = 0.8 * now + 0.6 * torch.randn(64, 512, generator=g)
    now[20] *= 1000.0
    x, y = (z.double().numpy() for z in (now, then))
    true = drift.cka(x - x.mean(0), y - y.mean(0))
    assert metrics.cka(now, then) == pytest.approx(true, abs=1e-9)
