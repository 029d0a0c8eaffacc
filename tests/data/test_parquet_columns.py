"""Columns of parquet files are read as rows; wrong columns and damaged footers are named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from anisoscope.data.vectors import open_vectors
from anisoscope.errors import InputError
from tests.vector_files import (
    IDS,
    X,
    rows,
)


def test_the_only_column_of_lists_is_chosen_or_one_is_named(tmp_path: Path) -> None:
    one = pa.table({"text": ["a"] * 50, "x": list(X), "n": IDS})
    pq.write_table(one, tmp_path / "one.parquet")
    assert open_vectors(tmp_path / "one.parquet").name == "one.parquet:x"
    pq.write_table(one.append_column("y", one["x"]), tmp_path / "two.parquet")
    with pytest.raises(InputError, match=r"x \(50, 6\), y \(50, 6\)\. Choose one with --column NAME"):
        open_vectors(tmp_path / "two.parquet")
    assert torch.equal(rows(open_vectors(tmp_path / "two.parquet", column="y")), torch.from_numpy(X))
    with pytest.raises(InputError, match="--column NAME"):
        open_vectors(tmp_path / "two.parquet", tensor="y")
    with pytest.raises(InputError, match=r"(?i)no column .*'z'"):
        open_vectors(tmp_path / "two.parquet", column="z")


def test_tensors_of_arrow_and_large_lists_are_vectors(tmp_path: Path) -> None:
    pq.write_table(
        pa.table({"x": pa.FixedShapeTensorArray.from_numpy_ndarray(X)}), tmp_path / "tensor.parquet", row_group_size=9
    )
    pq.write_table(pa.table({"x": pa.array(list(X), pa.large_list(pa.float32()))}), tmp_path / "large.parquet")
    for name in ("tensor.parquet", "large.parquet"):
        assert torch.equal(rows(open_vectors(tmp_path / name)), torch.from_numpy(X))


@pytest.mark.parametrize(
    ("odd", "seen"),
    [([1.0], "row 5 has 1 numbers, expected 2"), (None, "row 5 has no vector"), ([1.0, None], "missing values")],
)
def test_a_row_of_another_length_is_named(tmp_path: Path, odd: Any, seen: str) -> None:
    column = pa.array([[1.0, 2.0]] * 5 + [odd] + [[1.0, 2.0]] * 3, pa.list_(pa.float32()))
    pq.write_table(pa.table({"x": column}), tmp_path / "v.parquet", row_group_size=2)
    source = open_vectors(tmp_path / "v.parquet")
    with pytest.raises(InputError, match=rf"v\.parquet: column x.*{seen}"):
        list(source.batches(2))


@pytest.mark.parametrize("claim", [49, 51])
def test_a_footer_with_a_wrong_number_of_rows_is_refused(tmp_path: Path, claim: int) -> None:
    path = tmp_path / "v.parquet"
    pq.write_table(pa.table({"x": list(X), "document": IDS}), path, row_group_size=13)
    honest, lie = (b"\x16" + bytes([2 * n]) + b"\x19" for n in (50, claim))  # thrift: a 64-bit number, then a list
    data = path.read_bytes()
    assert data.count(honest) == 1
    path.write_bytes(data.replace(honest, lie))
    with pytest.raises(InputError, match="rows in the footer"):
        open_vectors(path)
    pq.write_table(pa.table({"x": list(X)}), path, row_group_size=13)
    path.write_bytes(path.read_bytes().replace(honest, lie))
    with pytest.raises(InputError, match="rows in the footer"):
        rows(open_vectors(path))
