"""Transforming files of vectors batch by batch, and measuring the same blocks before and after."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from anisoscope.data.vectors import Vectors, open_vectors
from anisoscope.errors import InputError
from anisoscope.measurement.measure_rows import READ_ROWS, measure_rows
from anisoscope.measurement.transformed_rows import before_and_after, fit_to_vectors, transformed, write_vectors
from anisoscope.remedies import fit_remedy


@pytest.fixture
def vectors(tmp_path: Path) -> Vectors:
    rows = np.random.default_rng(0).standard_normal((640, 6)) * np.linspace(3, 1, 6) + 1.0
    np.savez(tmp_path / "v.npz", rows=rows, documents=np.arange(640) // 10)
    return open_vectors(tmp_path / "v.npz")


def test_a_file_is_transformed_like_an_array(vectors: Vectors, tmp_path: Path) -> None:
    rows = torch.cat(list(vectors.batches())).numpy()
    remedy = fit_to_vectors(vectors, centre=True, remove_top=1, whiten=True)
    expected = fit_remedy(rows, centre=True, remove_top=1, whiten=True).apply(rows)
    seen: list[int] = []
    written = write_vectors(transformed(vectors, remedy), tmp_path / "out.npy", seen.append)
    assert np.load(tmp_path / "out.npy") == pytest.approx(expected, abs=1e-5)  # float32 of numbers below 5
    assert sum(seen) == 640
    assert vectors.documents is not None
    assert written.documents is vectors.documents


def test_half_precision_is_not_rounded_again(tmp_path: Path) -> None:
    rows = (np.random.default_rng(1).standard_normal((50, 4)) + 100).astype(np.float16)
    np.save(tmp_path / "half.npy", rows)
    half = open_vectors(tmp_path / "half.npy")
    remedy = fit_to_vectors(half, centre=True)
    [after] = transformed(half, remedy).batches()
    exact = rows.astype(float) - rows.astype(float).mean(0)
    assert np.abs(after.numpy() - exact).max() < 1e-6  # float32; float16 would be off by up to 1e-3


def test_at_most_one_batch_is_read_at_a_time(vectors: Vectors, tmp_path: Path) -> None:
    largest = 0

    def stream(rows: int) -> Any:
        nonlocal largest
        largest = max(largest, rows)
        for _ in range(4):
            yield torch.randn(rows, 6, generator=torch.Generator().manual_seed(rows))

    many = replace(vectors, n=4 * READ_ROWS, documents=None, stream=stream)
    after = write_vectors(transformed(many, fit_to_vectors(many, centre=True)), tmp_path / "out.npy")
    before_and_after(many, after, ["isoscore"])
    assert largest == READ_ROWS


def test_numbers_and_nulls_are_those_of_each_side_and_blocks_are_paired(vectors: Vectors, tmp_path: Path) -> None:
    names = ["mean_cosine", "isoscore", "two_nn"]
    after = transformed(vectors, fit_to_vectors(vectors, centre=True, whiten=True))
    pairs = before_and_after(vectors, after, names)
    first, second = ([replace(r, run="") for r in measure_rows(each, names)] for each in (vectors, after))
    assert [a.record for a, _ in pairs] == first
    assert [b.record for _, b in pairs if b is not None] == second
    assert [record.null for record in first] != [record.null for record in second]
    for a, b in pairs:
        assert b is not None
        assert len(a.replicates) == len(b.replicates) == 16
        assert a.replicates.sizes == b.replicates.sizes  # type: ignore[attr-defined]


def test_vectors_of_another_width_are_refused(vectors: Vectors) -> None:
    with pytest.raises(InputError, match=r"rows of 5 numbers, but those of v.npz:rows have 6"):
        transformed(vectors, fit_remedy(np.eye(5), centre=True))
