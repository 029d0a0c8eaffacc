"""Documents that several models read: each is cut at the same character for all of them, and words are aligned."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from anisoscope.data.text import Encoder, make_encoder
from anisoscope.data.text_sources import TextDocuments, text_pieces
from anisoscope.errors import InputError

PASSAGE = 400  # characters: a text without document marks is cut into passages of at most this length
_LONGEST = 64  # characters per token of a window: no document needs to be read beyond this many
_WORD = re.compile(r"\S+")


@dataclass(frozen=True)
class TextReader:
    """How one model reads a text: the name of the model, its tokenizer and its longest window in tokens."""

    name: str
    tokenizer: Any
    encoder: Encoder
    window: int

    def fits(self, text: str) -> bool:
        """Return whether a text with its special tokens fits into one window."""
        specials = len(self.encoder.prefix) + len(self.encoder.suffix)
        return len(self.encoder.encode(text)) + specials <= self.window


@dataclass(frozen=True)
class SharedDocuments:
    """Documents that fit into a window of every model.

    Attributes:
        texts: The texts, none of them blank.
        unit: "documents", or "windows" for passages of a text without document marks.
        cut: How many were too long for a model and were cut.
    """

    texts: tuple[str, ...]
    unit: str
    cut: int


def text_reader(name: str, tokenizer: Any, window: int) -> TextReader:
    """Return how a model reads text; `tokenizer` is one of transformers, or "bytes"."""
    return TextReader(name, tokenizer, make_encoder(tokenizer, special=True), window)


def shared_documents(documents: TextDocuments, readers: Sequence[TextReader], limit: int) -> SharedDocuments:
    """Read the first `limit` documents and cut those that are too long for a reader at the same character for all.

    A document is cut at the end of a word if one fits, otherwise between two characters.

    Raises:
        InputError: All documents are blank.

    >>> readers = [text_reader("a", "bytes", 12), text_reader("b", "bytes", 8)]
    >>> shared_documents(TextDocuments(lambda: iter(["one two three", " "])), readers, 10)
    SharedDocuments(texts=('one two',), unit='documents', cut=1)
    """
    texts, cut = [], 0
    for text in islice(_not_blank(_passages(documents)), limit):
        shorter = _fitting(text, readers)
        cut += len(shorter) < len(text)
        texts.append(shorter)
    if not texts:
        raise InputError("The text is empty: it has no documents to compare. Use a longer text.")
    return SharedDocuments(tuple(texts), documents.unit, cut)


def word_spans(text: str) -> list[tuple[int, int]]:
    """Return where the words of a text, separated by white space, begin and end.

    >>> word_spans("one  two")
    [(0, 3), (5, 8)]
    """
    return [match.span() for match in _WORD.finditer(text)]


def word_tokens(reader: TextReader, text: str, spans: Iterable[tuple[int, int]], number: int) -> list[int]:
    """Return the index in its window of the token that holds the last character of each word.

    Args:
        reader: How the model reads text.
        text: A document.
        spans: Where its words begin and end.
        number: The number of the document, for messages.

    Raises:
        InputError: The tokenizer does not report positions, or no token holds the end of a word.

    >>> word_tokens(text_reader("a", "bytes", 64), "é two", [(0, 1), (2, 5)], 0)
    [1, 5]
    """
    ends = _character_ends(reader, text)
    last = {}  # the last token that ends after each character, by the character
    for token, (start, end) in enumerate(ends):
        last.update(dict.fromkeys(range(start, end), token))
    tokens = []
    for start, end in spans:
        if end - 1 not in last:
            raise InputError(
                f"Document {number + 1} cannot be aligned: no token of {reader.name} holds the end of the word "
                f"{text[start:end][:40]!r}. Remove the word, or use --rows mean."
            )
        tokens.append(len(reader.encoder.prefix) + last[end - 1])
    return tokens


def _character_ends(reader: TextReader, text: str) -> list[tuple[int, int]]:
    """Return the first character of each token, and the one after its last."""
    if reader.tokenizer == "bytes":
        return [(i, i + 1) for i, character in enumerate(text) for _ in character.encode()]
    if not getattr(reader.tokenizer, "is_fast", False):
        raise InputError(
            f"The tokenizer of {reader.name} does not report the positions of its tokens, so words cannot be aligned. "
            "Use --rows mean, last or cls, or a fast tokenizer (tokenizer.json)."
        )
    encoded = reader.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
    return [(int(start), int(end)) for start, end in encoded["offset_mapping"]]


def _passages(documents: TextDocuments) -> Iterator[str]:
    return iter(documents) if documents.unit == "documents" else text_pieces(documents, PASSAGE)


def _not_blank(texts: Iterable[str]) -> Iterator[str]:
    return (text.strip() for text in texts if text.strip())


def _fitting(text: str, readers: Sequence[TextReader]) -> str:
    """Return the longest beginning of a text that fits into a window of every reader."""

    def fits(end: int) -> bool:
        return all(reader.fits(text[:end]) for reader in readers)

    most = _LONGEST * min(reader.window for reader in readers)
    if len(text) <= most and fits(len(text)):
        return text
    text = text[:most]
    ends = [end for _, end in word_spans(text)]
    return text[: _largest(ends, fits) or _largest(range(1, len(text) + 1), fits)]


def _largest(ends: Sequence[int], fits: Callable[[int], bool]) -> int:
    """Return the last of some increasing numbers that fits, by bisection; 0 if none does."""
    count = bisect_left(ends, True, key=lambda end: not fits(end))
    return ends[count - 1] if count else 0
