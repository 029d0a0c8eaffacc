"""Concepts in words."""

from __future__ import annotations

import pytest
import torch

from anisoscope.tangent.concepts import concept_shares, read_concepts, typical_tokens


def test_concepts_are_described_by_the_tokens_that_load_on_them() -> None:
    concepts = torch.eye(3, 8)
    token = torch.tensor([0, 1, 2]).repeat(20)
    x = concepts[token] * (1 + torch.arange(60) / 100)[:, None]
    read = read_concepts(x, concepts, token, lambda row, around: [int(token[row])], lambda ids: f"<{ids[0]}>")
    assert {(concept.number, concept.tokens[0]) for concept in read} == {(0, "<0>"), (1, "<1>"), (2, "<2>")}
    assert all(set(concept.contexts) == {f"<{concept.number}>"} for concept in read)
    assert sum(concept.share for concept in read) == pytest.approx(1)


def test_a_token_that_occurs_once_is_not_typical_unless_all_do() -> None:
    loadings = torch.tensor([[1.0], [1.0], [1.0], [9.0]])
    assert typical_tokens(loadings, torch.tensor([4, 4, 4, 5])) == [[4]]
    assert typical_tokens(loadings, torch.tensor([1, 2, 3, 5]))[0][0] == 5


def test_shares_are_those_of_the_squared_length() -> None:
    shares = concept_shares(torch.tensor([[1.0, 1.0], [1.0, 0.0]]), torch.tensor([[1.0, 0.0], [0.0, 2.0]]))
    assert shares.tolist() == pytest.approx([2 / 6, 4 / 6])
