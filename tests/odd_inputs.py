"""Odd inputs as data: how each is made, the command that reads it, and what the command must answer.

A command must end with success, or with one line, or with its usage; never with a traceback, a hang, or gigabytes. The
cases that reviews found have an expected message. The grids below put odd values into every field of a configuration,
of a tokenizer and of the command line, and damage every format of vectors.
"""

from __future__ import annotations

import io
import json
import math
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from safetensors.torch import save as save_safetensors

from tests import model_folders as made

Make = Callable[[Path], None]
MODEL = ("--text", "text.txt", "--tokens", "64", "--window", "16", "-m", "mean_cosine", "--no-errors")


@dataclass(frozen=True)
class OddInput:
    """A command in a folder with something odd, and a part of its answer if that is known."""

    name: str
    arguments: tuple[str, ...]
    make: Make | None = None
    expected: str = ""


def make_desk(folder: Path) -> Path:
    """A folder with a model, a text, vectors and a file of counts: what every case starts from."""
    folder.mkdir(parents=True)
    made.gpt2(folder / "model")
    (folder / "text.txt").write_text(made.WORDS * 5)
    np.save(folder / "v.npy", _rows())
    return folder


def cases() -> list[OddInput]:
    """All cases; their names are unique."""
    return [*_reviewed(), *_configs(), *_tokenizers(), *_vectors(), *_options()]


def _rows() -> np.ndarray[Any, Any]:
    return np.random.default_rng(0).standard_normal((200, 8)).astype(np.float32)


# --- what reviews found -------------------------------------------------------------------------------------------


def _reviewed() -> Iterator[OddInput]:
    measure = ("measure", "model", *MODEL)
    for name, values, expected in (
        ("negative heads", {"n_head": -2}, "n_head = -2"),
        ("many labels", {"num_labels": 5 * 10**7}, "num_labels"),
        ("nested text_config", {"text_config": {"text_config": {}}}, "nests a configuration"),
        ("attention types", {"attention_types": [[["global"], 10**9]]}, "attention_types"),
        ("many layers", {"n_layer": 10**9}, "n_layer"),
        ("depths", {"depths": [2, 2_000_000]}, "depths"),
        ("experts", {"num_experts": 10**6}, "num_experts"),
        ("groups", {"num_hidden_groups": 10**6}, "num_hidden_groups"),
    ):
        yield OddInput(f"config: {name}", measure, partial(_change, "model/config.json", values), expected)
    grow = {"type": "Replace", "pattern": {"String": "a"}, "content": "aaaa"}
    steps = {"type": "Sequence", "normalizers": [grow] * 20}
    yield OddInput(
        "tokenizer: growth", measure, partial(_change, "model/tokenizer.json", {"normalizer": steps}), "times longer"
    )
    yield OddInput("device meta", (*measure, "--device", "meta"), None, "have no values")
    for name, value in (("nan", math.nan), ("inf", math.inf)):
        yield OddInput(
            f"whiten {name}",
            ("transform", "v.npy", "--whiten", "--out", "w.npy"),
            partial(_set_entry, value),
            "NaN or Inf",
        )
    yield OddInput("bf16 nan", ("measure", "v.safetensors"), _bf16_nan, "NaN or Inf")
    deep = "/".join(["d"] * 1500)
    yield OddInput("deep output", ("measure", "v.npy", "-m", "mean_cosine", "--out", deep), None, "folders deep")
    pipe = ("tangent", "model", "--text", "text.txt", "--counts", "pipe.json")
    yield OddInput("counts from a pipe", pipe, lambda folder: os.mkfifo(folder / "pipe.json"), "not a regular file")
    yield OddInput(
        "learning rate 1e300", ("lab", "train", "--learning-rate", "1e300", "--out", "l"), None, "learning_rate"
    )
    yield OddInput("seed 1e23", ("lab", "train", "--seed", "9" * 23, "--out", "l"), None, "seed is")
    yield OddInput("zipf nan", ("lab", "train", "--text", "zipf:exponent=nan", "--out", "l"), None, "zipf needs")
    yield OddInput("symbols 1e11", ("lab", "train", "--symbols", "9" * 11, "--out", "l"), None, "symbols is")
    yield OddInput("layers 1e8", ("lab", "train", "--layers", "9" * 8, "--out", "l"), None, "layers is")
    for option in (("--noise", "inf"), ("--kappa", "1e308"), ("--tokens", "9" * 13), ("--seeds", "9" * 14)):
        yield OddInput(f"curvature {' '.join(option)}", ("curvature", *option), None, "less than or equal to")


def _change(file: str, values: dict[str, Any], folder: Path) -> None:
    made.change_json(folder / file, **values)


def _set_entry(value: float, folder: Path) -> None:
    rows = _rows()
    rows[3, 2] = value
    np.save(folder / "v.npy", rows)


def _bf16_nan(folder: Path) -> None:
    rows = torch.from_numpy(_rows()).bfloat16()
    rows[0, 0] = math.nan
    (folder / "v.safetensors").write_bytes(save_safetensors({"x": rows}))


# --- grids --------------------------------------------------------------------------------------------------------

