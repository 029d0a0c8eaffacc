"""Vectors on disk: every format gives the same rows, damage gives an InputError, memory stays flat."""

from __future__ import annotations

import io
import json
import os
import pickle
import struct
import subprocess
import sys
import textwrap
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import Tensor

from anisoscope.data.vectors import Vectors, open_vectors, write_npy
from anisoscope.errors import InputError, StoreError

X = np.random.default_rng(0).standard_normal((50, 6)).astype(np.float32)
IDS = np.repeat(np.arange(10), 5)


def rows(source: Vectors, at_a_time: int = 7) -> Tensor:
    return torch.cat(list(source.batches(at_a_time)))


def save_npy(path: Path, x: np.ndarray[Any, Any]) -> None:
    np.save(path, x)


def save_npz(path: Path, x: np.ndarray[Any, Any]) -> None:
    np.savez(path, x=x)


def save_packed_npz(path: Path, x: np.ndarray[Any, Any]) -> None:
    np.savez_compressed(path, x=x)


def save_safetensors(path: Path, x: np.ndarray[Any, Any]) -> None:
    save_file({"x": torch.from_numpy(x)}, path)


def save_torch(path: Path, x: np.ndarray[Any, Any]) -> None:
    torch.save({"x": torch.from_numpy(x)}, path)


def save_parquet(path: Path, x: np.ndarray[Any, Any]) -> None:
    pq.write_table(pa.table({"x": list(x)}), path, row_group_size=13)


def save_fixed_parquet(path: Path, x: np.ndarray[Any, Any]) -> None:
    pq.write_table(pa.table({"x": pa.FixedSizeListArray.from_arrays(pa.array(x.ravel()), x.shape[1])}), path)


WRITERS: dict[str, tuple[str, Callable[[Path, np.ndarray[Any, Any]], None]]] = {
    "npy": (".npy", save_npy),
    "npz": (".npz", save_npz),
    "packed npz": (".npz", save_packed_npz),
    "safetensors": (".safetensors", save_safetensors),
    "pt": (".pt", save_torch),
    "bin": (".bin", save_torch),
    "parquet": (".parquet", save_parquet),
    "fixed parquet": (".PARQUET", save_fixed_parquet),
}


# Every format.


@pytest.mark.parametrize("kind", WRITERS)
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_every_format_gives_the_same_rows_in_their_own_dtype_twice(tmp_path: Path, kind: str, dtype: str) -> None:
    suffix, save = WRITERS[kind]
    path = tmp_path / f"vectors{suffix}"
    save(path, X.astype(dtype))
    source = open_vectors(path)
    assert (source.n, source.d, source.dtype, source.name) == (50, 6, dtype, path.name)
    assert source.documents is None
    assert source.info["notes"] == []
    expected = torch.from_numpy(X.astype(dtype))
    for at_a_time in (1, 7, 50, 1000):
        assert torch.equal(rows(source, at_a_time), expected)
        assert max(len(batch) for batch in source.batches(at_a_time)) <= at_a_time


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
    assert source.info["notes"] == ["an array (2, 3, 4) taken as 6 rows of 4"]


@pytest.mark.parametrize("kind", ["npy", "npz", "packed npz", "safetensors", "pt"])
def test_one_row_of_numbers_is_not_a_cloud(tmp_path: Path, kind: str) -> None:
    suffix, save = WRITERS[kind]
    for x in (np.ones(5, dtype=np.float32), np.array(3.0)):
        save(tmp_path / f"v{suffix}", x)
        with pytest.raises(InputError, match=r"has shape \(5?,?\); vectors are rows and columns"):
            open_vectors(tmp_path / f"v{suffix}")


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
def test_an_absurdly_wide_row_is_refused(tmp_path: Path, kind: str) -> None:
    suffix, save = WRITERS[kind]
    save(tmp_path / f"v{suffix}", np.zeros((1, (1 << 20) + 1), np.float16))
    with pytest.raises(InputError, match="transposed"):
        open_vectors(tmp_path / f"v{suffix}")


