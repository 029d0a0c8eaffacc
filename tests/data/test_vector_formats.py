"""Each format gives its rows in flat memory; damaged and crafted files give an InputError."""

from __future__ import annotations

import json
import pickle
import struct
import subprocess
import sys
import textwrap
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import Tensor

from anisoscope.data.vectors import open_vectors
from anisoscope.errors import InputError
from tests.pickle_bomb import PickleBomb
from tests.vector_files import (
    WRITERS,
    X,
    npy_bytes,
    rows,
    save_npy,
    save_packed_npz,
    save_parquet,
)


@pytest.mark.parametrize("dtype", [">f4", ">f8", "<f2", ">i4", "u8", "?", np.longdouble])
def test_every_numeric_dtype_of_numpy_can_be_read(tmp_path: Path, dtype: Any) -> None:
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


def test_fortran_order_that_cannot_be_streamed_is_refused_with_the_remedy(tmp_path: Path) -> None:
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
        (np.zeros((2, 2), "V2"), "For bfloat16 use .safetensors"),
        (np.zeros((2, 2), [("a", "f4")]), "not plain numbers"),
        (np.zeros((2, 2), "M8[s]"), "not plain numbers"),
    ],
)
def test_arrays_that_are_not_numbers_are_refused(tmp_path: Path, x: np.ndarray[Any, Any], reason: str) -> None:
    np.save(tmp_path / "v.npy", x, allow_pickle=False)
    with pytest.raises(InputError, match=reason):
        open_vectors(tmp_path / "v.npy")


def test_changing_a_batch_does_not_change_the_file(tmp_path: Path) -> None:
    np.save(tmp_path / "v.npy", X)
    for batch in open_vectors(tmp_path / "v.npy").batches(50):
        batch.zero_()
    np.testing.assert_array_equal(np.load(tmp_path / "v.npy"), X)


def test_batches_from_unaligned_offsets_are_aligned(tmp_path: Path) -> None:
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


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2])
def test_bfloat16_and_eight_bit_floats_are_read(tmp_path: Path, dtype: torch.dtype) -> None:
    x = torch.from_numpy(X).to(dtype)
    save_file({"x": x}, tmp_path / "v.safetensors")
    torch.save(x, tmp_path / "v.pt")
    for name in ("v.safetensors", "v.pt"):
        source = open_vectors(tmp_path / name)
        assert source.dtype == ("bfloat16" if dtype is torch.bfloat16 else "float32")
        assert torch.equal(rows(source).float(), x.float())


def test_tensors_in_nested_dicts_and_lists_are_named_by_their_path(tmp_path: Path) -> None:
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
    for name, reason in (
        ("v.pt", "code that would run.*Save the tensors alone"),
        ("v.npy", "holds Python objects"),
    ):
        with pytest.raises(InputError, match=reason):
            open_vectors(name)
    assert not Path("boom").exists()


def test_torch_files_of_the_old_format_are_refused(tmp_path: Path) -> None:
    torch.save(torch.ones(3, 2), tmp_path / "v.pt", _use_new_zipfile_serialization=False)
    with pytest.raises(InputError, match=r"Save it again with torch\.save"):
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
def test_sparse_meta_and_complex_tensors_are_refused(tmp_path: Path, tensor: Tensor) -> None:
    torch.save(tensor, tmp_path / "v.pt")
    with pytest.raises(InputError, match="dense tensor of plain numbers"):
        open_vectors(tmp_path / "v.pt")


def test_a_structure_that_contains_itself_is_visited_once(tmp_path: Path) -> None:
    loop: dict[str, Any] = {"x": torch.from_numpy(X)}
    loop["self"] = [loop, loop]
    laughs: list[Any] = []
    for _ in range(60):
        laughs = [laughs, laughs]  # 2^60 paths
    torch.save([loop, laughs], tmp_path / "v.pt")
    assert open_vectors(tmp_path / "v.pt").n == 50


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
def test_crafted_npy_files_are_refused_when_opened(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "v.npy").write_bytes(data)
    with pytest.raises(InputError, match=r"v\.npy"):
        open_vectors(tmp_path / "v.npy")


def test_a_stored_member_longer_than_its_bytes_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "v.npz", "w") as archive:
        archive.writestr("x.npy", npy_bytes(X)[:-1000])
        archive.writestr("y.npy", npy_bytes(X))
    with pytest.raises(InputError, match="truncated or damaged"):
        open_vectors(tmp_path / "v.npz", tensor="x")
    assert open_vectors(tmp_path / "v.npz").name == "v.npz:y"


def test_a_compressed_member_longer_than_its_bytes_is_refused(tmp_path: Path) -> None:
    data = npy_claiming("{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000000, 8), }")
    with zipfile.ZipFile(tmp_path / "v.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", data)
    with pytest.raises(InputError, match=r"does not fit into its .* bytes"):
        open_vectors(tmp_path / "v.npz")
    with zipfile.ZipFile(tmp_path / "v.npz", "w", zipfile.ZIP_BZIP2) as archive:
        archive.writestr("x.npy", npy_bytes(X))
    with pytest.raises(InputError, match="unsupported way"):
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
def test_crafted_safetensors_files_are_refused_when_opened(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "v.safetensors").write_bytes(data)
    with pytest.raises(InputError, match=r"v\.safetensors"):
        open_vectors(tmp_path / "v.safetensors")


def read_or_refuse(path: Path) -> None:
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
    read_or_refuse(path)


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


@pytest.mark.parametrize("name", ["bomb.pt", "bomb.bin", "bomb.pth"])
def test_a_file_of_vectors_never_runs_code(tmp_path: Path, name: str) -> None:
    torch.save({"x": torch.ones(3, 2), "y": PickleBomb(tmp_path / "taken")}, tmp_path / name)
    with pytest.raises(InputError, match="code that would run"):
        open_vectors(tmp_path / name)
    assert not (tmp_path / "taken").exists()
