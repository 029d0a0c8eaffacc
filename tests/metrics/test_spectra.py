"""Metrics of the spectrum against slow numpy implementations."""

from __future__ import annotations

import numpy as np
import pytest

from anisoscope import metrics
from tests.oracles import metrics as slow

RANDOM = np.random.default_rng(0)
X = RANDOM.standard_normal((70, 6)) * np.array([3.0, 2.0, 1.0, 1.0, 0.5, 0.2]) + np.array([1.0, 0, 0, 2.0, 0, 0])


def test_effective_ranks_equal_their_slow_implementations() -> None:
    assert metrics.effective_rank.numbers(X)["of=singular values"] == pytest.approx(slow.effective_rank(X))
    assert metrics.rankme(X) == pytest.approx(slow.effective_rank(X, centre=False))
