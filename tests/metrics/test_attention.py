"""Metrics of queries and keys against plain numpy."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from anisoscope import metrics
from anisoscope.stats.head_scores import Heads
from anisoscope.stats.head_sums import HeadSums

G = torch.Generator().manual_seed(0)
Q = torch.randn(3, 4, 10, 6, generator=G, dtype=torch.float64) + torch.randn(1, 4, 1, 6, generator=G).double()
K = torch.randn(3, 2, 10, 6, generator=G, dtype=torch.float64) + 0.5
COUNTS = torch.ones(3, 10, dtype=torch.bool)
COUNTS[2, 7:] = False


def sums(part: slice = slice(0, 3)) -> HeadSums:
    return HeadSums.of(Heads(Q[part], K[part], 1.0), COUNTS[part])


def test_drifts_and_cosines_equal_numpy_with_shared_keys_and_padding() -> None:
    real = COUNTS.numpy()
    cosines = {v.index: v.value for v in metrics.qk_cosine.function(sums())}
    relative = {v.index: v.value for v in metrics.q_drift.function(sums()) if v.variant["in"] == "rms"}
    budget = {v.index: v.value for v in metrics.logit_budget.function(sums())}
    for head in range(4):
        q = np.concatenate([Q[b, head].numpy()[real[b]] for b in range(3)])
        k = [K[b, head // 2].numpy()[real[b]] for b in range(3)]
        q_mean, k_mean = q.mean(0), np.concatenate(k).mean(0)
        assert cosines[head] == pytest.approx(q_mean @ k_mean / np.linalg.norm(q_mean) / np.linalg.norm(k_mean))
        assert relative[head] == pytest.approx(np.linalg.norm(q_mean) / np.sqrt((q**2).sum(1).mean()))
        within = sum((part - part.mean(0)).T @ (part - part.mean(0)) for part in k)
        drift = q_mean @ within @ q_mean
        assert budget[head] == pytest.approx(drift / (drift + np.trace(np.cov(q.T, bias=True) @ within)))


def test_the_logit_budget_is_the_variance_of_logits_due_to_the_mean_query() -> None:
    """By simulation: var over keys of q̄·k against var of (q − q̄)·k, k centred in its window."""
    (budget,) = [v.value for v in metrics.logit_budget.function(sums()) if v.index == 0]
    real = COUNTS.numpy()
    q = np.concatenate([Q[b, 0].numpy()[real[b]] for b in range(3)])
    k = np.concatenate([K[b, 0].numpy()[real[b]] - K[b, 0].numpy()[real[b]].mean(0) for b in range(3)])
    by_mean = ((k @ q.mean(0)) ** 2).sum()
    by_rest = np.mean([((k @ (row - q.mean(0))) ** 2).sum() for row in q])
    assert budget == pytest.approx(by_mean / (by_mean + by_rest))
