"""Windows of documents, one token at a time: the slow twin of `anisoscope.data.text_batches`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Token:
    """A token of a window as `text_batches` should describe it."""

    document: int
    position: int
    offset: int
    token: int
    special: bool


def windows(documents: dict[int, list[int]], prefix: list[int], suffix: list[int], window: int) -> list[list[Token]]:
    """Cut documents into windows; `documents` maps a document number to its ids without special tokens."""
    result = []
    for document, ids in documents.items():
        left, position = list(ids), 0
        while left:
            row = list(prefix)
            marks = [True] * len(prefix)
            while left and len(row) < window - len(suffix):
                row.append(left.pop(0))
                marks.append(False)
            row += suffix
            marks += [True] * len(suffix)
            tokens = []
            for offset, (token, special) in enumerate(zip(row, marks, strict=True)):
                tokens.append(Token(document, position, offset, token, special))
                position += 1
            result.append(tokens)
    return result
