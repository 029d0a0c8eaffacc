"""Lengths of queries, keys and values against plain numpy."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from anisoscope import metrics
from anisoscope.errors import MetricError
from anisoscope.stats.cloud import Cloud
from anisoscope.stats.head_norms import HeadNorms
from anisoscope.stats.head_scores import Heads
from anisoscope.stats.packing import pack, unpack

G = torch.Generator().manual_seed(0)
Q = torch.randn(3, 4, 10, 6, generator=G, dtype=torch.float64)
K = torch.randn(3, 2, 10, 6, generator=G, dtype=torch.float64) + 0.5
V = torch.randn(3, 2, 10, 8, generator=G, dtype=torch.float64)
COUNTS = torch.ones(3, 10, dtype=torch.bool)
COUNTS[2, 7:] = False
K[2, :, 9] = 1e6  # does not count


def norms(part: slice = slice(0, 3)) -> HeadNorms:
    return HeadNorms.of(Heads(Q[part], K[part], 1.0, v=V[part]), COUNTS[part])


@pytest.mark.parametrize(("name", "x"), [("q_norm", Q), ("k_norm", K), ("v_norm", V)])
def test_mean_and_largest_lengths_equal_numpy_with_padding(name: str, x: torch.Tensor) -> None:
    values = metrics.find([name])[0].values(Cloud({"HeadNorms": norms()}))
    by_key = {(value.index, value.variant["over"]): value.value for value in values}
    assert len(by_key) == 2 * x.shape[1]
    for head in range(x.shape[1]):
        lengths = np.concatenate([np.linalg.norm(x[b, head].numpy()[COUNTS[b].numpy()], axis=1) for b in range(3)])
        assert by_key[head, "mean"] == pytest.approx(lengths.mean())
        assert by_key[head, "max"] == pytest.approx(lengths.max())


def test_norms_of_two_parts_add_up_and_can_be_subtracted() -> None:
    whole, first, rest = norms(), norms(slice(0, 1)), norms(slice(1, 3))
    for name, total in pack(first + rest).items():
        torch.testing.assert_close(total, pack(whole)[name])
    left = whole.without(first)
    for name in ("tokens", "q", "k", "v"):
        torch.testing.assert_close(getattr(left, name), getattr(rest, name))
    assert torch.equal(left.q_max, whole.q_max)  # a maximum cannot forget
    back = unpack(HeadNorms, pack(whole))
    assert all(torch.equal(x, pack(back)[name]) for name, x in pack(whole).items())


def test_heads_without_values_give_a_reason() -> None:
    hidden = HeadNorms.of(replace(Heads(Q, K, 1.0), v=None), COUNTS)
    assert len((hidden + hidden).v) == 0
    with pytest.raises(MetricError, match="does not show its values"):
        metrics.v_norm.values(Cloud({"HeadNorms": hidden}))
    assert len(metrics.q_norm.values(Cloud({"HeadNorms": hidden}))) == 8
