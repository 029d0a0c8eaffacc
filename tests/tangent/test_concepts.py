"""Concepts in words."""

from __future__ import annotations

import pytest
import torch

from anisoscope.tangent.concepts import read_concepts


def test_concepts_are_described_by_the_tokens_that_load_on_them() -> None:
    concepts = torch.eye(3, 8)
    token = torch.tensor([0, 1, 2]).repeat(20)
    x = concepts[token] * (1 + torch.arange(60) / 100)[:, None]
    read = read_concepts(x, concepts, token, lambda row, around: [int(token[row])], lambda ids: f"<{ids[0]}>")
    assert {(concept.number, concept.tokens[0]) for concept in read} == {(0, "<0>"), (1, "<1>"), (2, "<2>")}
    assert all(set(concept.contexts) == {f"<{concept.number}>"} for concept in read)
    assert sum(concept.share for concept in read) == pytest.approx(1)
