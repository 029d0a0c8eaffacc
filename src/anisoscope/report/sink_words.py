"""The massive tokens of a run in words: what a run keeps of them, or, in older runs, what follows from their list."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class SinkWord:
    """One massive token: all its uses together.

    Attributes:
        name: The text with visible white space; without a tokenizer the id, without ids the position.
        quoted: Whether the name is a text.
        count: How many uses are massive.
        site: The first site where one of them is massive.
        norm: The largest norm over the median of the site; None if that was not stored.
        context: The text before it, the text itself and the text after it, of the use of largest norm; None if the
            measurement had no tokenizer.
    """

    name: str
    quoted: bool
    count: int
    site: str = ""
    norm: float | None = None
    context: tuple[str, str, str] | None = None


def sink_words(removed: Mapping[str, Any]) -> list[SinkWord]:
    """The massive tokens of a run's checked info, the most frequent first."""
    words = [_word(word) for word in removed["words"]]
    return words or _grouped(removed["tokens"])


def visible(text: str) -> str:
    """A token's text with its white space visible; characters that cannot be printed are escaped.

    >>> visible(" the"), visible("\\n\\n"), visible(" ")
    ('the', '⏎⏎', '␣')
    """
    return _line(text).strip(" ") or "␣"


def quoted(word: SinkWord) -> str:
    """The name of a massive token, a text in quotation marks."""
    return f"“{word.name}”" if word.quoted else word.name


def _word(word: Mapping[str, Any]) -> SinkWord:
    text, left, right = word.get("text"), word.get("left"), word.get("right")
    shown = word.get("shown", text)
    context = None
    if isinstance(left, str) and isinstance(right, str) and isinstance(shown, str) and (left or right):
        space = " " if shown.startswith(" ") and shown.strip(" ") else ""
        context = (f"{_line(left)}{space}", visible(shown), _line(right))
    return SinkWord(
        *_name(word),
        count=_number(word.get("count"), int) or 1,
        site=str(word.get("site") or ""),
        norm=_number(word.get("norm over median"), float),
        context=context,
    )


def _line(text: str) -> str:
    """A text on one line; a control character could change a terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in _shown_spaces(text))


def _shown_spaces(text: str) -> str:
    return text.replace("\n", "⏎").replace("\t", "⇥")


def _name(word: Mapping[str, Any]) -> tuple[str, bool]:
    text, token = word.get("text"), word.get("token")
    if isinstance(text, str):
        return visible(text), True
    if isinstance(token, int) and token >= 0:
        return f"token {token}", False
    return f"position {word.get('position', '?')}", False


def _number(value: Any, kind: type) -> Any:
    known = isinstance(value, int | float) and not isinstance(value, bool)
    return kind(value) if known else None


def _grouped(tokens: list[Mapping[str, Any]]) -> list[SinkWord]:
    """Words of a run that keeps tokens one by one."""
    groups: dict[tuple[str, bool], list[Mapping[str, Any]]] = {}
    for token in tokens:
        groups.setdefault(_name(token), []).append(token)
    words = []
    for (name, is_text), group in groups.items():
        norms = [norm for token in group if (norm := _number(token.get("norm over median"), float)) is not None]
        site = next((str(token["site"]) for token in group if token.get("site")), "")
        words.append(SinkWord(name, is_text, len(group), site=site, norm=max(norms, default=None)))
    return sorted(words, key=lambda word: -word.count)
