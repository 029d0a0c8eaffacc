"""Scores of retrieval against plain numpy and scikit-learn, and how pairs are read."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch

from anisoscope.embedding_quality.retrieval import read_relevant, scores
from anisoscope.errors import InputError
from tests.oracles import embeddings as oracle

ROWS, QUERIES = 80, 12


def world(seed: int = 0) -> tuple[np.ndarray, np.ndarray, list[tuple[int, int, float]]]:
    rng = np.random.default_rng(seed)
    rows, queries = rng.standard_normal((ROWS, 6)), rng.standard_normal((QUERIES, 6))
    drawn = zip(rng.integers(QUERIES, size=60), rng.integers(ROWS, size=60), rng.integers(1, 4, size=60), strict=True)
    pairs = {(int(q), int(r)): float(g) for q, r, g in drawn}
    return rows, queries, [(q, r, g) for (q, r), g in pairs.items()]


def test_scores_equal_those_of_plain_numpy() -> None:
    rows, queries, pairs = world()
    relevant = read_relevant(pairs, QUERIES, ROWS)
    known: dict[int, dict[int, float]] = {}
    for q, r, g in sorted(pairs):
        known.setdefault(q, {})[r] = g
    asked = relevant.queries.tolist()
    assert asked == list(known)
    order = oracle.ranked(queries[asked], rows)
    got = scores(torch.from_numpy(order[:, :50].copy()), relevant)
    assert set(got) == {("recall", 1), ("recall", 10), ("mrr", 10), ("ndcg", 10)}
    assert got["recall", 1].tolist() == pytest.approx(oracle.recall(order, known, 1))
    assert got["recall", 10].tolist() == pytest.approx(oracle.recall(order, known, 10))
    assert got["mrr", 10].tolist() == pytest.approx(oracle.mrr(order, known))
    assert got["ndcg", 10].tolist() == pytest.approx(oracle.ndcg(order, known))


def test_ndcg_is_that_of_scikit_learn() -> None:
    ndcg_score = pytest.importorskip("sklearn.metrics").ndcg_score
    rows, queries, pairs = world(1)
    relevant = read_relevant(pairs, QUERIES, ROWS)
    asked = relevant.queries.tolist()
    cosine = oracle.unit(queries[asked]) @ oracle.unit(rows).T
    grades = np.zeros((len(asked), ROWS))
    for q, r, g in pairs:
        grades[asked.index(q), r] = g
    order = torch.from_numpy(np.argsort(-cosine, axis=1)[:, :20].copy())
    assert float(scores(order, relevant)["ndcg", 10].mean()) == pytest.approx(ndcg_score(grades, cosine, k=10))


def test_perfect_and_useless_results() -> None:
    relevant = read_relevant([[0, 3], [1, 4]], 2, 6)
    good = scores(torch.tensor([[3, 1], [4, 1]]), relevant)
    bad = scores(torch.tensor([[1, 2], [-1, -1]]), relevant)
    assert {float(v.mean()) for v in good.values()} == {1.0}
    assert {float(v.mean()) for v in bad.values()} == {0.0}


@pytest.mark.parametrize(
    "text", ["0,5\n1,2\n", "query,row\n0,5\n1,2\n", "row,query\n5,0\n2,1\n", "0\t5\t1\n1\t2\t2\n1\t0\t0\n"]
)
def test_pairs_are_read_from_files(text: str, tmp_path: Path) -> None:
    path = tmp_path / "pairs.csv"
    path.write_text(text)
    relevant = read_relevant(path, 2, 6)
    assert (relevant.query.tolist(), relevant.row.tolist()) == ([0, 1], [5, 2])
    np.save(tmp_path / "pairs.npy", np.array([[0, 5], [1, 2]]))
    assert read_relevant(tmp_path / "pairs.npy", 2, 6).row.tolist() == [5, 2]


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        ([[0, 6]], "rows are numbered from 0 to 5"),
        ([[2, 0]], "queries are numbered from 0 to 1"),
        ([[0.5, 1]], "queries are numbered"),
        ([0, 1], "one line per pair"),
        ([["a", "b"]], "numbers of queries and rows"),
        ([[0, 1, 0]], "positive grade"),
        ("missing.csv", "cannot be read"),
        ("missing.npy", "cannot be read"),
    ],
)
def test_wrong_pairs_are_refused(pairs: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_relevant(pairs, 2, 6)


def test_pairs_in_a_pipe_are_refused_without_waiting_for_its_writer(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pairs.csv")
    with pytest.raises(InputError, match="it is not a regular file"):
        read_relevant(tmp_path / "pairs.csv", 2, 6)
