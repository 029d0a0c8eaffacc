"""Data from strangers: texts, tables, images and sound that are damaged, or small on disk and huge in memory."""

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

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import soundfile
from hypothesis import given, settings
from PIL import Image

from anisoscope.data.audio import audio_batches
from anisoscope.data.images import image_batches
from anisoscope.data.text_sources import text_documents, text_pieces
from anisoscope.errors import AnisoscopeError, InputError
from tests.damage import LONG, SHORT, damages


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
    ("name", "data", "told"),
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
def test_crafted_data_is_one_line(tmp_path: Path, name: str, data: bytes, told: str) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(InputError, match=told) as caught:
        read_all(tmp_path / name)
    assert name in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_recording_that_claims_hours_gives_what_is_there(tmp_path: Path) -> None:
    (tmp_path / "a.wav").write_bytes(wav(16_000, 1, frames=32_000, claimed=2**32 - 100))
    assert sum(len(batch.inputs["input_values"]) for batch in audio_batches(None, tmp_path / "a.wav", seconds=1)) == 2


def test_what_is_said_in_a_clip_must_be_text(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "a.wav", np.zeros(16_000), 16_000)
    (tmp_path / "a.txt").write_bytes(b"\xff\xfe\xfa")
    with pytest.raises(InputError, match=r"a\.txt"):
        list(audio_batches(None, tmp_path / "a.wav", decoder_start=1))


def test_nul_and_other_odd_characters_are_text(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes("a\0b \u202e c \ufeff".encode())
    assert "".join(text_documents(tmp_path / "a.txt")) == "a\0b \u202e c \ufeff"


# Damage to valid files.


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


# Bombs, in a process whose memory is bounded: little beyond what the libraries themselves take.

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
def test_bombs_stay_within_their_memory(tmp_path: Path) -> None:
    for name, (make, _) in BOMBS.items():
        make(tmp_path / name)
    command = [sys.executable, "-c", BOUNDED, *(str(tmp_path / name) for name in BOMBS)]
    # Arrow's own allocator reserves a gigabyte at once, which a bound would count.
    environment = {**os.environ, "ARROW_DEFAULT_MEMORY_POOL": "system"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.replace(f"{tmp_path}/", "").splitlines()
    for line, (_, told) in zip(lines, BOMBS.values(), strict=True):
        assert line.startswith(told)


# Long texts take time in proportion to their length.


class Counted(str):
    """A text that counts how much of it is copied."""

    copied = 0

    def __getitem__(self, part: object) -> str:
        found = super().__getitem__(part)  # type: ignore[index]
        Counted.copied += len(found)
        return Counted(found)

    def __radd__(self, other: str) -> str:
        return Counted(str(other) + str(self))


def test_a_long_text_is_cut_without_being_copied_again_and_again() -> None:
    text = Counted("word " * 20_000)
    assert "".join(text_pieces([text], size=100)) == text
    assert Counted.copied < 5 * len(text)


def test_documents_between_marks_are_found_wherever_chunks_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "one<|>two<|><|>four" + "x" * 50 + "<|>five<|"
    (tmp_path / "a.txt").write_text(text)
    for size in (1, 2, 3, 7, 1000):
        monkeypatch.setattr("anisoscope.data.text_sources.PIECE", size)
        assert list(text_documents(tmp_path / "a.txt", mark="<|>")) == text.split("<|>")
