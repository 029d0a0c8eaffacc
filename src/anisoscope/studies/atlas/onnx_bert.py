"""Weights of a BERT in an ONNX file, read without ONNX: a reader of the few protobuf fields that hold them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from anisoscope.errors import InputError

_FLOAT = 1  # TensorProto.DataType


def build_onnx_bert(files: list[Path], folder: Path) -> None:
    """Write a Hugging Face folder from config.json, the files of a tokenizer and model.onnx.

    Args:
        files: The files of the package.
        folder: Where to write.
    """
    import transformers

    named = {file.name: file for file in files}
    config = transformers.AutoConfig.for_model(**json.loads(named["config.json"].read_text("utf-8")))
    model = transformers.BertModel(config, add_pooling_layer=False)
    tensors = onnx_weights(named["model.onnx"].read_bytes())
    known = set(model.state_dict())
    lacking, _ = model.load_state_dict({n: x for n, x in tensors.items() if n in known}, strict=False)
    if lacking:
        raise InputError(f"The ONNX file has no weights {', '.join(lacking[:3])}. Check the version of the package.")
    model.save_pretrained(folder)
    for name, file in named.items():
        if name not in ("config.json", "model.onnx"):
            shutil.copyfile(file, folder / name)


def onnx_weights(data: bytes) -> dict[str, Tensor]:
    """Return the float tensors of an ONNX model by name.

    Exporters give matrices of products numbers instead of names; those are named after the node that uses them
    (`/encoder/layer.0/output/dense/MatMul`), and transposed as torch stores them.
    """
    graph = next(value for field, value in _fields(data) if field == 7)
    tensors: dict[str, Tensor] = {}
    users: dict[str, str] = {}
    for field, value in _fields(graph):
        if field == 1:
            node = list(_fields(value))
            name = next((v for f, v in node if f == 3), b"").decode()
            kind = next((v for f, v in node if f == 4), b"").decode()
            if kind in ("MatMul", "Gemm"):
                users.update({v.decode(): name for f, v in node if f == 1})
        elif field == 5:
            named = _tensor(value)
            if named is not None:
                tensors[named[0]] = named[1]
    weights = {}
    for name, tensor in tensors.items():
        if name in users and "MatMul" in name:
            path = users[name].strip("/").rsplit("/", 1)[0].replace("/", ".")
            weights[f"{path}.weight"] = tensor.T.contiguous()
        else:
            weights[name] = tensor
    return weights


def _tensor(data: bytes) -> tuple[str, Tensor] | None:
    shape, kind, name, raw = [], 0, "", b""
    for field, value in _fields(data):
        if field == 1:
            shape += [value] if isinstance(value, int) else list(_varints(value))
        elif field == 2:
            kind = value
        elif field == 8:
            name = value.decode()
        elif field == 9:
            raw = value
    if kind != _FLOAT or len(raw) != 4 * int(np.prod(shape)):
        return None
    return name, torch.from_numpy(np.frombuffer(raw, "<f4").reshape(shape).copy())


def _varints(data: bytes) -> Iterator[int]:
    offset = 0
    while offset < len(data):
        value, offset = _varint(data, offset)
        yield value


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Yield the fields of a protobuf message: numbers, and bytes that are not read further."""
    offset = 0
    while offset < len(data):
        key, offset = _varint(data, offset)
        field, kind = key >> 3, key & 7
        if kind == 0:
            value, offset = _varint(data, offset)
            yield field, value
            continue
        if kind == 2:
            length, offset = _varint(data, offset)
        else:
            length = {1: 8, 5: 4}.get(kind, -1)
        if length < 0 or offset + length > len(data):
            raise InputError("The ONNX file is damaged. Delete the package from the cache and run the command again.")
        yield field, data[offset : offset + length]
        offset += length


def _varint(data: bytes, offset: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[offset]
        offset += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value, offset
