"""A text as token ids on disk: training windows, held-out windows, and baselines for the loss."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from anisoscope.errors import InputError, StoreError
from anisoscope.store.files import file_errors, parse_errors, read_json, replacing
from anisoscope.studies.lab.corpora import Text
from anisoscope.studies.lab.tokens import UNKNOWN, encode, load_tokenizer, make_tokenizer, save_tokenizer

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_HELD_OUT = 0.1  # of the text, for validation
_CHUNK = 1 << 20  # tokens counted at a time
_HEAD, _TRAIN, _VALIDATION = "data.json", "train.bin", "validation.bin"
HELD_OUT_TEXT = "held-out.jsonl"  # the held-out documents as text, for `measure`

Ids = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Data:
    """The token ids of a text in a folder; files are memory-mapped."""

    folder: Path
    tokenizer: Tokenizer
    train: Ids  # (tokens,) uint8, uint16 or uint32
    validation: Ids
    info: dict[str, Any]

    @property
    def vocabulary(self) -> int:
        """The number of tokens of the tokenizer."""
        return int(self.tokenizer.get_vocab_size())

    @property
    def mask_id(self) -> int:
        """The id of the mask token."""
        return self.vocabulary - 1  # it was added last

    def windows(self, batch: int, context: int, *seed: int) -> Tensor:
        """Return training windows (batch, context), a function of the seeds alone, so that any step can be repeated."""
        starts = np.random.default_rng(seed).integers(0, len(self.train) - context + 1, batch)
        return _windows(self.train, starts, context)

    def spread_windows(self, number: int, context: int) -> Tensor:
        """Return training windows (≤ number, context), evenly spaced and without overlap, always the same."""
        windows = len(self.train) // context
        chosen = np.linspace(0, windows, min(number, windows), endpoint=False).astype(np.int64)
        return _windows(self.train, chosen * context, context)

    def held_out(self, batch: int, context: int) -> Tensor:
        """Return validation windows (≤ batch, context), evenly spaced, without overlap, always the same.

        A window that also occurs in the training text (a line of dashes, a licence) tests nothing, so the next window
        that does not occur there is used.
        """
        windows = len(self.validation) // context
        slots = np.linspace(0, windows, min(batch, windows) + 1).round().astype(np.int64)  # in windows
        known, size = self.train.tobytes(), self.train.itemsize
        fresh = [
            next(
                (index for index in range(low, high) if not _contains(known, self._window(index, context), size)), None
            )
            for low, high in pairwise(slots.tolist())
        ]
        chosen = [index for index in fresh if index is not None]
        return _windows(self.validation, np.array(chosen or slots[:-1]) * context, context)

    def _window(self, index: int, context: int) -> bytes:
        return self.validation[index * context : (index + 1) * context].tobytes()

    @cached_property
    def baselines(self) -> dict[str, float]:
        """The validation loss in nats per token of unigram and bigram counts."""
        return {"unigram": unigram_loss(self), "bigram": bigram_loss(self)}


def prepare(text: Text, folder: Path, *, tokens: str = "char", symbols: int | None = None, context: int = 1) -> Data:
    """Tokenise a text into a folder, or open the folder if it already holds the same text.

    A tenth of the text, in whole documents, is held out for validation; the tokenizer sees only the rest.

    Args:
        text: The text.
        folder: Where the tokens are stored.
        tokens: Kind of tokenizer: `char`, `byte` or `bpe`.
        symbols: Largest number of tokens of the tokenizer.
        context: Length of a window; both parts of the text must hold at least one.

    Raises:
        InputError: The folder holds another text, or the text is too short.
    """
    source = {"text": text.name, "tokens": tokens, "symbols": symbols, "digest": _digest(text)}
    if (folder / _HEAD).is_file():
        data = open_data(folder)
        if {name: data.info.get(name) for name in source} != source:
            raise InputError(f"{folder} holds another text, {data.info['text']}. Choose another folder.")
        return _long_enough(data, context)
    tokenizer = make_tokenizer(tokens, (document for held_out, document in _split(text) if not held_out), symbols)
    with file_errors("create", folder):
        folder.mkdir(parents=True, exist_ok=True)
        save_tokenizer(tokenizer, folder)
    info = source | _write(text, tokenizer, folder)
    with file_errors("write", folder / _HEAD), replacing(folder / _HEAD) as temporary:  # last: it marks completion
        temporary.write_text(json.dumps(info, indent=2) + "\n")
    return _long_enough(open_data(folder), context)


def open_data(folder: Path) -> Data:
    """Open a folder that `prepare` has filled.

    Raises:
        StoreError: The folder is damaged.
    """
    with (
        file_errors("read", folder),
        parse_errors(folder, "delete it, and the text is tokenised again", StoreError),
    ):
        info = dict(read_json(folder / _HEAD))
        tokenizer = load_tokenizer(folder)
        dtype = _dtype(tokenizer)
        train, validation = (_mapped(folder / name, dtype) for name in (_TRAIN, _VALIDATION))
    return Data(folder, tokenizer, train, validation, info)


# --- baselines ----------------------------------------------------------------------------------------------------


def unigram_loss(data: Data) -> float:
    """Return −mean ln p(b) over the validation text; p are training frequencies with one extra count per token."""
    return float(-np.log(unigram_law(data)[data.validation]).mean())


def bigram_loss(data: Data) -> float:
    """Return −mean ln p(b | a) over the pairs of the validation text, p(b | a) = (n_ab + t_a·p(b)) / (n_a + t_a).

    n_ab counts the pair in the training text; t_a is the number of different tokens after a (Witten and Bell).
    """
    size, p = data.vocabulary, unigram_law(data)
    pairs, together = _pair_counts(data)  # (distinct pairs,) each
    alone = np.bincount(pairs // size, together, minlength=size)  # n_a
    followers = np.bincount(pairs // size, minlength=size)  # t_a
    wanted = _pairs(data.validation, size)
    index = np.searchsorted(pairs, wanted).clip(max=len(pairs) - 1)
    n_ab = np.where(pairs[index] == wanted, together[index], 0)
    a, b = wanted // size, wanted % size
    weight = np.maximum(followers[a], 1)  # after a token without followers, plain frequencies are used
    return float(-np.log((n_ab + weight * p[b]) / (alone[a] + weight)).mean())


def _pair_counts(data: Data) -> tuple[Ids, Ids]:
    """The distinct pairs of the training text, as sorted a·size + b, and their counts."""
    pairs: Ids = np.zeros(0, np.int64)
    counts: Ids = np.zeros(0)
    for chunk in _chunks(data.train):
        new, times = np.unique(_pairs(chunk, data.vocabulary), return_counts=True)
        pairs, index = np.unique(np.concatenate((pairs, new)), return_inverse=True)
        counts = np.bincount(index, np.concatenate((counts, times)))
    return pairs, counts


def unigram_law(data: Data) -> Ids:
    """Return the frequency p(b) of each token in the training text, with one extra count per token: (tokens,)."""
    counts = _counts(data) + 1
    return counts / counts.sum()


def bigram_law(data: Data) -> Ids:
    """Return p(b | a) as `bigram_loss` uses it, for all pairs: (tokens, tokens) with a in the rows."""
    size, p = data.vocabulary, unigram_law(data)
    pairs, together = _pair_counts(data)
    n_ab = np.zeros((size, size))
    n_ab[pairs // size, pairs % size] = together
    weight = np.maximum((n_ab > 0).sum(1, keepdims=True), 1)  # t_a
    return (n_ab + weight * p) / (n_ab.sum(1, keepdims=True) + weight)


def _counts(data: Data) -> Ids:
    chunks = (np.bincount(chunk, minlength=data.vocabulary) for chunk in _chunks(data.train, overlap=0))
    return np.sum(list(chunks), axis=0)


def _pairs(ids: Ids, size: int) -> Ids:
    return ids[:-1].astype(np.int64) * size + ids[1:]


def _chunks(ids: Ids, overlap: int = 1) -> Iterator[Ids]:
    """Parts of a long array that overlap by one, so that no pair is lost."""
    for start in range(0, max(1, len(ids) - overlap), _CHUNK):
        yield ids[start : start + _CHUNK + overlap]


# --- files --------------------------------------------------------------------------------------------------------


def _split(text: Text) -> Iterator[tuple[bool, str]]:
    """Each document, and whether it is held out: it is if the held-out share so far stays within the limit."""
    total = kept = 0
    for document in text:
        total += len(document)
        held_out = kept + len(document) <= _HELD_OUT * total
        kept += len(document) * held_out
        yield held_out, document


def _write(text: Text, tokenizer: Tokenizer, folder: Path) -> dict[str, int]:
    """Write the ids of both parts and the held-out text, one document at a time; return the numbers of tokens."""
    dtype, unknown_id = _dtype(tokenizer), tokenizer.token_to_id(UNKNOWN)
    counts = {"train": 0, "validation": 0, "unknown": 0}
    with file_errors("write", folder), ExitStack() as stack:
        temporary = [stack.enter_context(replacing(folder / name)) for name in (_TRAIN, _VALIDATION, HELD_OUT_TEXT)]
        *files, documents = (stack.enter_context(path.open("wb")) for path in temporary)
        for held_out, document in _split(text):
            ids = np.array(encode(tokenizer, document), dtype=dtype)
            ids.tofile(files[held_out])
            counts["validation" if held_out else "train"] += len(ids)
            counts["unknown"] += int((ids == unknown_id).sum())
            if held_out:
                documents.write(json.dumps({"text": document}).encode() + b"\n")
    return counts


def _long_enough(data: Data, context: int) -> Data:
    for name, ids in (("training", data.train), ("validation", data.validation)):
        if len(ids) < context + 1:
            raise InputError(
                f"{data.info['text']} has {len(ids):,} {name} tokens, fewer than one context of {context}. "
                "Give a longer text or a smaller context."
            )
    return data


def _digest(text: Text) -> str:
    digest = hashlib.sha256()
    for document in text:
        digest.update(document.encode("utf-8", "surrogatepass"))
        digest.update(b"\0")
    return digest.hexdigest()[:16]


def _dtype(tokenizer: Tokenizer) -> np.dtype[Any]:
    return np.dtype(np.min_scalar_type(tokenizer.get_vocab_size()))


def _mapped(path: Path, dtype: np.dtype[Any]) -> Ids:
    with file_errors("read", path):
        if not path.stat().st_size:
            return np.zeros(0, dtype)
        return np.memmap(path, dtype, mode="r")


def _contains(text: bytes, part: bytes, size: int) -> bool:
    """Whether `part` occurs in `text` at the start of an id of `size` bytes."""
    position = text.find(part)
    while position >= 0 and position % size:
        position = text.find(part, position + 1)
    return position >= 0


def _windows(ids: Ids, starts: Ids, context: int) -> Tensor:
    return torch.from_numpy(np.stack([ids[start : start + context] for start in starts]).astype(np.int64))
