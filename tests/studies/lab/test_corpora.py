"""Texts of the lab."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from anisoscope.errors import InputError
from anisoscope.studies.lab.corpora import open_text, zipf_entropy, zipf_law
from anisoscope.studies.lab.token_data import prepare
from tests.oracles import lab as slow


@pytest.mark.parametrize(
    ("source", "content", "words"),
    [
        ("nowhere.txt", None, "No text at"),
        ("latin.txt", "caf\xe9".encode("latin-1") * 100, "not UTF-8"),
        ("short.txt", b"too short", "fewer than one context"),
        ("empty.txt", b"", "fewer than one context"),
        ("zipf:exponant=1", None, "exponent="),
        ("zipf:vocabulary=1", None, "1 < vocabulary"),
        ("enwik8:plain.txt", b"just text " * 100, "no <text>"),
    ],
)
def test_texts_that_cannot_be_used_are_refused_with_the_reason(
    source: str, content: bytes | None, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if content is not None:
        Path(source.rpartition(":")[2]).write_bytes(content)
    with pytest.raises(InputError, match=words):
        prepare(open_text(source), tmp_path / "data", context=64)


def test_a_file_is_read_whole_in_pieces_that_end_with_a_line(tmp_path: Path) -> None:
    text = "".join(f"line {i} of the file\n" for i in range(5000)) + "x" * 300_000
    (tmp_path / "t.txt").write_text(text)
    pieces = list(open_text(tmp_path / "t.txt"))
    assert "".join(pieces) == text
    assert len(pieces) > 10
    assert all(piece.endswith("\n") for piece in pieces[:4])


def test_zipf_tokens_follow_their_law_with_copying() -> None:
    documents = list(open_text("zipf:exponent=1.3,vocabulary=20,copy=0.6,lag=3,length=200000"))
    counts = Counter("".join(documents))
    share = np.array([counts[chr(0x4E00 + k)] for k in range(20)]) / sum(counts.values())
    # copies make neighbours depend on each other: about n·(1 − copy)/(1 + copy) independent draws
    error = np.sqrt(zipf_law(20, 1.3) / (sum(counts.values()) * 0.25))
    assert np.all(np.abs(share - zipf_law(20, 1.3)) < 5 * error)


def test_zipf_tokens_repeat_earlier_ones_at_the_given_rate() -> None:
    ids = np.array([ord(c) for c in next(iter(open_text("zipf:vocabulary=50,copy=0.6,lag=3")))])
    law = zipf_law(50, 1.0)
    expected = 0.6 + 0.4 * (law**2).sum()
    assert np.mean(ids[3:] == ids[:-3]) == pytest.approx(expected, abs=0.03)
    assert np.mean(ids[2:] == ids[:-2]) == pytest.approx((law**2).sum(), abs=0.03)


def test_the_entropy_of_zipf_sequences_is_that_of_all_pairs() -> None:
    assert zipf_entropy(7, 1.2, 0.4) == pytest.approx(slow.zipf_entropy(7, 1.2, 0.4))
    assert zipf_entropy(4, 0.0, 0.0) == pytest.approx(np.log(4))
