"""Batches fit the model that they are made for."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Callable
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import soundfile
import torch
from hypothesis import given, settings
from PIL import Image

from anisoscope.data.audio import audio_batches
from anisoscope.data.batches import model_batches
from anisoscope.data.images import image_batches
from anisoscope.data.text_sources import text_documents
from anisoscope.errors import AnisoscopeError, InputError
from anisoscope.models.open import open_model
from tests import model_folders as made
from tests.damage import LONG, SHORT, damages

MODELS: dict[str, Callable[[], tuple[Any, list[Any]]]] = {
    "gpt2": lambda: (made.hf.GPT2Model(made.gpt2_config()), [made.byte_pairs()]),
    "bert": lambda: (made.hf.BertModel(made.bert_config()), [made.word_pieces()]),
    "t5": lambda: (made.hf.T5Model(made.t5_config()), [made.sentence_pieces()]),
    "canine": lambda: (made.hf.CanineModel(made.canine_config()), []),
}


@pytest.mark.parametrize("kind", list(MODELS))
def test_a_text_model_reads_its_batches(tmp_path: Path, kind: str) -> None:
    model, processors = MODELS[kind]()
    opened = open_model(made.save(tmp_path / kind, model, *processors))
    assert opened.modality == "text"
    for batch in model_batches(opened, [made.WORDS, "The end"], batch=2):
        states = opened.model(**batch.inputs).last_hidden_state
        assert states.isfinite().all()
        assert (batch.decoder is not None) == (kind == "t5")
        assert batch.counts.shape[1] <= {"gpt2": 64, "bert": 48, "t5": 512, "canine": 128}[kind]


def test_padding_changes_no_state(tmp_path: Path) -> None:
    opened = open_model(made.gpt2(tmp_path / "gpt2"))
    texts = [made.WORDS[:70], "The end"]
    (together,) = model_batches(opened, texts)
    alone = [next(iter(model_batches(opened, [text]))) for text in texts]
    for b in range(2):
        padded = opened.model(**together.inputs).last_hidden_state[b, : int(together.counts[b].sum())]
        assert torch.allclose(padded, opened.model(**alone[b].inputs).last_hidden_state[0], atol=1e-6)


def test_a_byte_model_without_tokenizer_reads_raw_bytes_on_request(tmp_path: Path) -> None:
    opened = open_model(made.save(tmp_path / "bytes", made.hf.GPT2Model(made.gpt2_config(vocab_size=256))))
    assert opened.processor is None
    with pytest.raises(InputError, match="no tokenizer"):
        model_batches(opened, ["text"])
    (batch,) = model_batches(opened, ["text"], tokenizer="bytes")
    assert batch.token.tolist() == [list(b"text")]
    large = open_model(made.gpt2(tmp_path / "large", vocab_size=500))
    with pytest.raises(InputError, match="the model has 500"):
        model_batches(large, ["text"], tokenizer="bytes")


def test_a_window_longer_than_the_positions_is_refused(tmp_path: Path) -> None:
    opened = open_model(made.gpt2(tmp_path / "gpt2"))
    with pytest.raises(InputError, match="longer than the 64 positions"):
        model_batches(opened, ["text"], window=65)


def read_all(path: Path) -> None:
    """All that a reader by this suffix makes of a file."""
    if path.suffix in (".jsonl", ".parquet", ".txt"):
        list(islice(text_documents(path), 1000))
    elif path.suffix == ".wav":
        list(audio_batches(None, path, seconds=1))
    else:
        list(image_batches(None, path, size=8))


def png(width: int, height: int) -> bytes:
    """A PNG of one colour whose header says any size; its pixels are few bytes."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    pixels = zlib.compress(bytes(1000))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


