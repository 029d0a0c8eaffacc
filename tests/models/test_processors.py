"""Tokenizers that are missing, damaged or too large."""

from __future__ import annotations

from pathlib import Path

import pytest

from anisoscope.errors import InputError
from anisoscope.models.open import open_model
from tests import model_folders as made


def test_a_tokenizer_larger_than_the_embedding_is_refused(gpt2: Path) -> None:
    made.byte_pairs(330).save_pretrained(gpt2)
    with pytest.raises(InputError, match=r"has 330 tokens but the model's embedding has 320 rows"):
        open_model(gpt2)


def test_a_folder_without_tokenizer_opens_without_one(tmp_path: Path) -> None:
    folder = made.save(tmp_path / "bare", made.hf.GPT2Model(made.gpt2_config()))
    opened = open_model(folder)
    assert (opened.processor, opened.info["processor"]) == (None, None)


@pytest.mark.parametrize("text", ["{", '{"version": "1.0", "model": {"type": "none"}}', "<!doctype html><html>"])
def test_a_damaged_tokenizer_is_not_taken_for_a_missing_one(gpt2: Path, text: str) -> None:
    (gpt2 / "tokenizer.json").write_text(text)
    with pytest.raises(InputError, match=r"tokenizer\.json"):
        open_model(gpt2)


@pytest.mark.parametrize("pattern", [{"String": "a"}, {"Regex": "a|b"}])
def test_a_normalizer_that_multiplies_its_text_is_refused_before_it_is_opened(
    gpt2: Path, pattern: dict[str, str]
) -> None:
    step = {"type": "Replace", "pattern": pattern, "content": "aaaaaaaa"}
    made.change_json(gpt2 / "tokenizer.json", normalizer={"type": "Sequence", "normalizers": [step] * 12})
    with pytest.raises(InputError, match=r"tokenizer\.json.*times longer"):
        open_model(gpt2)


def test_a_normalizer_with_a_long_beginning_is_refused(gpt2: Path) -> None:
    step = {"type": "Prepend", "prepend": "x" * 1000}
    made.change_json(gpt2 / "tokenizer.json", normalizer={"type": "Sequence", "normalizers": [step] * 2})
    with pytest.raises(InputError, match="1,002,001 times longer"):
        open_model(gpt2)


def test_ordinary_replacements_are_accepted(gpt2: Path) -> None:
    steps = [
        {"type": "NFC"},
        {"type": "Prepend", "prepend": "▁"},
        {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
        {"type": "Replace", "pattern": {"Regex": "\\s+"}, "content": " "},
        {"type": "Replace", "pattern": {"String": "``"}, "content": '"'},
    ]
    made.change_json(gpt2 / "tokenizer.json", normalizer={"type": "Sequence", "normalizers": steps})
    assert open_model(gpt2).processor is not None