_VALUES: tuple[Any, ...] = (
    *(0, 1, 3, -1, -(2**63), 10**5, 10**9, 2**31, 2**63, 10**30, 0.5, -1.0, 1e308, math.nan, math.inf),
    *("", "x", "../x", "someone/kernel", "9" * 400, [], [1], ["x"], {}, {"a": 1}, [[[["x"], 10**9]]], None, True),
)
_FIELDS = (
    *("n_layer", "n_head", "n_embd", "n_inner", "n_positions", "vocab_size", "activation_function", "num_labels"),
    *("layer_norm_epsilon", "attn_pdrop", "bos_token_id", "eos_token_id", "architectures", "model_type", "dtype"),
    *("torch_dtype", "id2label", "quantization_config", "text_config", "auto_map", "attn_implementation"),
    *("tie_word_embeddings", "is_encoder_decoder", "rope_theta", "transformers_weights", "layer_types"),
)
_TOKENIZER_FIELDS = ("version", "model", "normalizer", "pre_tokenizer", "post_processor", "decoder", "added_tokens")


def _configs() -> Iterator[OddInput]:
    for field in _FIELDS:
        for value in _VALUES:
            make = partial(_change, "model/config.json", {field: value})
            yield OddInput(f"config: {field} = {_short(value)}", ("measure", "model", *MODEL), make)


def _tokenizers() -> Iterator[OddInput]:
    for field in _TOKENIZER_FIELDS:
        for value in _VALUES:
            make = partial(_change, "model/tokenizer.json", {field: value})
            yield OddInput(f"tokenizer: {field} = {_short(value)}", ("measure", "model", *MODEL), make)


def _vectors() -> Iterator[OddInput]:
    for suffix, write in _FORMATS.items():
        measure = ("measure", f"odd{suffix}", "-m", "mean_cosine")
        for damage in _damages():
            yield OddInput(f"vectors: {suffix} {damage[0]}", measure, partial(_damaged, suffix, write, damage[1]))


def _npz(rows: Any) -> bytes:
    buffer = io.BytesIO()
    np.savez_compressed(buffer, x=rows)
    return buffer.getvalue()


def _npy(rows: Any) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, rows)
    return buffer.getvalue()


def _parquet(rows: Any) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(pa.table({"x": list(rows)}), buffer)
    return buffer.getvalue()


def _pt(rows: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save({"x": torch.from_numpy(rows)}, buffer)
    return buffer.getvalue()


_FORMATS: dict[str, Callable[[Any], bytes]] = {
    ".npy": _npy,
    ".npz": _npz,
    ".safetensors": lambda rows: save_safetensors({"x": torch.from_numpy(rows)}),
    ".parquet": _parquet,
    ".pt": _pt,
}


def _damages() -> Iterator[tuple[str, Callable[[bytes], bytes]]]:
    for share in (0.0, 0.01, 0.1, 0.5, 0.9, 0.999):
        yield f"cut at {share}", lambda data, share=share: data[: int(share * len(data))]  # type: ignore[misc]
    for at in (0, 1, 4, 6, 8, 9, 10, 20, 40, 60, -1, -4, -8, -20):
        for byte in (0, 255):
            yield f"byte {at} = {byte}", partial(_flip, at, byte)
    for size in (0, 2**20, 2**40, 2**63 - 1):
        yield f"header of {size}", lambda data, size=size: size.to_bytes(8, "little") + data[8:]  # type: ignore[misc]


def _flip(at: int, byte: int, data: bytes) -> bytes:
    place = at % len(data)
    return data[:place] + bytes([byte]) + data[place + 1 :]


def _damaged(suffix: str, write: Callable[[Any], bytes], damage: Callable[[bytes], bytes], folder: Path) -> None:
    (folder / f"odd{suffix}").write_bytes(damage(write(_rows())))


_ODD_WORDS = ("0", "-1", "1e400", "nan", "9" * 30, "x", "", "../../x", "\x1b]0;x\x07", "a" * 5000)
_COMMANDS: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = (
    (
        ("measure", "v.npy", "-m", "mean_cosine"),
        ("--out", "--sample", "--seed", "--documents", "--tensor", "--metrics"),
    ),
    (
        ("measure", "model", *MODEL),
        ("--sites", "--window", "--batch", "--dtype", "--device", "--field", "--seed", "--generate"),
    ),
    (("transform", "v.npy", "--centre", "--out", "w.npy"), ("--remove-top", "--out", "--apply", "--save")),
    (("figure", "nowhere", "-m", "mean_cosine"), ("--save", "--width", "--pick")),
    (("sweep", "model", *MODEL), ("--revisions", "--engine", "--seeds", "--out")),
    (("lab", "train", "--steps", "0"), ("--layers", "--width", "--heads", "--set", "--text", "--symbols")),
)


def _options() -> Iterator[OddInput]:
    for command, options in _COMMANDS:
        for option in options:
            for word in _ODD_WORDS:
                arguments = (*command, option, word)
                yield OddInput(f"options: {' '.join(command[:2])} {option} {_short(word)}", arguments)


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:32]}… ({len(text)})"


def copy_desk(desk: Path, folder: Path) -> Path:
    """A fresh copy of the desk for one case."""
    shutil.copytree(desk, folder)
    return folder
