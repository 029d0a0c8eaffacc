"""Reading embeddings once, and exact search over files that are read in parts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from anisoscope.embedding_quality import corpus as module
from anisoscope.embedding_quality.corpus import as_vectors, read_corpus, rows_at, search
from anisoscope.embedding_quality.row_maps import unit
from anisoscope.errors import InputError
from tests.oracles import embeddings as oracle


def rows(n: int = 300, d: int = 7, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((n, d)).astype(np.float32) + np.float32(0.4)


def test_search_in_parts_finds_what_brute_force_finds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.save(tmp_path / "rows.npy", rows())
    monkeypatch.setattr(module, "_SEARCHED", 64)
    queries = rows(20, seed=1)
    found = search(unit(torch.from_numpy(queries)), as_vectors(tmp_path / "rows.npy"), unit, 12)
    assert np.array_equal(found.index.numpy(), oracle.ranked(queries, rows())[:, :12])


def test_search_by_dot_product_in_parts_is_that_of_all_products(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SEARCHED", 64)
    monkeypatch.setattr(module, "_QUERIES", 7)
    x, queries = rows() * np.linspace(0.1, 3, 300, dtype=np.float32)[:, None], rows(20, seed=1)
    found = search(torch.from_numpy(queries), as_vectors(x), lambda each: each, 12, dot=True)
    products = queries.astype(float) @ x.astype(float).T
    assert np.array_equal(found.index.numpy(), np.argsort(-products, axis=1)[:, :12])
    assert found.distance.numpy() == pytest.approx(np.sort(-products, axis=1)[:, :12])
    assert not np.array_equal(found.index.numpy(), oracle.ranked(queries, x)[:, :12])  # the cosine ranks differently


def test_fewer_rows_than_results_leave_gaps() -> None:
    found = search(torch.zeros(2, 7), as_vectors(rows(5)), unit, 8)
    assert found.index[:, 5:].eq(-1).all()
    assert found.distance[:, 5:].isinf().all()
    assert search(torch.ones(2, 7), as_vectors(rows(5)), unit, 8, dot=True).index[:, 5:].eq(-1).all()


def test_rows_are_fetched_in_the_order_of_their_numbers() -> None:
    x = rows()
    assert rows_at(as_vectors(x), torch.tensor([250, 3, 3])).numpy() == pytest.approx(x[[250, 3, 3]])


def test_arrays_tables_and_files_give_the_same_rows(tmp_path: Path) -> None:
    np.save(tmp_path / "rows.npy", rows())
    for source in (rows(), torch.from_numpy(rows()), pd.DataFrame(rows()), tmp_path / "rows.npy"):
        found = read_corpus(as_vectors(source), None, 100, 0)
        assert (found.vectors.n, found.vectors.d, len(found.sampled)) == (300, 7, 100)
        assert found.norms.numpy() == pytest.approx(np.linalg.norm(rows(), axis=1), rel=1e-5)
        assert found.sample.x.numpy() == pytest.approx(rows()[found.sampled.numpy()], rel=1e-6)
        assert found.ranges.high.numpy() == pytest.approx(oracle.unit(rows()).max(0), rel=1e-5)


def test_rows_with_nan_are_refused() -> None:
    x = rows()
    x[3, 1] = np.nan
    with pytest.raises(InputError, match="1 of 300 rows"):
        read_corpus(as_vectors(x), None, 100, 0)
