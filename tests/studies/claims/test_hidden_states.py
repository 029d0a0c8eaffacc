"""Hidden states and attention in memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from anisoscope.studies.claims.hidden_states import (
    cosines_before_rotation,
    entropies,
    matrix_entropy,
    mean_cosine,
    windows,
)
from anisoscope.studies.lab.transformer import Config, Transformer
from tests.oracles.metrics import mean_cosine as slow_cosine


def test_the_cosine_of_states_is_the_mean_over_pairs() -> None:
    rows = torch.randn(50, 8, generator=torch.Generator().manual_seed(0)) + 0.5
    assert mean_cosine(rows) == pytest.approx(slow_cosine(rows.numpy().astype(float)))


def test_means_before_rotation_are_those_of_the_projections() -> None:
    model = Transformer(Config(vocabulary=11, width=16, heads=2, layers=2, context=8), seed=3)
    ids = torch.randint(11, (5, 8), generator=torch.Generator().manual_seed(0))
    block: Any = model.blocks[0]
    x = block.norm_attn(model.tokens(ids)).detach()
    q, k = (f(x).detach().view(-1, 2, 8).mean(0) for f in (block.attn.q_proj, block.attn.k_proj))
    found = cosines_before_rotation(model, [{"input_ids": ids[:3]}, {"input_ids": ids[3:]}])
    assert found[0, 1] == pytest.approx(float(q[1] @ k[1] / (q[1].norm() * k[1].norm())), abs=1e-5)
    assert len(found) == 4


def test_attention_without_its_mean_query_is_that_of_centred_queries() -> None:
    """Without rotary embedding and with every window alike, centred queries are zero and attention is even."""
    model = Transformer(Config(vocabulary=11, width=16, heads=2, layers=1, context=8, init_scale=20.0), seed=3)
    ids = torch.randint(11, (1, 8), generator=torch.Generator().manual_seed(0)).expand(6, 8)
    plain = entropies(model, [{"input_ids": ids}])
    without = entropies(model, [{"input_ids": ids}], centred=True)
    assert all(value < 0.99 for value in plain.values())
    assert list(without.values()) == pytest.approx([1.0, 1.0], abs=1e-4)


def test_the_matrix_entropy_is_the_mean_over_windows_of_the_rows_that_are_left() -> None:
    x = torch.randn(12, 5, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    window = torch.tensor([0] * 5 + [1] * 4 + [2] * 3)
    keep = torch.tensor([True, False, True, True, True, False, True, True, True, True, True, False])
    expected = []
    for number in range(3):
        rows = x[keep & (window == number)].numpy()
        p = np.linalg.svd(rows, compute_uv=False) ** 2
        p = p / p.sum()
        expected.append(-(p * np.log(p)).sum() / np.log(len(p)))
    assert matrix_entropy(x[keep], window[keep]) == pytest.approx(float(np.mean(expected)))


def test_every_row_has_the_number_of_its_window() -> None:
    batches = [{"input_ids": torch.zeros(2, 3, dtype=torch.long)}, {"input_ids": torch.zeros(1, 2, dtype=torch.long)}]
    assert windows(batches).tolist() == [0, 0, 0, 1, 1, 1, 2, 2]
