"""Tokenizers of the lab."""

from __future__ import annotations

from pathlib import Path

import pytest

from anisoscope.studies.lab.corpora import Text
from anisoscope.studies.lab.token_data import prepare
from anisoscope.studies.lab.tokens import encode, make_tokenizer


@pytest.mark.parametrize("kind", ["char", "byte", "bpe"])
def test_tokenizers_restore_the_text_however_it_is_cut(kind: str) -> None:
    text = "Ein naïver Satz: “quoted”,\n\n\ttabbed — and 数字 123.\n" * 200
    tokenizer = make_tokenizer(kind, [text], 300 if kind == "bpe" else None)
    ids = encode(tokenizer, text)
    assert tokenizer.decode(ids) == text
    assert ids == tokenizer.encode(text, add_special_tokens=False).ids
    assert max(ids) < tokenizer.get_vocab_size() - 2  # the last two are special


def test_bytes_have_their_value_as_id() -> None:
    text = "aé数\n\x00\xad"
    assert encode(make_tokenizer("byte", []), text) == list(text.encode())


def test_merges_make_a_text_shorter() -> None:
    text = "the cat sat on the mat, the cat sat on the hat. " * 50
    assert len(encode(make_tokenizer("bpe", [text], 300), text)) < len(text) / 2


def test_characters_beyond_the_limit_are_unknown(tmp_path: Path) -> None:
    data = prepare(Text("t", lambda: iter(["aaaaabbbbcccdd" * 20] * 40)), tmp_path / "data", symbols=3)
    assert [data.tokenizer.id_to_token(i) for i in range(5)] == ["a", "b", "c", "[UNK]", "[MASK]"]
    assert data.info["unknown"] == 2 * 20 * 40
    assert data.mask_id == 4
