"""Files of vectors in every format, for the tests that read them."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from safetensors.torch import save_file
from torch import Tensor

from anisoscope.data.vectors import Vectors

X = np.random.default_rng(0).standard_normal((50, 6)).astype(np.float32)


IDS = np.repeat(np.arange(10), 5)


def rows(source: Vectors, batch_size: int = 7) -> Tensor:
    return torch.cat(list(source.batches(batch_size)))


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


def npy_bytes(x: np.ndarray[Any, Any]) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, x)
    return buffer.getvalue()
