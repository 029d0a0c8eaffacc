"""Metrics of queries and keys against plain numpy."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from anisoscope import metrics
from anisoscope.hooks import observe_sites
from anisoscope.stats.head_scores import Attention, Heads
from anisoscope.stats.head_sums import HeadSums
from tests.tiny_models import build

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


def softmax_inputs(model: nn.Module, batch: dict[str, Any]) -> list[Tensor]:
    """The logits of every attention softmax of a forward with eager attention, (b, h, t, s) each, hidden ones -inf."""

    class Inputs(TorchFunctionMode):
        seen: ClassVar[list[Tensor]] = []

        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func in (nn.functional.softmax, torch.softmax, Tensor.softmax) and args[0].ndim == 4:
                self.seen.append(args[0].detach().double().masked_fill(args[0] < -1e6, -torch.inf))
            return func(*args, **(kwargs or {}))

    Inputs.seen.clear()
    with torch.no_grad(), Inputs() as mode:
        model(**batch)
    return mode.seen


@pytest.mark.parametrize("name", ["llama", "gemma2", "bloom", "mpt", "bert", "opt", "gpt2"])
def test_logit_max_is_that_of_the_logits_that_enter_an_eager_softmax(name: str) -> None:
    """Grouped keys, rotary embedding, a soft cap, ALiBi, and queries that are scaled early."""
    model, batch = build(name)
    expected = softmax_inputs(build(name, "eager")[0], batch)
    found: list[Attention] = []
    counts = batch["attention_mask"].bool()
    with torch.no_grad(), observe_sites(model, ["pattern"], lambda _, x: found.append(Attention.of(x, counts))):
        model(**batch)
    assert len(found) == len(expected)
    for attention, logits in zip(found, expected, strict=True):
        top = logits.amax(-1).transpose(1, 2)[counts]  # (rows, heads)
        by = {(v.index, v.variant["over"]): v.value for v in metrics.logit_max.function(attention)}
        for head in range(top.shape[1]):
            assert by[head, "mean"] == pytest.approx(float(top[:, head].mean()), rel=1e-4, abs=1e-4)
            assert by[head, "max"] == pytest.approx(float(top[:, head].max()), rel=1e-4, abs=1e-4)


def test_the_sink_rate_counts_heads_above_its_limit() -> None:
    q, k = torch.zeros(1, 4, 20, 4), torch.zeros(1, 4, 20, 4)
    q[:, :2, :, 0] = 10.0
    k[:, :2, 0, 0] = 1.0  # two heads attend to the first key
    counts = torch.ones(1, 20, dtype=torch.bool)
    value = metrics.sink_rate.function(Attention.of(Heads(q, k, 1.0, causal=True), counts))
    assert (value.value, value.null) == (0.5, 0.0)
    short = metrics.sink_rate.function(Attention.of(Heads(q[:, :, :3], k[:, :, :3], 1.0, causal=True), counts[:, :3]))
    assert short.null == 1.0  # uniform attention over two or three keys
