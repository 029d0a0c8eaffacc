"""Documents for several models: where they are cut, and which token holds the end of a word."""

from __future__ import annotations

from typing import Any

import pytest

from anisoscope.data.shared_documents import PASSAGE, shared_documents, text_reader, word_spans, word_tokens
from anisoscope.data.text_sources import TextDocuments
from anisoscope.errors import InputError
from tests import model_folders


def documents(*texts: str, unit: str = "documents") -> TextDocuments:
    return TextDocuments(lambda: iter(texts), unit)


@pytest.fixture(scope="module")
def tokenizers() -> dict[str, Any]:
    return {"bpe": model_folders.byte_pairs(), "wordpiece": model_folders.word_pieces(), "bytes": "bytes"}


def test_a_long_document_is_cut_at_one_character_that_suits_every_model(tokenizers: dict[str, Any]) -> None:
    text = model_folders.WORDS.replace("\n", " ")
    readers = [text_reader("a", tokenizers["bpe"], 40), text_reader("b", tokenizers["wordpiece"], 24)]
    shared = shared_documents(documents(text, "the dog"), readers, 10)
    cut, short = shared.texts
    assert (shared.cut, short) == (1, "the dog")
    assert text.startswith(cut)
    assert text[len(cut)] == " "
    assert all(reader.fits(cut) for reader in readers)
    following = text[: word_spans(text)[len(cut.split())][1]]
    assert not all(reader.fits(following) for reader in readers)


def test_special_tokens_count_towards_the_window(tokenizers: dict[str, Any]) -> None:
    reader = text_reader("b", tokenizers["wordpiece"], 12)
    (text,) = shared_documents(documents(model_folders.WORDS), [reader], 1).texts
    assert len(tokenizers["wordpiece"](text)["input_ids"]) <= 12
    assert len(tokenizers["wordpiece"](text)["input_ids"]) > 8


def test_a_text_without_spaces_is_cut_between_characters() -> None:
    shared = shared_documents(documents("猫" * 40), [text_reader("a", "bytes", 20)], 1)
    assert shared.texts == ("猫" * 6,)
    assert shared.cut == 1


def test_blank_documents_do_not_count_and_the_limit_holds() -> None:
    reader = text_reader("a", "bytes", 64)
    assert shared_documents(documents("", " \n", "one", "two", "three"), [reader], 2).texts == ("one", "two")
    with pytest.raises(InputError, match="The text is empty"):
        shared_documents(documents(" "), [reader], 2)


def test_a_text_without_marks_is_read_in_passages() -> None:
    text = "one two three " * 200
    shared = shared_documents(documents(text[:1000], text[1000:], unit="windows"), [text_reader("a", "bytes", 512)], 99)
    assert shared.unit == "windows"
    assert max(map(len, shared.texts)) <= PASSAGE
    assert " ".join(shared.texts) == text.strip()


def test_the_token_of_a_word_holds_its_last_character(tokenizers: dict[str, Any]) -> None:
    text = "The  quick\nbrown naïve 猫🙂 it's over."
    for name, tokenizer in tokenizers.items():
        reader = text_reader(name, tokenizer, 99)
        spans = word_spans(text)
        if name == "wordpiece":
            spans = [span for span in spans if "猫" not in text[slice(*span)]]
        tokens = word_tokens(reader, text, spans, 0)
        assert tokens == sorted(set(tokens)), name
        prefix = len(reader.encoder.prefix)
        ids = reader.encoder.encode(text)
        for (start, end), token in zip(spans, tokens, strict=True):
            word, upto = text[start:end], ids[: token - prefix + 1]
            if name == "bytes":
                assert bytes(upto).decode().endswith(word)
            elif name == "bpe":
                assert tokenizer.decode(upto).endswith(word)


def test_wordpiece_tokens_count_the_first_special_token(tokenizers: dict[str, Any]) -> None:
    reader = text_reader("b", tokenizers["wordpiece"], 99)
    ids = tokenizers["wordpiece"]("the dog")["input_ids"]
    tokens = word_tokens(reader, "the dog", word_spans("the dog"), 0)
    assert reader.encoder.prefix == [2]
    assert tokens[0] == len(tokenizers["wordpiece"]("the")["input_ids"]) - 2
    assert tokens[1] == len(ids) - 2


def test_a_word_that_no_token_holds_is_an_error_that_names_document_and_word(tokenizers: dict[str, Any]) -> None:
    text = "the \u200b\u200d dog"  # the normaliser of BERT removes control characters
    with pytest.raises(InputError, match=r"Document 3 cannot be aligned: no token of b holds .*u200b"):
        word_tokens(text_reader("b", tokenizers["wordpiece"], 99), text, word_spans(text), 2)


def test_a_tokenizer_without_positions_is_refused() -> None:
    class Slow:
        is_fast = False
        pad_token_id = eos_token_id = 0
        all_special_ids = ()

        def __call__(self, text: str, **options: Any) -> dict[str, list[int]]:
            return {"input_ids": list(text.encode())}

    with pytest.raises(InputError, match="does not report the positions"):
        word_tokens(text_reader("slow", Slow(), 99), "one", [(0, 3)], 0)
