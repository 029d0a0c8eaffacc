"""Tokenizers of the lab: characters, bytes or byte-pair merges, in the format of the tokenizers library."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from anisoscope.errors import InputError, unknown
from anisoscope.extras import needs

with needs("hf", "the lab"):
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

KINDS = ("char", "byte", "bpe")
MASK, UNKNOWN = "[MASK]", "[UNK]"
_BPE = 1024  # tokens of a bpe tokenizer by default
_CHUNK = 1 << 12  # characters: the library is slower on long strings than on many short ones


def make_tokenizer(kind: str, documents: Iterable[str], symbols: int | None = None) -> Tokenizer:
    """Make a tokenizer from documents.

    Args:
        kind: `char`: the characters of the documents, most frequent first; `byte`: the 256 bytes, id = value;
            `bpe`: merges of bytes, learnt from the documents.
        documents: The training text.
        symbols: Largest number of tokens, without [UNK] and [MASK], which come last.

    Raises:
        InputError: The kind is unknown, or `symbols` is too small for it.
    """
    if kind not in KINDS:
        raise unknown("tokenizer", kind, KINDS)
    if symbols is not None and symbols < (2 if kind == "char" else 256):
        raise InputError(f"A {kind} tokenizer needs more than {symbols} tokens. Give a larger number of symbols.")
    if kind == "char":
        tokenizer = _characters(documents, symbols)
    else:
        tokenizer = _bytes()
        if kind == "bpe":
            tokenizer = _merged(documents, symbols or _BPE)
    tokenizer.add_special_tokens([AddedToken(UNKNOWN), AddedToken(MASK)])
    return tokenizer


def encode(tokenizer: Tokenizer, text: str) -> list[int]:
    """Return the ids of a text. Without merges it is encoded in short pieces, which is faster."""
    merges = isinstance(tokenizer.model, models.BPE) and tokenizer.get_vocab_size() > 258
    parts = [text] if merges else [text[i : i + _CHUNK] for i in range(0, len(text), _CHUNK)]
    return [i for part in tokenizer.encode_batch_fast(parts, add_special_tokens=False) for i in part.ids]


def save_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """Write tokenizer.json, and what transformers needs to open it."""
    tokenizer.save(str(folder / "tokenizer.json"))
    options = {"tokenizer_class": "PreTrainedTokenizerFast", "mask_token": MASK, "unk_token": UNKNOWN}
    (folder / "tokenizer_config.json").write_text(json.dumps(options, indent=2) + "\n")


def load_tokenizer(folder: Path) -> Tokenizer:
    """Read tokenizer.json."""
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


def _characters(documents: Iterable[str], symbols: int | None) -> Tokenizer:
    counts: Counter[str] = Counter()
    for document in documents:
        counts.update(document)
    # by frequency, then by code, so that equal counts do not depend on the order of reading
    letters = sorted(counts, key=lambda letter: (-counts[letter], letter))[:symbols]
    ids = {letter: number for number, letter in enumerate([*letters, UNKNOWN])}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return tokenizer


def _bytes() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE({letter: byte for byte, letter in enumerate(_byte_letters())}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _merged(documents: Iterable[str], symbols: int) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=symbols, initial_alphabet=list(_byte_letters()), show_progress=False, special_tokens=[]
    )
    tokenizer.train_from_iterator(documents, trainer)
    return tokenizer


def _byte_letters() -> Iterator[str]:
    """The visible letter of each byte from 0 to 255 in byte-level tokenizers; their library gives them unordered."""
    spare = 256
    for byte in range(256):
        if 33 <= byte <= 126 or 161 <= byte <= 172 or byte >= 174:
            yield chr(byte)
        else:
            yield chr(spare)
            spare += 1
