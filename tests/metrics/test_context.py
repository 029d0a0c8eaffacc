"""Metrics of words and sentences on rows with known answers."""

from __future__ import annotations

import pytest
import torch

from anisoscope import metrics


def test_words_that_ignore_their_context_are_self_similar() -> None:
    from anisoscope.stats.collect import collect
    from anisoscope.stats.rows import Rows, token_table

    g = torch.Generator().manual_seed(0)
    token = torch.arange(600) % 20
    static = torch.randn(20, 64, generator=g)[token]
    number_ = torch.arange(600)
    table = token_table(number_ // 30, number_ % 30, token=token)
    cloud = collect(lambda: [Rows(static, table)], {"Sample", "Moments"})
    (same,) = metrics.self_similarity.values(cloud)
    (explained,) = metrics.max_explainable_variance.values(cloud)
    assert same.value == pytest.approx(1.0, abs=0.06)
    assert explained.value is not None
    assert explained.value > 0.8
    loose = collect(lambda: [Rows(torch.randn(600, 64, generator=g), table)], {"Sample", "Moments"})
    (none,) = metrics.self_similarity.values(loose)
    assert none.value == pytest.approx(0.0, abs=0.02)


def test_rows_that_share_their_document_are_similar_to_it() -> None:
    g = torch.Generator().manual_seed(0)
    document = torch.arange(600) // 30
    topic = torch.randn(20, 64, generator=g)[document] + 0.3 * torch.randn(600, 64, generator=g)
    assert metrics.intra_sentence_similarity(topic, documents=document) > 0.8
    assert abs(metrics.intra_sentence_similarity(torch.randn(600, 64, generator=g), documents=document)) < 0.05