def test_the_info_tells_two_files_apart_and_holds_no_absolute_path(tmp_path: Path) -> None:
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


# numpy.


@pytest.mark.parametrize("dtype", [">f4", ">f8", "<f2", ">i4", "u8", "?", np.longdouble])
def test_any_number_of_numpy_can_be_read(tmp_path: Path, dtype: Any) -> None:
    x = np.abs(X * 3).astype(dtype)
    np.save(tmp_path / "v.npy", x)
    source = open_vectors(tmp_path / "v.npy")
    expected = x.astype(source.dtype)
    np.testing.assert_array_equal(rows(source).numpy(), expected)


@pytest.mark.parametrize("shape", [(50, 6), (1, 6), (50, 1)])
def test_fortran_order_gives_the_same_rows(tmp_path: Path, shape: tuple[int, int]) -> None:
    x = np.asfortranarray(X[: shape[0], : shape[1]])
    np.save(tmp_path / "v.npy", x)
    np.savez(tmp_path / "v.npz", x)
    for name in ("v.npy", "v.npz"):
        assert torch.equal(rows(open_vectors(tmp_path / name)), torch.from_numpy(np.ascontiguousarray(x)))


def test_fortran_order_that_cannot_be_streamed_says_what_to_do(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "v.npz", np.asfortranarray(X))
    np.save(tmp_path / "v.npy", np.asfortranarray(X.reshape(5, 10, 6)))
    for name, remedy in (("v.npz", "ascontiguousarray"), ("v.npy", "C order")):
        with pytest.raises(InputError, match=rf"Fortran order.*{remedy}"):
            open_vectors(tmp_path / name)


@pytest.mark.parametrize(
    ("x", "reason"),
    [
        (np.ones((2, 2), complex), "holds complex128"),
        (np.array([["a"]]), "holds <U1"),
        (np.zeros((2, 2), "V2"), "bfloat16 is kept by .safetensors"),
        (np.zeros((2, 2), [("a", "f4")]), "not plain numbers"),
        (np.zeros((2, 2), "M8[s]"), "not plain numbers"),
    ],
)
def test_arrays_that_are_not_numbers_are_refused(tmp_path: Path, x: np.ndarray[Any, Any], reason: str) -> None:
    np.save(tmp_path / "v.npy", x, allow_pickle=False)
    with pytest.raises(InputError, match=reason):
        open_vectors(tmp_path / "v.npy")


def test_batches_of_a_npy_file_lie_on_its_pages_and_cannot_change_it(tmp_path: Path) -> None:
    np.save(tmp_path / "v.npy", X)
    for batch in open_vectors(tmp_path / "v.npy").batches(50):
        batch.zero_()
    np.testing.assert_array_equal(np.load(tmp_path / "v.npy"), X)


def test_batches_from_crooked_places_of_a_file_are_aligned(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "v.npz", "w") as archive:
        for name in ("x", "xx", "xxx", "xxxx"):  # names of all lengths: the arrays begin at every remainder of 4
            archive.writestr(f"{name}.npy", npy_bytes(X))
    for name in ("x", "xx", "xxx", "xxxx"):
        for batch in open_vectors(tmp_path / "v.npz", tensor=name).batches(7):
            assert batch.data_ptr() % 4 == 0


def test_a_file_that_changes_between_passes_is_refused(tmp_path: Path) -> None:
    for suffix, save in ((".npy", save_npy), (".npz", save_packed_npz), (".parquet", save_parquet)):
        path = tmp_path / f"v{suffix}"
        save(path, X)
        source = open_vectors(path)
        rows(source)
        save(path, X[:10])
        with pytest.raises(InputError, match="has changed"):
            rows(source)


# Several arrays.


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
        with pytest.raises(InputError, match="Did you mean 'wte"):
            open_vectors(path, tensor="wtf")
        with pytest.raises(InputError, match=r"bias has shape \(6,\)"):
            open_vectors(path, tensor="bias")
        with pytest.raises(InputError, match="--tensor NAME"):
            open_vectors(path, column="wte")


