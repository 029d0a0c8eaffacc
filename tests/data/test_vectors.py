"""Vectors are opened from every format, the right array and documents are chosen, and rows are written whole."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from anisoscope.data.vectors import open_vectors, write_npy
from anisoscope.errors import InputError, StoreError
from tests.vector_files import (
    IDS,
    WRITERS,
    X,
    rows,
)


@pytest.mark.parametrize("kind", WRITERS)
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_every_format_gives_the_same_rows_and_dtype_on_every_pass(tmp_path: Path, kind: str, dtype: str) -> None:
    suffix, save = WRITERS[kind]
    path = tmp_path / f"vectors{suffix}"
    save(path, X.astype(dtype))
    source = open_vectors(path)
    assert (source.n, source.d, source.dtype, source.name) == (50, 6, dtype, path.name)
    assert source.documents is None
    assert source.info["notes"] == []
    expected = torch.from_numpy(X.astype(dtype))
    for batch_size in (1, 7, 50, 1000):
        assert torch.equal(rows(source, batch_size), expected)
        assert max(len(batch) for batch in source.batches(batch_size)) <= batch_size


@pytest.mark.parametrize("kind", WRITERS)
def test_integers_become_float32_with_a_note(tmp_path: Path, kind: str) -> None:
    suffix, save = WRITERS[kind]
    path = tmp_path / f"vectors{suffix}"
    x = np.arange(12, dtype=np.int16).reshape(4, 3)
    save(path, x)
    source = open_vectors(path)
    assert torch.equal(rows(source), torch.from_numpy(x).float())
    assert (source.dtype, source.info["dtype"]) == ("float32", "int16")
    assert source.info["notes"] == ["int16 converted to float32"]


@pytest.mark.parametrize("kind", ["npy", "npz", "packed npz", "safetensors", "pt"])
def test_arrays_of_more_dimensions_are_rows_with_a_note(tmp_path: Path, kind: str) -> None:
    suffix, save = WRITERS[kind]
    x = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    save(tmp_path / f"v{suffix}", x)
    source = open_vectors(tmp_path / f"v{suffix}")
    assert torch.equal(rows(source, 4), torch.from_numpy(x.reshape(6, 4)))
    assert source.info["notes"] == ["array (2, 3, 4) read as 6 rows of 4"]


@pytest.mark.parametrize("kind", ["npy", "npz", "packed npz", "safetensors", "pt"])
def test_a_one_dimensional_array_is_refused(tmp_path: Path, kind: str) -> None:
    suffix, save = WRITERS[kind]
    for x in (np.ones(5, dtype=np.float32), np.array(3.0)):
        save(tmp_path / f"v{suffix}", x)
        with pytest.raises(InputError, match=r"has shape \(5?,?\)\. Vectors need rows and columns"):
            open_vectors(tmp_path / f"v{suffix}")


def test_rows_that_are_too_wide_for_a_matrix_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "v.npy", np.zeros((2, (1 << 15) + 1), np.float32))
    with pytest.raises(InputError, match=r"32,769 columns; at most 32,768 can be measured\. Is it transposed"):
        open_vectors(tmp_path / "v.npy")


@pytest.mark.parametrize("kind", WRITERS)
@pytest.mark.parametrize("shape", [(0, 3), (3, 0)])
def test_no_rows_or_no_columns_is_an_input_error(tmp_path: Path, kind: str, shape: tuple[int, int]) -> None:
    suffix, save = WRITERS[kind]
    if "parquet" in kind:
        column = pa.array([[]] * shape[0], pa.list_(pa.float32(), -1 if kind == "parquet" else shape[1]))
        pq.write_table(pa.table({"x": column}), tmp_path / f"v{suffix}")
    else:
        save(tmp_path / f"v{suffix}", np.zeros(shape, np.float32))
    with pytest.raises(InputError, match="is empty"):
        open_vectors(tmp_path / f"v{suffix}")


@pytest.mark.parametrize("kind", ["npy", "npz", "packed npz", "safetensors", "pt"])
def test_a_row_that_is_too_wide_is_refused(tmp_path: Path, kind: str) -> None:
    suffix, save = WRITERS[kind]
    save(tmp_path / f"v{suffix}", np.zeros((1, (1 << 20) + 1), np.float16))
    with pytest.raises(InputError, match="transposed"):
        open_vectors(tmp_path / f"v{suffix}")


def test_the_info_identifies_a_file_without_its_absolute_path(tmp_path: Path) -> None:
    for name, x in (("a", X), ("b", X + 1), ("c", X)):
        np.save(tmp_path / f"{name}.npy", x)
    a, b, c = (open_vectors(tmp_path / f"{name}.npy").info for name in "abc")
    assert a["sample_sha256"] == c["sample_sha256"] != b["sample_sha256"]
    assert (a["file"], a["format"], a["n"], a["d"]) == ("a.npy", "npy", 50, 6)
    assert a["bytes"] == os.path.getsize(tmp_path / "a.npy")
    assert str(tmp_path) not in json.dumps(a)


def test_batches_of_no_rows_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "v.npy", X)
    with pytest.raises(InputError, match="at least one row"):
        list(open_vectors(tmp_path / "v.npy").batches(0))


def test_several_arrays_are_listed_with_their_shapes_and_chosen_by_name(tmp_path: Path) -> None:
    arrays = {"wte": X, "wpe": X[:10], "bias": X[0]}
    np.savez(tmp_path / "v.npz", **arrays)
    save_file({name: torch.from_numpy(x.copy()) for name, x in arrays.items()}, tmp_path / "v.safetensors")
    torch.save({name: torch.from_numpy(x) for name, x in arrays.items()}, tmp_path / "v.pth")
    for name in ("v.npz", "v.safetensors", "v.pth"):
        path = tmp_path / name
        with pytest.raises(InputError, match=r"(wte \(50, 6\).*wpe \(10, 6\)|wpe.*wte).*--tensor NAME") as caught:
            open_vectors(path)
        assert "bias" not in str(caught.value)
        source = open_vectors(path, tensor="wpe")
        assert source.name == f"{name}:wpe"
        assert torch.equal(rows(source), torch.from_numpy(X[:10]))
        with pytest.raises(InputError, match=r"(?i)did you mean .?wte"):
            open_vectors(path, tensor="wtf")
        with pytest.raises(InputError, match=r"bias has shape \(6,\)"):
            open_vectors(path, tensor="bias")
        with pytest.raises(InputError, match="--tensor NAME"):
            open_vectors(path, column="wte")


def test_the_only_two_dimensional_array_is_chosen(tmp_path: Path) -> None:
    np.savez(tmp_path / "v.npz", x=X, bias=X[0], step=3)
    assert open_vectors(tmp_path / "v.npz").n == 50


def test_a_file_without_a_two_dimensional_array_lists_what_it_holds(tmp_path: Path) -> None:
    np.savez(tmp_path / "v.npz", a=X[0], b=X[1])
    with pytest.raises(InputError, match=r"no two-dimensional array; it holds a \(6,\), b \(6,\)"):
        open_vectors(tmp_path / "v.npz")
    torch.save({"step": 3}, tmp_path / "v.pt")
    with pytest.raises(InputError, match="it holds no array"):
        open_vectors(tmp_path / "v.pt")


def test_a_npy_file_has_no_array_names(tmp_path: Path) -> None:
    np.save(tmp_path / "v.npy", X)
    with pytest.raises(InputError, match="Leave out --tensor"):
        open_vectors(tmp_path / "v.npy", tensor="x")


def test_an_array_named_documents_is_used_without_asking(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=X, documents=IDS.astype(np.int32))
    np.savez_compressed(tmp_path / "b.npz", x=X, document=IDS)
    save_file({"x": torch.from_numpy(X), "documents": torch.from_numpy(IDS)}, tmp_path / "c.safetensors")
    torch.save({"x": torch.from_numpy(X), "documents": torch.from_numpy(IDS)}, tmp_path / "d.pt")
    pq.write_table(pa.table({"x": list(X), "document": IDS}), tmp_path / "e.parquet")
    for name in ("a.npz", "b.npz", "c.safetensors", "d.pt", "e.parquet"):
        found = open_vectors(tmp_path / name).documents
        assert found is not None
        assert found.dtype == np.int64
        np.testing.assert_array_equal(found, IDS)


def test_documents_are_read_from_a_named_array_or_another_file(tmp_path: Path) -> None:
    np.save(tmp_path / "v.npy", X)
    np.save(tmp_path / "ids.npy", IDS)
    texts = [f"doc {i % 3}" for i in range(50)]
    pq.write_table(pa.table({"x": list(X), "title": texts}), tmp_path / "v.parquet", row_group_size=7)
    a = open_vectors(tmp_path / "v.npy", documents=str(tmp_path / "ids.npy")).documents
    b = open_vectors(tmp_path / "v.parquet", documents="title").documents
    assert a is not None
    assert b is not None
    np.testing.assert_array_equal(a, IDS)
    np.testing.assert_array_equal(b, np.arange(50) % 3)


def test_documents_that_do_not_fit_are_refused_when_named_and_ignored_when_not(tmp_path: Path) -> None:
    np.savez(tmp_path / "v.npz", x=X, documents=IDS[:7], weights=X[:, 0])
    assert open_vectors(tmp_path / "v.npz").documents is None
    for name, seen in (("documents", r"int64 \(7,\)"), ("weights", "float32")):
        with pytest.raises(InputError, match=rf"{seen}.*one integer per row, shape \(50,\)"):
            open_vectors(tmp_path / "v.npz", documents=name)
    with pytest.raises(InputError, match=r"(?i)did you mean .?documents"):
        open_vectors(tmp_path / "v.npz", documents="document")


def test_embeddings_that_are_named_documents_are_vectors(tmp_path: Path) -> None:
    np.savez(tmp_path / "v.npz", documents=X)
    source = open_vectors(tmp_path / "v.npz")
    assert (source.n, source.documents) == (50, None)


def test_a_path_that_is_not_a_file_of_vectors_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.npy").write_bytes(b"")
    (tmp_path / "text.txt").write_text("1 2 3")
    os.mkfifo(tmp_path / "pipe.npy")
    for name, reason in {
        "missing.npy": "No such file",
        "empty.npy": "is empty",
        "text.txt": r"formats are \.npy, \.npz, \.safetensors, \.parquet, \.pt, \.pth, \.bin",
        "pipe.npy": "not a regular file",
        ".": "is a folder",
        "a\0b": "No such file",
    }.items():
        with pytest.raises(InputError, match=reason):
            open_vectors(tmp_path / name)


def test_written_rows_are_read_back_and_the_file_appears_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "out.npy"
    with write_npy(path, 50, 6) as write:
        for batch in torch.from_numpy(X).double().split(7):
            write(batch)
        assert not path.exists()
    np.testing.assert_array_equal(np.load(path), X)
    assert [p.name for p in tmp_path.iterdir()] == ["out.npy"]


def test_a_file_can_be_replaced_while_it_is_read(tmp_path: Path) -> None:
    np.save(tmp_path / "v.npy", X)
    with write_npy(tmp_path / "v.npy", 50, 6) as write:
        for batch in open_vectors(tmp_path / "v.npy").batches(7):
            write(2 * batch)
    np.testing.assert_array_equal(np.load(tmp_path / "v.npy"), 2 * X)


def test_a_wrong_number_of_rows_leaves_no_file(tmp_path: Path) -> None:
    path = tmp_path / "out.npy"

    def write_batches(*batches: Tensor) -> None:
        with write_npy(path, 3, 2) as write:
            for batch in batches:
                write(batch)

    for batches, message in (
        ([torch.ones(2, 2)], "expected 3 rows, got 2"),
        ([torch.ones(2, 2), torch.ones(2, 2)], r"got \(2, 2\) after 2 rows"),
        ([torch.ones(3, 3)], "expected 3 rows of 2"),
        ([torch.ones(2)], "expected 3 rows of 2"),
    ):
        with pytest.raises(InputError, match=message):
            write_batches(*batches)
        assert list(tmp_path.iterdir()) == []


def test_a_path_that_cannot_be_written_is_reported_in_one_line(tmp_path: Path) -> None:
    def attempt() -> None:
        with write_npy(tmp_path / "missing" / "out.npy", 1, 1) as write:
            write(torch.ones(1, 1))

    with pytest.raises(StoreError, match="cannot write"):
        attempt()
