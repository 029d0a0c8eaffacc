"""Texts to train on: an embedded one, any file, enwik8, and synthetic ones with a known frequency law."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from anisoscope.data.sample_text import help_topics
from anisoscope.errors import InputError
from anisoscope.store.files import similar_paths, user_path
from anisoscope.studies.lab.docstrings import docstrings
from anisoscope.studies.lab.enwik8 import articles

EMBEDDED = "topics"
DOCSTRINGS = "docstrings"
_PIECE = 1 << 14  # characters per document of a plain text file
_PIECES = 20  # documents of a short file, at least
_ZIPF_LETTER = 0x4E00  # token k of a synthetic text is this character plus k: each token one letter, none of them ASCII


@dataclass(frozen=True)
class Text:
    """A text as a sequence of documents, read again on each iteration."""

    name: str
    read: Callable[[], Iterator[str]]

    def __iter__(self) -> Iterator[str]:
        return self.read()


def open_text(source: str | Path) -> Text:
    """Open a text by name.

    Args:
        source: `topics` (embedded), `docstrings` (of installed packages),
            `zipf` or `zipf:exponent=1.2,vocabulary=500`, `enwik8:PATH`, or a text file.

    Raises:
        InputError: There is no such file, or an option of `zipf` is wrong.

    >>> len(list(open_text("topics"))) > 50
    True
    """
    name, _, rest = str(source).partition(":")
    if str(source) == EMBEDDED:
        return embedded_text()
    if str(source) == DOCSTRINGS:
        return docstring_text()
    if name == "zipf":
        return zipf_text(**_numbers(rest))
    path = user_path(rest if name == "enwik8" else source)
    if not path.is_file():
        known = (
            f"{EMBEDDED} (embedded), {DOCSTRINGS} (of installed packages), zipf:exponent=1, enwik8:PATH or a text file"
        )
        raise InputError(f"No text at {path}{similar_paths(path)}. Give {known}.")
    if name == "enwik8":
        return Text(str(source), lambda: articles(path))
    return Text(str(path), lambda: _pieces(path))


def embedded_text() -> Text:
    """Return Python's help topics, one document each: English prose with code, without a download."""
    return Text(EMBEDDED, help_topics)


def docstring_text() -> Text:
    """Return the docstrings of installed packages, joined to documents of one file or more: technical English.

    The packages are dependencies of anisoscope, so the text is there without a download. Python's help topics are not
    part of it, so they can serve as another text.
    """
    return Text(DOCSTRINGS, lambda: _joined(each.text for each in docstrings()))


def _joined(texts: Iterable[str]) -> Iterator[str]:
    held: list[str] = []
    for text in texts:
        held.append(text)
        if sum(map(len, held)) >= _PIECE:
            yield "\n\n".join(held)
            held = []
    if held:
        yield "\n\n".join(held)


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
    """Return sequences with known token frequencies: p_k ∝ k^−exponent, k = 1 … vocabulary.

    Copying does not change the frequencies, and gives attention something to learn: `zipf_entropy` is the loss of a
    perfect model.

    Args:
        exponent: Exponent of the law.
        vocabulary: Number of different tokens.
        copy: Probability that a token repeats the one `lag` positions before; otherwise it is drawn from the law.
        lag: Distance of the copied token.
        length: Total number of tokens.
        seed: Seed of the draws.
    """
    if not (1 < vocabulary <= 1 << 20 and 0 <= copy < 1 and 1 <= lag <= length <= 1 << 40):
        raise InputError("zipf needs 1 < vocabulary ≤ 2^20, copy in [0, 1) and 1 ≤ lag ≤ length ≤ 2^40.")
    if not (abs(exponent) <= 100 and 0 <= seed < 1 << 63):
        raise InputError("zipf needs an exponent from -100 to 100 and a seed from 0 to 2^63 - 1.")
    vocabulary, lag, length = int(vocabulary), int(lag), int(length)
    name = f"zipf:exponent={exponent:g},vocabulary={vocabulary},copy={copy:g},lag={lag},length={length},seed={seed:g}"
    size = max(lag, min(_PIECE, length // _PIECES))  # tokens per document

    def read() -> Iterator[str]:
        law = zipf_law(vocabulary, exponent)
        rows = -(-size // lag)
        for number in range(-(-length // size)):
            random = np.random.default_rng([int(seed), number])
            ids = random.choice(vocabulary, (rows, lag), p=law)  # the token that may be copied is one row above
            fresh = random.random((rows, lag)) >= copy
            fresh[0] = True
            source = np.maximum.accumulate(np.where(fresh, np.arange(rows)[:, None], 0), axis=0)
            copied = np.take_along_axis(ids, source, axis=0).ravel()
            yield "".join(map(chr, copied[:size] + _ZIPF_LETTER))

    return Text(name, read)


def zipf_law(vocabulary: int, exponent: float) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Return the probabilities p_k ∝ k^−exponent.

    >>> zipf_law(3, 1.0).round(3).tolist()
    [0.545, 0.273, 0.182]
    """
    weight = np.arange(1, vocabulary + 1, dtype=np.float64) ** -exponent
    return weight / weight.sum()


def zipf_entropy(vocabulary: int, exponent: float, copy: float) -> float:
    """Return the entropy of a token given the one `lag` positions before, in nats: the loss of a perfect model.

    After the earlier token a, token b has probability copy·[a = b] + (1 − copy)·p_b.
    """
    p = zipf_law(vocabulary, exponent)
    fresh, repeated = (1 - copy) * p, copy + (1 - copy) * p
    surprise = -fresh * np.log(fresh)
    return float((p * (surprise.sum() - surprise - repeated * np.log(repeated))).sum())


def _numbers(text: str) -> dict[str, Any]:
    """`exponent=1.2,vocabulary=500` as numbers by name."""
    known = ("exponent", "vocabulary", "copy", "lag", "length", "seed")
    numbers: dict[str, Any] = {}
    for part in filter(None, text.split(",")):
        name, _, value = part.partition("=")
        try:
            numbers[name] = float(value)
        except ValueError:
            name = ""
        if name not in known:
            raise InputError(
                f"zipf has no option {part!r}. Give some of {', '.join(f'{k}=' for k in known)} with a number."
            )
    return numbers


# --- files --------------------------------------------------------------------------------------------------------


def _pieces(path: Path) -> Iterator[str]:
    """A text file in pieces that end with a line, unless lines are very long."""
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
        raise InputError(f"{path} is not UTF-8 text ({error.reason}). Convert it, or give another file.") from error
    if held:
        yield held
