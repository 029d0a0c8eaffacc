"""Weights and tokens of llama2.c become a folder that gives the same numbers as the C program's formulas."""

from __future__ import annotations

import math
import struct
from pathlib import Path

import numpy as np
import pytest
import torch

from anisoscope.errors import InputError
from anisoscope.models.open import open_model
from anisoscope.studies.atlas.llama2c import build_llama2c, read_weights

WIDTH, HIDDEN, LAYERS, HEADS, VOCABULARY, POSITIONS = 8, 12, 2, 2, 264, 16


def llama2c_file(path: Path) -> tuple[int, dict[str, np.ndarray]]:
    """Write a random model in the format of llama2.c, then its tokenizer; return where that begins."""
    rng = np.random.default_rng(0)
    head = WIDTH // HEADS
    shapes = {
        "embedding": (VOCABULARY, WIDTH),
        "norm1": (LAYERS, WIDTH),
        "q": (LAYERS, WIDTH, WIDTH),
        "k": (LAYERS, WIDTH, WIDTH),
        "v": (LAYERS, WIDTH, WIDTH),
        "o": (LAYERS, WIDTH, WIDTH),
        "norm2": (LAYERS, WIDTH),
        "w1": (LAYERS, HIDDEN, WIDTH),
        "w2": (LAYERS, WIDTH, HIDDEN),
        "w3": (LAYERS, HIDDEN, WIDTH),
        "norm": (WIDTH,),
        "rotary": (POSITIONS, head),
    }
    weights = {name: rng.standard_normal(shape).astype("<f4") * 0.4 for name, shape in shapes.items()}
    header = struct.pack("<7i", WIDTH, HIDDEN, LAYERS, HEADS, HEADS, VOCABULARY, POSITIONS)
    model = header + b"".join(weight.tobytes() for weight in weights.values())
    pieces = ["<unk>", "\n<s>\n", "\n</s>\n", *(f"<0x{byte:02X}>" for byte in range(256)), " ", "a", "b", "ab", " ab"]
    scores = [0.0] * 259 + [-10.0, -11.0, -12.0, -1.0, -2.0]
    tokens = struct.pack("<i", 6)
    for piece, score in zip(pieces, scores, strict=True):
        data = piece.encode()
        tokens += struct.pack("<fi", score, len(data)) + data
    path.write_bytes(model + tokens)
    return len(model), weights


def oracle(weights: dict[str, np.ndarray], tokens: list[int]) -> np.ndarray:
    """Run llama2.c's forward pass in numpy, one position after another."""
    head = WIDTH // HEADS

    def rms(x: np.ndarray, gain: np.ndarray) -> np.ndarray:
        return x / math.sqrt(float(np.mean(x * x)) + 1e-5) * gain

    def rotate(x: np.ndarray, position: int) -> np.ndarray:
        x = x.copy()
        for i in range(0, WIDTH, 2):
            angle = position / 10000 ** ((i % head) / head)
            a, b = x[i], x[i + 1]
            x[i], x[i + 1] = a * math.cos(angle) - b * math.sin(angle), a * math.sin(angle) + b * math.cos(angle)
        return x

    keys: list[list[np.ndarray]] = [[] for _ in range(LAYERS)]
    values: list[list[np.ndarray]] = [[] for _ in range(LAYERS)]
    logits = []
    for position, token in enumerate(tokens):
        x = weights["embedding"][token].astype(float)
        for layer in range(LAYERS):
            h = rms(x, weights["norm1"][layer])
            query = rotate(weights["q"][layer] @ h, position)
            keys[layer].append(rotate(weights["k"][layer] @ h, position))
            values[layer].append(weights["v"][layer] @ h)
            out = np.zeros(WIDTH)
            for start in range(0, WIDTH, head):
                part = slice(start, start + head)
                scores = np.array([query[part] @ k[part] for k in keys[layer]]) / math.sqrt(head)
                chances = np.exp(scores - scores.max())
                chances /= chances.sum()
                out[part] = sum(c * v[part] for c, v in zip(chances, values[layer], strict=True))
            x = x + weights["o"][layer] @ out
            h = rms(x, weights["norm2"][layer])
            gate = weights["w1"][layer] @ h
            x = x + weights["w2"][layer] @ (gate / (1 + np.exp(-gate)) * (weights["w3"][layer] @ h))
        logits.append(weights["embedding"] @ rms(x, weights["norm"]))
    return np.stack(logits)


def test_the_folder_gives_the_logits_of_llama2c(tmp_path: Path) -> None:
    begin, weights = llama2c_file(tmp_path / "data")
    size = (tmp_path / "data").stat().st_size
    (tmp_path / "model").mkdir()
    build_llama2c([tmp_path / "data"], tmp_path / "model", weights=[0, begin], tokenizer=[begin, size])
    opened = open_model(tmp_path / "model", head=True)
    tokens = [1, 5, 260, 7, 263]
    with torch.no_grad():
        logits = opened.model(input_ids=torch.tensor([tokens])).logits[0]
    # float32 against float64, values below 10: a bound of 1e-4 leaves a factor of about ten
    assert np.abs(logits.numpy() - oracle(weights, tokens)).max() < 1e-4


def test_the_tokenizer_merges_the_best_score_first_and_falls_back_to_bytes(tmp_path: Path) -> None:
    begin, _ = llama2c_file(tmp_path / "data")
    size = (tmp_path / "data").stat().st_size
    (tmp_path / "model").mkdir()
    build_llama2c([tmp_path / "data"], tmp_path / "model", weights=[0, begin], tokenizer=[begin, size])
    tokenizer = open_model(tmp_path / "model").processor
    assert tokenizer is not None
    assert tokenizer("ab")["input_ids"] == [1, 263]  # <s>, " ab"
    assert tokenizer("b!")["input_ids"] == [1, 259, 261, 3 + ord("!")]
    assert tokenizer.decode([263, 259, 260]) == "ab a"


def test_a_file_of_another_format_or_a_short_one_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"not in the format of llama2\.c"):
        read_weights(bytes(28))
    begin, _ = llama2c_file(tmp_path / "data")
    with pytest.raises(InputError, match="shorter"):
        read_weights((tmp_path / "data").read_bytes()[: begin // 2 // 4 * 4])
