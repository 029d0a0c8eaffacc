"""Texts to train on: one that is always there, any file, enwik8, and synthetic ones with a known frequency law."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from anisoscope.errors import InputError
from anisoscope.store.files import given_path, near_paths
from anisoscope.studies.lab.enwik8 import articles

EMBEDDED = "topics"
_PIECE = 1 << 14  # characters of an unmarked file that count as one document
_PIECES = 20  # a short file has at least so many
_PARAGRAPHS = re.compile(r"\n\s*\n")
_ZIPF_LETTER = 0x4E00  # token k of a synthetic text is this character plus k: each token one letter, none of them ASCII


@dataclass(frozen=True)
class Text:
    """A text in documents, read anew whenever it is iterated."""

    name: str
    read: Callable[[], Iterator[str]]

    def __iter__(self) -> Iterator[str]:
        return self.read()


def open_text(source: str | Path) -> Text:
    """A text by name: `topics` (embedded), `zipf` or `zipf:exponent=1.2,vocabulary=500`, `enwik8:path`, or a file.

    >>> len(list(open_text("topics"))) > 50
    True
    """
    name, _, rest = str(source).partition(":")
    if str(source) == EMBEDDED:
        return embedded_text()
    if name == "zipf":
        return zipf_text(**_numbers(rest))
    path = given_path(rest if name == "enwik8" else source)
    if not path.is_file():
        known = f"{EMBEDDED} (embedded), zipf:exponent=1, enwik8:PATH or a text file"
        raise InputError(f"no text at {path}{near_paths(path)}; give {known}")
    if name == "enwik8":
        return Text(str(source), lambda: articles(path))
    return Text(str(path), lambda: _pieces(path))


def embedded_text() -> Text:
    """The help topics of Python itself, one document each: English prose with code, without a download.

    Topics quote each other at length: a paragraph is kept where it first occurs, or held-out text would be known text.
    """
    from pydoc_data.topics import topics

    def read() -> Iterator[str]:
        seen: set[str] = set()
        for topic in topics.values():
            kept = []
            for paragraph in _PARAGRAPHS.split(topic):
                if paragraph.strip() not in seen:
                    seen.add(paragraph.strip())
                    kept.append(paragraph)
            if kept:
                yield "\n\n".join(kept)

    return Text(EMBEDDED, read)


# --- synthetic ----------------------------------------------------------------------------------------------------


def zipf_text(
    *,
    exponent: float = 1.0,
    vocabulary: int = 256,
    copy: float = 0.5,
    lag: int = 4,
    length: int = 1 << 19,
    seed: int = 0,
) -> Text:
    """Sequences whose token frequencies are known: p_k ∝ k^−exponent, k = 1 … vocabulary.

    With probability `copy` a token repeats the one `lag` places before, else it is drawn from the law anew. Copying
    leaves the law as it is, and gives attention something to find: `zipf_entropy` is the loss of a perfect model.
    """
    if not (vocabulary > 1 and 0 <= copy < 1 and lag >= 1 and length > 0):
        raise InputError("zipf needs vocabulary > 1, copy in [0, 1), lag ≥ 1 and length > 0")
    vocabulary, lag, length = int(vocabulary), int(lag), int(length)
    name = f"zipf:exponent={exponent:g},vocabulary={vocabulary},copy={copy:g},lag={lag},length={length},seed={seed:g}"
    size = max(lag, min(_PIECE, length // _PIECES))  # tokens a document

    def read() -> Iterator[str]:
        law = zipf_law(vocabulary, exponent)
        rows = -(-size // lag)
        for number in range(-(-length // size)):
            random = np.random.default_rng([int(seed), number])
            ids = random.choice(vocabulary, (rows, lag), p=law)  # a token's earlier one stands above it
            fresh = random.random((rows, lag)) >= copy
            fresh[0] = True
            source = np.maximum.accumulate(np.where(fresh, np.arange(rows)[:, None], 0), axis=0)
            copied = np.take_along_axis(ids, source, axis=0).ravel()
            yield "".join(map(chr, copied[:size] + _ZIPF_LETTER))

    return Text(name, read)


def zipf_law(vocabulary: int, exponent: float) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """p_k ∝ k^−exponent.

    >>> zipf_law(3, 1.0).round(3).tolist()
    [0.545, 0.273, 0.182]
    """
    weight = np.arange(1, vocabulary + 1, dtype=np.float64) ** -exponent
    return weight / weight.sum()


def zipf_entropy(vocabulary: int, exponent: float, copy: float) -> float:
    """The entropy of a token given the one `lag` places before, in nats: what a perfect model still loses.

    Given the earlier token a, b follows with probability copy·[a = b] + (1 − copy)·p_b.
    """
    p = zipf_law(vocabulary, exponent)
    fresh, repeated = (1 - copy) * p, copy + (1 - copy) * p
    surprise = -fresh * np.log(fresh)
    return float((p * (surprise.sum() - surprise - repeated * np.log(repeated))).sum())


def _numbers(text: str) -> dict[str, Any]:
    """`exponent=1.2,vocabulary=500` as numbers by name."""
    known = ("exponent", "vocabulary", "copy", "lag", "length", "seed")
    found: dict[str, Any] = {}
    for part in filter(None, text.split(",")):
        name, _, value = part.partition("=")
        try:
            found[name] = float(value)
        except ValueError:
            name = ""
        if name not in known:
            raise InputError(
                f"zipf does not take {part!r}; give some of {', '.join(f'{k}=' for k in known)} and a number"
            )
    return found


# --- files --------------------------------------------------------------------------------------------------------


def _pieces(path: Path) -> Iterator[str]:
    """A text file in pieces that end with a line, where lines are not too long."""
    size = max(1, min(_PIECE, path.stat().st_size // _PIECES))
    held = ""
    try:
        with path.open(encoding="utf-8-sig") as stream:
            while chunk := stream.read(size):
                held += chunk
                cut = held.rfind("\n") + 1
                if cut or len(held) >= 2 * size:
                    yield held[: cut or len(held)]
                    held = held[cut:] if cut else ""
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 text ({error.reason}); convert it, or give another file") from error
    if held:
        yield held