def wav(rate: int, channels: int, frames: int = 16_000, claimed: int | None = None) -> bytes:
    data = bytes(2 * channels * min(frames, 1 << 16))
    size = len(data) if claimed is None else claimed
    form = struct.pack("<HHIIHH", 1, channels, rate, min(rate * channels * 2, 2**32 - 1), channels * 2 % 65536, 16)
    body = b"WAVEfmt " + struct.pack("<I", 16) + form + b"data" + struct.pack("<I", size) + data
    return b"RIFF" + struct.pack("<I", min(len(body), 2**32 - 1)) + body


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.jsonl", b'{"text": "a"}\n\xff\xfe\n', "line"),
        ("a.jsonl", b"[" * 100_000 + b"\n", "nested too deeply"),
        ("a.jsonl", b'{"text": ' + b"1" * 5000 + b"}\n", "line 1 is not JSON"),
        ("a.jsonl", b"5\n", "no text in field"),
        ("a.jsonl", b'{"text": "a"}\n{"text": NaN}\n', "line 2 has no text"),
        ("a.parquet", b"PAR1" + bytes(50) + b"PAR1", "cannot be read"),
        ("a.parquet", b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
        ("a.txt", b"abc\xff", "not UTF-8"),
        ("a.png", b"", "not a readable image"),
        ("a.png", png(20_000, 20_000), "pixels"),
        ("a.png", png(2**31 - 1, 2**31 - 1), "pixels"),
        ("a.png", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "not a readable image"),
        ("a.wav", b"RIFF", "cannot be read"),
        ("a.wav", wav(2**31 - 1, 1), "samples per second"),
        ("a.wav", wav(16_000, 1000), "channels"),
        ("a.wav", wav(999_983, 1), "unusual rate"),
        ("a.wav", wav(1, 1), "samples per second"),
    ],
)
def test_crafted_data_is_refused_in_one_line(tmp_path: Path, name: str, data: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(InputError, match=message) as caught:
        read_all(tmp_path / name)
    assert name in str(caught.value)
    assert "\n" not in str(caught.value)


def valid_files(place: Path) -> dict[str, bytes]:
    rows = [{"text": f"words {i}"} for i in range(5)]
    (place / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    pq.write_table(pa.table({"text": [row["text"] for row in rows]}), place / "a.parquet")
    picture = Image.fromarray(np.arange(300, dtype=np.uint8).reshape(10, 10, 3))
    for name in ("a.png", "a.jpg", "a.gif", "a.bmp", "a.tiff", "a.webp"):
        picture.save(place / name)
    soundfile.write(place / "a.wav", np.zeros(4_000), 16_000)
    return {file.name: file.read_bytes() for file in place.iterdir()}


@pytest.fixture(scope="module")
def valid(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    return valid_files(tmp_path_factory.mktemp("valid"))


NAMES = ("a.jsonl", "a.parquet", "a.png", "a.jpg", "a.gif", "a.bmp", "a.tiff", "a.webp", "a.wav")


def check(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    with suppress(AnisoscopeError):
        read_all(path)


@pytest.mark.parametrize("name", NAMES)
@given(damages)
@settings(SHORT)
def test_damaged_data_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, valid: dict[str, bytes], name: str, damage: Callable[[bytes], bytes]
) -> None:
    check(tmp_path_factory.mktemp("damage") / name, damage(valid[name]))


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@given(damages)
@settings(LONG)
def test_much_damaged_data_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, valid: dict[str, bytes], name: str, damage: Callable[[bytes], bytes]
) -> None:
    check(tmp_path_factory.mktemp("damage") / name, damage(valid[name]))


BOUNDED = """
import resource, sys
from itertools import islice
import anisoscope.data.text_sources, anisoscope.data.vectors, pyarrow.parquet, pyarrow.compute
from anisoscope.errors import AnisoscopeError
pages = int(open("/proc/self/statm").read().split()[0])
bound = pages * resource.getpagesize() + (1 << 30)
resource.setrlimit(resource.RLIMIT_AS, (bound, bound))
for name in sys.argv[1:]:
    try:
        if name.rpartition("/")[2].startswith("text"):
            print(sum(map(len, islice(anisoscope.data.text_sources.text_documents(name), 50))))
        else:
            vectors = anisoscope.data.vectors.open_vectors(name)
            print(vectors.n, vectors.d, len(vectors.documents), next(vectors.batches(16)).shape)
    except AnisoscopeError as error:
        print("refused:", error)
"""


def repeated(path: Path, column: str, **more: pa.Array) -> None:
    """A column of twenty thousand copies of a text of a megabyte, in less than that."""
    texts = pa.DictionaryArray.from_arrays(pa.array(np.zeros(20_000, np.int32)), pa.array(["x" * 1_000_000]))
    pq.write_table(pa.table({column: texts, **more}), path, store_schema=False)


def one_row(path: Path) -> None:
    """One row of forty million zeros, in less than a kilobyte."""
    n = 40_000_000
    zeros = pa.LargeListArray.from_arrays(pa.array([0, n], pa.int64()), pa.array(np.zeros(n, np.float32)))
    pq.write_table(pa.table({"v": zeros}), path, compression="zstd")


def packed_pickle(path: Path) -> None:
    """A torch file whose pickle is a thousand times larger once unpacked."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        archive.writestr("a/data.pkl", bytes(1 << 26))


def one_line(path: Path) -> None:
    """A line without end, as large as two gigabytes and mostly a hole on the disk."""
    with path.open("wb") as file:
        file.write(b'{"text": "')
        file.truncate(1 << 31)


def many_texts(path: Path) -> None:
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(np.ones(40_000, np.float32)), 2)
    repeated(path, "document", v=vectors)


BOMBS: dict[str, tuple[Callable[[Path], None], str]] = {
    "text.parquet": (lambda path: repeated(path, "text"), "50000000"),
    "text.jsonl": (one_line, "refused: text.jsonl, line 1"),
    "v.parquet": (one_row, "refused: v.parquet: v would expand"),
    "d.parquet": (many_texts, "20000 2 20000"),
    "v.pt": (packed_pickle, "refused: v.pt is damaged"),
}


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_bombs_are_read_or_refused_in_bounded_memory(tmp_path: Path) -> None:
    for name, (make, _) in BOMBS.items():
        make(tmp_path / name)
    command = [sys.executable, "-c", BOUNDED, *(str(tmp_path / name) for name in BOMBS)]
    # Arrow's own allocator reserves a gigabyte at once, which a bound would count.
    environment = {**os.environ, "ARROW_DEFAULT_MEMORY_POOL": "system"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.replace(f"{tmp_path}/", "").splitlines()
    for line, (_, message) in zip(lines, BOMBS.values(), strict=True):
        assert line.startswith(message)
