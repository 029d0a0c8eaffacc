"""enwik8, the first 10⁸ bytes of a Wikipedia dump, as a stream of plain text without markup, code or media."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from pathlib import Path

from anisoscope.errors import InputError

_TEXT_BEGINS = re.compile(r"<text[^>]*>")
_TEXT_ENDS = "</text>"
_LIMIT = 1 << 23  # characters per article: far above any real one, so that a wrong file cannot fill the memory

# Tags with code, formulas, pictures or data are removed with their content; of other tags only the tag itself.
_WITH_CONTENT = re.compile(
    r"<!--.*?-->|<(math|code|pre|source|nowiki|gallery|timeline|score|ref|script|style|table)\b[^>]*?(/>|>.*?</\1\s*>)",
    re.IGNORECASE | re.DOTALL,
)
_TAG = re.compile(r"</?[a-zA-Z][^<>]*>")
_TEMPLATE = re.compile(r"\{\{[^{}]*\}\}")  # innermost first
_TABLE = re.compile(r"\{\|(?:(?!\{\|).)*?\|\}", re.DOTALL)
# [[Image:…]], [[Category:…]], [[fr:…]]: a word and a colon, without the colon in front that makes it a plain link
_SPECIAL_LINK = re.compile(r"\[\[[A-Za-z][\w -]*:[^\[\]]*\]\]")
_LINK = re.compile(r"\[\[:?(?:[^\[\]|]*\|)*([^\[\]|]*)\]\]")  # the last part is what readers see
_WEB_LINK = re.compile(r"\[(?:https?|ftp)://[^\s\]]*\s*([^\]]*)\]")
_ADDRESS = re.compile(r"(?:https?|ftp)://\S+")
_MARKS = re.compile(r"'{2,}|__[A-Z]+__|^[ \t]*[*#:;]+[ \t]*|^=+[ \t]*|[ \t]*=+[ \t]*$|^-{4,}$", re.MULTILINE)
_SPACES = re.compile(r"[ \t]+")
_LINES = re.compile(r"\n\s*\n\s*")


def articles(path: Path) -> Iterator[str]:
    """Yield the articles of a dump as plain text, without redirections and empty pages.

    Raises:
        InputError: The file is not a Wikipedia dump.
    """
    any_text = False
    for source in _sources(path):
        any_text = True
        text = plain_text(source)
        if text and not text.upper().startswith("REDIRECT"):
            yield text + "\n"
    if not any_text:
        raise InputError(f"{path} has no <text> of a Wikipedia dump. Give the unpacked enwik8 file.")


def plain_text(source: str) -> str:
    """Return the text of an article as a reader sees it.

    >>> plain_text("The ''cat'' {{cn}} is a [[mammal|small mammal]]. [[Image:Cat.jpg|thumb|A [[cat]]]]&lt;br /&gt;")
    'The cat is a small mammal.'
    """
    text = html.unescape(html.unescape(source))  # a dump escapes its tags, and authors escape signs
    text = _WITH_CONTENT.sub("", text)
    text = _until_done(_TEMPLATE, "", text)
    text = _until_done(_TABLE, "", text)
    text = _TAG.sub("", text)
    text = _links(text)
    text = _ADDRESS.sub("", _WEB_LINK.sub(r"\1", text))
    text = _MARKS.sub("", text)
    return _LINES.sub("\n\n", _SPACES.sub(" ", text)).strip()


def _links(text: str) -> str:
    """Replace links by their words, innermost first, so that a link in a caption does not hide the picture."""
    while True:
        plain, changed = _SPECIAL_LINK.subn("", text)
        plain, more = _LINK.subn(lambda m: m[1] if ":" not in m[0][2:].split("|")[0].lstrip(":") else "", plain)
        if not changed + more:
            return text
        text = plain


def _until_done(pattern: re.Pattern[str], by: str, text: str) -> str:
    while True:
        text, changed = pattern.subn(by, text)
        if not changed:
            return text


def _sources(path: Path) -> Iterator[str]:
    """The text between <text> and </text>, without the last article of enwik8, which is cut."""
    held: list[str] | None = None
    size = 0
    with path.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            if held is None:
                begins = _TEXT_BEGINS.search(line)
                if begins is None or begins[0].endswith("/>"):
                    continue
                held, size, line = [], 0, line[begins.end() :]
            body, ends, _ = line.partition(_TEXT_ENDS)
            held.append(body)
            size += len(body)
            if size > _LIMIT:
                raise InputError(f"{path} has an article of more than {_LIMIT:,} characters. Give the enwik8 file.")
            if ends:
                yield "".join(held)
                held = None