def test_the_only_array_of_rows_and_columns_is_found_among_others(tmp_path: Path) -> None:
    np.savez(tmp_path / "v.npz", x=X, bias=X[0], step=3)
    assert open_vectors(tmp_path / "v.npz").n == 50


def test_a_file_without_rows_and_columns_says_what_it_holds(tmp_path: Path) -> None:
    np.savez(tmp_path / "v.npz", a=X[0], b=X[1])
    with pytest.raises(InputError, match=r"no array of rows and columns; it holds a \(6,\), b \(6,\)"):
        open_vectors(tmp_path / "v.npz")
    torch.save({"step": 3}, tmp_path / "v.pt")
    with pytest.raises(InputError, match="it holds nothing"):
        open_vectors(tmp_path / "v.pt")


def test_a_npy_file_has_no_names(tmp_path: Path) -> None:
    np.save(tmp_path / "v.npy", X)
    with pytest.raises(InputError, match="leave out --tensor"):
        open_vectors(tmp_path / "v.npy", tensor="x")


# Documents.


def test_documents_beside_the_vectors_are_found_by_themselves(tmp_path: Path) -> None:
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


def test_documents_are_found_by_the_name_given_or_in_another_file(tmp_path: Path) -> None:
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
        with pytest.raises(InputError, match=rf"{seen}.*one whole number a row, shape \(50,\)"):
            open_vectors(tmp_path / "v.npz", documents=name)
    with pytest.raises(InputError, match="Did you mean 'documents"):
        open_vectors(tmp_path / "v.npz", documents="document")


def test_embeddings_that_are_called_documents_are_vectors(tmp_path: Path) -> None:
    np.savez(tmp_path / "v.npz", documents=X)
    source = open_vectors(tmp_path / "v.npz")
    assert (source.n, source.documents) == (50, None)


# safetensors and torch.


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2])
def test_small_floats_that_numpy_lacks_come_back(tmp_path: Path, dtype: torch.dtype) -> None:
    x = torch.from_numpy(X).to(dtype)
    save_file({"x": x}, tmp_path / "v.safetensors")
    torch.save(x, tmp_path / "v.pt")
    for name in ("v.safetensors", "v.pt"):
        source = open_vectors(tmp_path / name)
        assert source.dtype == ("bfloat16" if dtype is torch.bfloat16 else "float32")
        assert torch.equal(rows(source).float(), x.float())


def test_tensors_in_nested_dicts_and_lists_are_found_by_their_path(tmp_path: Path) -> None:
    torch.save({"model": {"wte": torch.from_numpy(X), "x": [torch.ones(2, 2)]}, "step": 3}, tmp_path / "v.pt")
    assert open_vectors(tmp_path / "v.pt", tensor="model.wte").n == 50
    assert open_vectors(tmp_path / "v.pt", tensor="model.x.0").n == 2


def test_a_parameter_and_a_transposed_tensor_give_their_rows(tmp_path: Path) -> None:
    torch.save(torch.nn.Parameter(torch.from_numpy(X.copy()).T), tmp_path / "v.pt")
    batches = list(open_vectors(tmp_path / "v.pt").batches(4))
    assert not any(batch.requires_grad for batch in batches)
    np.testing.assert_array_equal(torch.cat(batches).numpy(), X.T)


