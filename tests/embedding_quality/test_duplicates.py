"""Exact and near duplicates of all rows, whichever way they are searched."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from anisoscope.embedding_quality import duplicates as module
from anisoscope.embedding_quality.corpus import as_vectors, read_corpus
from anisoscope.embedding_quality.duplicates import Duplicates, exact_pairs, find_duplicates
from anisoscope.embedding_quality.mapped_sample import mapped, sampled_rows
from anisoscope.embedding_quality.row_maps import RowMap, unit
from tests.oracles import embeddings as oracle


def planted() -> np.ndarray:
    x = np.random.default_rng(0).standard_normal((200, 16)).astype(np.float32)
    x[150] = x[20]
    x[180] = x[20]
    x[90] = x[30] + 1e-3
    x[70] = 2 * x[60] + 1e-3  # the same direction
    return x


def found(sample: int, *, all_pairs: bool | None = None) -> Duplicates:
    corpus = read_corpus(as_vectors(planted()), None, sample, 0)
    rows = mapped(sampled_rows(corpus), RowMap("none", "remedy", unit))
    return find_duplicates(corpus, rows.neighbours, rows.number[rows.order], all_pairs)


@pytest.mark.parametrize(("sample", "all_pairs"), [(500, None), (50, None), (50, True)])
def test_all_pairs_are_found_with_any_sample(
    sample: int, all_pairs: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_QUERIES", 64)
    result = found(sample, all_pairs=all_pairs)
    assert (result.copies, result.exact) == (2, [(20, 150), (20, 180)])
    assert {(a, b) for a, b, _ in result.pairs} == {(30, 90), (60, 70)}
    u = oracle.unit(planted())
    assert [cosine for *_, cosine in result.pairs] == pytest.approx(
        [float(u[a] @ u[b]) for a, b, _ in result.pairs], abs=1e-6
    )
    assert result.near.value == pytest.approx(4 / (198 if sample == 500 else 200))


def test_sampled_rows_are_compared_with_all_rows() -> None:
    result = found(50, all_pairs=False)
    assert result.searched == 50
    assert {(a, b) for a, b, _ in result.pairs} <= {(30, 90), (60, 70)}


def test_a_common_direction_makes_no_duplicates() -> None:
    x = planted() + 100.0  # all cosines are above 0.99
    corpus = read_corpus(as_vectors(x), None, 500, 0)
    rows = mapped(sampled_rows(corpus), RowMap("none", "remedy", unit))
    result = find_duplicates(corpus, rows.neighbours, rows.number[rows.order])
    assert result.cosine > 0.9999
    assert (30, 90) in {(a, b) for a, b, _ in result.pairs}
    assert len(result.pairs) <= 2


def test_pairs_of_copies_name_the_first_row() -> None:
    assert exact_pairs(torch.tensor([5, 7, 5, 7, 5])) == (3, [(0, 2), (1, 3), (0, 4)])