class Bomb:
    """Unpickling it makes a file called `boom` in the current folder."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (open, ("boom", "w"))


def test_code_in_a_file_is_never_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"x": torch.ones(2, 2), "y": Bomb()}, "v.pt")
    Path("v.pth").write_bytes(pickle.dumps(Bomb()))
    np.save("v.npy", np.array([Bomb()], dtype=object), allow_pickle=True)
    np.savez("v.npz", x=np.array([Bomb()], dtype=object))
    for name in ("v.pt", "v.pth", "v.npy", "v.npz"):
        with pytest.raises(InputError, match=name):
            open_vectors(name)
    for name, reason in (("v.pt", "would run code.*save the tensors alone"), ("v.npy", "only unpickling could read")):
        with pytest.raises(InputError, match=reason):
            open_vectors(name)
    assert not Path("boom").exists()


def test_torch_files_of_the_old_format_are_refused(tmp_path: Path) -> None:
    torch.save(torch.ones(3, 2), tmp_path / "v.pt", _use_new_zipfile_serialization=False)
    with pytest.raises(InputError, match=r"torch\.save it again"):
        open_vectors(tmp_path / "v.pt")


def test_a_tensor_that_claims_more_than_its_file_holds_is_refused(tmp_path: Path) -> None:
    torch.save(torch.ones(1, 4).expand(10**15, 4), tmp_path / "v.pt")
    with pytest.raises(InputError, match="more than the file holds"):
        open_vectors(tmp_path / "v.pt")


@pytest.mark.parametrize(
    "tensor",
    [torch.eye(3).to_sparse(), torch.empty(3, 3, device="meta"), torch.eye(3, dtype=torch.complex64)],
    ids=["sparse", "meta", "complex"],
)
def test_tensors_that_are_not_plain_are_refused(tmp_path: Path, tensor: Tensor) -> None:
    torch.save(tensor, tmp_path / "v.pt")
    with pytest.raises(InputError, match="dense tensor of plain numbers"):
        open_vectors(tmp_path / "v.pt")


def test_a_structure_that_holds_itself_is_walked_once(tmp_path: Path) -> None:
    loop: dict[str, Any] = {"x": torch.from_numpy(X)}
    loop["self"] = [loop, loop]
    laughs: list[Any] = []
    for _ in range(60):
        laughs = [laughs, laughs]  # 2^60 paths
    torch.save([loop, laughs], tmp_path / "v.pt")
    assert open_vectors(tmp_path / "v.pt").n == 50


# parquet.


def test_the_vector_column_is_found_or_chosen(tmp_path: Path) -> None:
    one = pa.table({"text": ["a"] * 50, "x": list(X), "n": IDS})
    pq.write_table(one, tmp_path / "one.parquet")
    assert open_vectors(tmp_path / "one.parquet").name == "one.parquet:x"
    pq.write_table(one.append_column("y", one["x"]), tmp_path / "two.parquet")
    with pytest.raises(InputError, match=r"x \(50, 6\), y \(50, 6\); choose one with --column NAME"):
        open_vectors(tmp_path / "two.parquet")
    assert torch.equal(rows(open_vectors(tmp_path / "two.parquet", column="y")), torch.from_numpy(X))
    with pytest.raises(InputError, match="--column NAME"):
        open_vectors(tmp_path / "two.parquet", tensor="y")
    with pytest.raises(InputError, match="No column named 'z'"):
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
    [([1.0], "row 5 has 1 numbers where 2"), (None, "row 5 has no vector"), ([1.0, None], "lacks values")],
)
def test_a_row_of_another_length_is_named(tmp_path: Path, odd: Any, seen: str) -> None:
    column = pa.array([[1.0, 2.0]] * 5 + [odd] + [[1.0, 2.0]] * 3, pa.list_(pa.float32()))
    pq.write_table(pa.table({"x": column}), tmp_path / "v.parquet", row_group_size=2)
    source = open_vectors(tmp_path / "v.parquet")
    with pytest.raises(InputError, match=rf"v\.parquet: column x.*{seen}"):
        list(source.batches(2))


@pytest.mark.parametrize("claim", [49, 51])
def test_a_footer_that_lies_about_the_rows_is_found_out(tmp_path: Path, claim: int) -> None:
    path = tmp_path / "v.parquet"
    pq.write_table(pa.table({"x": list(X), "document": IDS}), path, row_group_size=13)
    honest, lie = (b"\x16" + bytes([2 * n]) + b"\x19" for n in (50, claim))  # thrift: a 64-bit number, then a list
    data = path.read_bytes()
    assert data.count(honest) == 1
    path.write_bytes(data.replace(honest, lie))
    with pytest.raises(InputError, match="rows announced"):
        open_vectors(path)
    pq.write_table(pa.table({"x": list(X)}), path, row_group_size=13)
    path.write_bytes(path.read_bytes().replace(honest, lie))
    with pytest.raises(InputError, match="rows announced"):
        rows(open_vectors(path))


# Damage.


def test_what_is_no_file_of_vectors_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.npy").write_bytes(b"")
    (tmp_path / "text.txt").write_text("1 2 3")
    os.mkfifo(tmp_path / "pipe.npy")
    for name, reason in {
        "missing.npy": "no such file",
        "empty.npy": "is empty",
        "text.txt": r"formats are \.npy, \.npz, \.safetensors, \.parquet, \.pt, \.pth, \.bin",
        "pipe.npy": "not a plain file",
        ".": "is a folder, that is a model",
        "a\0b": "no such file",
    }.items():
        with pytest.raises(InputError, match=reason):
            open_vectors(tmp_path / name)


def npy_bytes(x: np.ndarray[Any, Any]) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, x)
    return buffer.getvalue()


def npy_claiming(header: str, data: bytes = b"\0" * 64) -> bytes:
    text = header.encode().ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + data


@pytest.mark.parametrize(
    "data",
    [
        b"\x93NUMPY",
        b"\x93NUMPY\x01\x00\xff\xff",
        b"\x93NUMPY\x02\x00\xff\xff\xff\xff" + b"x" * 100_000,
        b"\x93NUMPY\x03\x00" + npy_bytes(X)[8:],
        b"PK\x03\x04",
        npy_claiming("{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000000, 8), }"),
        npy_claiming("{'descr': '<f4', 'fortran_order': True, 'shape': (1000000000000000, 8), }"),
        npy_claiming("{'descr': '<f4', 'fortran_order': False, 'shape': (-1, 8), }"),
        npy_claiming("{'descr': '<f4', 'fortran_order': False, 'shape': (True, 8), }"),
        npy_claiming("{'descr': '<f4', 'fortran_order': False, 'shape': (2, 2.5), }"),
        npy_claiming("{'descr': ('<f4', (9, 9)), 'fortran_order': False, 'shape': (2, 2), }"),
        npy_claiming("{'descr': 'nonsense', 'fortran_order': False, 'shape': (2, 2), }"),
        npy_claiming("__import__('os').abort()"),
        npy_claiming("(" * 100),
        npy_bytes(X)[:-1],
    ],
)
def test_crafted_npy_files_are_refused_at_once(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "v.npy").write_bytes(data)
    with pytest.raises(InputError, match=r"v\.npy"):
        open_vectors(tmp_path / "v.npy")


def test_a_stored_member_that_claims_the_next_ones_bytes_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "v.npz", "w") as archive:
        archive.writestr("x.npy", npy_bytes(X)[:-1000])
        archive.writestr("y.npy", npy_bytes(X))
    with pytest.raises(InputError, match="cut or damaged"):
        open_vectors(tmp_path / "v.npz", tensor="x")
    assert open_vectors(tmp_path / "v.npz").name == "v.npz:y"


def test_a_packed_member_that_claims_too_much_is_refused(tmp_path: Path) -> None:
    data = npy_claiming("{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000000, 8), }")
    with zipfile.ZipFile(tmp_path / "v.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", data)
    with pytest.raises(InputError, match=r"more than its .* bytes hold"):
        open_vectors(tmp_path / "v.npz")
    with zipfile.ZipFile(tmp_path / "v.npz", "w", zipfile.ZIP_BZIP2) as archive:
        archive.writestr("x.npy", npy_bytes(X))
    with pytest.raises(InputError, match="unusual way"):
        open_vectors(tmp_path / "v.npz")


def safetensors_bytes(header: object, data: bytes = b"\0" * 64) -> bytes:
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


@pytest.mark.parametrize(
    "data",
    [
        b"\xff" * 8,
        struct.pack("<Q", 10**15) + b"{}",
        safetensors_bytes([]),
        safetensors_bytes({"x": 3}),
        safetensors_bytes({"x": {"dtype": "F32", "shape": [10**15, 4], "data_offsets": [0, 64]}}),
        safetensors_bytes({"x": {"dtype": "F32", "shape": [4, 4], "data_offsets": [64, 128]}}),
        safetensors_bytes({"x": {"dtype": "F32", "shape": [4, 4], "data_offsets": [0, 128]}}),
        safetensors_bytes({"x": {"dtype": "F32", "shape": [-4, -4], "data_offsets": [0, 64]}}),
        safetensors_bytes({"x": {"dtype": "C64", "shape": [2, 4], "data_offsets": [0, 64]}}),
        safetensors_bytes({"x": {"dtype": "F99", "shape": [4, 4], "data_offsets": [0, 64]}}),
    ],
)
def test_crafted_safetensors_files_are_refused_at_once(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "v.safetensors").write_bytes(data)
    with pytest.raises(InputError, match=r"v\.safetensors"):
        open_vectors(tmp_path / "v.safetensors")


def look(path: Path) -> None:
    """Opens and reads to the end; damage may only be an InputError, and never more rows than were stored."""
    try:
        source = open_vectors(path)
        seen = sum(len(batch) for batch in source.batches(16))
    except InputError:
        return
    assert seen == source.n <= 10_000


VALID: dict[str, bytes] = {}


@pytest.fixture(scope="module", autouse=True)
def valid_files(tmp_path_factory: pytest.TempPathFactory) -> None:
    for kind, (suffix, save) in WRITERS.items():
        path = tmp_path_factory.mktemp("valid") / f"v{suffix}"
        save(path, X)
        VALID[kind] = path.read_bytes()


@pytest.mark.parametrize("kind", WRITERS)
@given(
    flips=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), max_size=4),
    keep=st.none() | st.floats(0, 1),
    extra=st.binary(max_size=20),
)
@settings(max_examples=60, deadline=None)
def test_flipped_and_missing_bytes_give_rows_or_an_input_error(
    tmp_path_factory: pytest.TempPathFactory,
    kind: str,
    flips: list[tuple[float, int]],
    keep: float | None,
    extra: bytes,
) -> None:
    data = bytearray(VALID[kind])
    for place, byte in flips:
        data[int(place * len(data))] = byte
    path = tmp_path_factory.mktemp("damage") / f"v{WRITERS[kind][0]}"
    path.write_bytes((data if keep is None else data[: int(keep * len(data))]) + extra)
    look(path)


@given(st.sampled_from([".npy", ".npz", ".safetensors", ".parquet", ".pt"]), st.binary(min_size=1, max_size=300))
@settings(max_examples=100, deadline=None)
def test_random_bytes_are_refused(tmp_path_factory: pytest.TempPathFactory, suffix: str, data: bytes) -> None:
    magic = {".npy": b"\x93NUMPY\x01\x00", ".parquet": b"PAR1", ".npz": b"PK\x03\x04", ".pt": b"PK\x03\x04"}
    folder = tmp_path_factory.mktemp("noise")
    for start in (b"", magic.get(suffix, b"")):
        path = folder / f"v{suffix}"
        path.write_bytes(start + data + start)
        with pytest.raises(InputError):
            open_vectors(path)


# Memory.


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_reading_a_large_file_does_not_grow_anonymous_memory(tmp_path: Path) -> None:
    code = """
        import sys
        from pathlib import Path
        import numpy as np, pyarrow as pa, pyarrow.parquet as pq, torch
        from safetensors.numpy import save_file
        from anisoscope.data.vectors import open_vectors

        def anonymous():
            lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
            return next(int(line.split()[1]) for line in lines if line.startswith("Anonymous:")) >> 10

        folder = Path(sys.argv[1])
        n, d = 80_000, 128  # 41 MB
        with open(folder / "v.npy", "wb") as file:
            np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": (n, d)})
            file.truncate(file.tell() + 4 * n * d)
        with open(folder / "f.npy", "wb") as file:
            np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": True, "shape": (n, d)})
            file.truncate(file.tell() + 4 * n * d)
        x = np.load(folder / "v.npy", mmap_mode="r")
        np.savez(folder / "v.npz", x)
        np.savez_compressed(folder / "w.npz", x)
        save_file({"x": x}, folder / "v.safetensors")
        torch.save(torch.zeros(n, d), folder / "v.pt")
        values = pa.array(np.random.default_rng(0).standard_normal(n * d).astype(np.float32))
        table = pa.table({"x": pa.FixedSizeListArray.from_arrays(values, d)})
        pq.write_table(table, folder / "v.parquet", row_group_size=n, use_dictionary=False)
        del x, values, table
        pa.default_memory_pool().release_unused()
        for name in ("v.npy", "f.npy", "v.npz", "w.npz", "v.safetensors", "v.pt", "v.parquet"):
            before = most = anonymous()
            source = open_vectors(folder / name)
            for i, batch in enumerate(source.batches(1024)):
                batch.sum()
                most = max(most, anonymous()) if i % 20 == 0 else most
            print(name, most - before)
        """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.stderr == ""
    grown = dict(line.split() for line in done.stdout.splitlines())
    assert len(grown) == 7
    assert all(int(megabytes) < 30 for megabytes in grown.values()), grown


@pytest.mark.skipif(sys.platform != "linux", reason="needs sparse files")
def test_a_file_larger_than_memory_can_be_opened_and_read_from_its_start(tmp_path: Path) -> None:
    with (tmp_path / "v.npy").open("wb") as file:
        header = {"descr": "<f4", "fortran_order": False, "shape": (1 << 33, 128)}  # 4 TB, nearly all of it a hole
        np.lib.format.write_array_header_1_0(file, header)
        file.truncate(file.tell() + (1 << 33) * 128 * 4)
    source = open_vectors(tmp_path / "v.npy")
    assert torch.equal(next(source.batches(10)), torch.zeros(10, 128))


# Writing.


def test_written_rows_come_back_and_the_file_appears_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "out.npy"
    with write_npy(path, 50, 6) as write:
        for batch in torch.from_numpy(X).double().split(7):
            write(batch)
        assert not path.exists()
    np.testing.assert_array_equal(np.load(path), X)
    assert [p.name for p in tmp_path.iterdir()] == ["out.npy"]


def test_a_transform_may_replace_the_file_it_reads(tmp_path: Path) -> None:
    np.save(tmp_path / "v.npy", X)
    with write_npy(tmp_path / "v.npy", 50, 6) as write:
        for batch in open_vectors(tmp_path / "v.npy").batches(7):
            write(2 * batch)
    np.testing.assert_array_equal(np.load(tmp_path / "v.npy"), 2 * X)


def test_rows_that_were_not_announced_leave_no_file(tmp_path: Path) -> None:
    path = tmp_path / "out.npy"

    def write_batches(*batches: Tensor) -> None:
        with write_npy(path, 3, 2) as write:
            for batch in batches:
                write(batch)

    for batches, message in (
        ([torch.ones(2, 2)], "3 rows were announced, 2 written"),
        ([torch.ones(2, 2), torch.ones(2, 2)], r"got \(2, 2\) after 2 rows"),
        ([torch.ones(3, 3)], "3 rows of 2 were announced"),
        ([torch.ones(2)], "3 rows of 2 were announced"),
    ):
        with pytest.raises(InputError, match=message):
            write_batches(*batches)
        assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written_is_one_clear_line(tmp_path: Path) -> None:
    def attempt() -> None:
        with write_npy(tmp_path / "missing" / "out.npy", 1, 1) as write:
            write(torch.ones(1, 1))

    with pytest.raises(StoreError, match="cannot write"):
        attempt()
