"""Batches of text: tokenise documents and cut them into windows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from anisoscope.data.text_sources import TextDocuments, text_pieces
from anisoscope.data.token_table import Batch, group_consecutive, make_batch, require_positive, window_table
from anisoscope.errors import InputError


@dataclass(frozen=True)
class Encoder:
    """What is needed from a tokenizer: text to ids, the special tokens around a window, and how a text may be cut."""

    encode: Callable[[str], list[int]]
    prefix: list[int]
    suffix: list[int]
    specials: frozenset[int]
    pad: int
    keeps_space: bool  # a piece cut from a text before a space is tokenised with that space


@dataclass(frozen=True)
class Window:
    """One row of a batch: its document, the position of its first token, its ids, and which are special."""

    document: int
    start: int
    ids: list[int]
    special: list[bool]


@dataclass(frozen=True)
class TokenRows:
    """Rows of a tokenised dataset: mappings with `input_ids`, and maybe `attention_mask`; each is one document."""

    rows: Iterable[Mapping[str, Any]]


def text_batches(
    tokenizer: Any,
    documents: Iterable[str],
    *,
    window: int = 512,
    batch: int = 8,
    tokens: int | None = None,
    special: bool = True,
    decoder_start: int | None = None,
    vocabulary: int | None = None,
    padding: bool = True,
) -> Iterator[Batch]:
    """Cut documents into windows of tokens, padded on the right; no window spans two documents.

    Args:
        tokenizer: a tokenizer of transformers, or "bytes" to use the bytes of the text as ids.
        documents: the texts.
        window: longest window in tokens.
        batch: windows per batch.
        tokens: exact number of tokens to read in all; None for the whole text.
        special: whether to put the tokenizer's special tokens around every window.
        decoder_start: id of the decoder's start token. The decoder then gets the window shifted right by this id.
        vocabulary: rows of the model's embedding; larger ids raise an InputError.
        padding: False for models that take no mask: then only windows of equal length share a batch.
    """
    require_positive(window=window, batch=batch, tokens=tokens)
    encoder = make_encoder(tokenizer, special)
    size = window - len(encoder.prefix) - len(encoder.suffix)
    if size < 1:
        raise InputError(
            f"A window of {window} tokens cannot hold text and {window - size} special tokens. Make it larger."
        )
    unit = documents.unit if isinstance(documents, TextDocuments) else "documents"
    windows = _windows(encoder, documents, size, one_text=unit == "windows")
    if tokens is not None:
        windows = _first(windows, tokens, len(encoder.suffix))
    if vocabulary is not None:
        windows = _check_ids(windows, vocabulary, tokenizer)
    groups = group_consecutive(windows, batch, key=lambda w: 0 if padding else len(w.ids))
    return _require_tokens(_batch(group, encoder.pad, unit, decoder_start, mask=padding) for group in groups)


def token_batches(
    tokenizer: Any,
    source: TokenRows,
    *,
    window: int,
    batch: int = 8,
    tokens: int | None = None,
    decoder_start: int | None = None,
    vocabulary: int | None = None,
    padding: bool = True,
) -> Iterator[Batch]:
    """Batch rows of token ids, without what their masks leave out; the options are those of `text_batches`.

    Raises:
        InputError: A row is longer than the window, or an id is larger than the vocabulary.
    """
    require_positive(window=window, batch=batch, tokens=tokens)
    specials = frozenset(getattr(tokenizer, "all_special_ids", ()))
    pad = next((i for i in (getattr(tokenizer, n, None) for n in ("pad_token_id", "eos_token_id")) if i is not None), 0)
    windows: Iterable[Window] = _row_windows(source, window, specials)
    if tokens is not None:
        windows = _first(windows, tokens, 0)
    if vocabulary is not None:
        windows = _check_ids(windows, vocabulary, "" if tokenizer is None else tokenizer)
    groups = group_consecutive(windows, batch, key=lambda w: 0 if padding else len(w.ids))
    return _require_tokens(_batch(group, pad, "documents", decoder_start, mask=padding) for group in groups)


def _row_windows(source: TokenRows, window: int, specials: frozenset[int]) -> Iterator[Window]:
    for number, row in enumerate(source.rows):
        ids, mask = torch.as_tensor(row["input_ids"]), row.get("attention_mask")
        kept = (ids if mask is None else ids[torch.as_tensor(mask).bool()]).tolist()
        if len(kept) > window:
            raise InputError(
                f"Row {number + 1} has {len(kept):,} tokens; a window holds {window:,}. "
                "Use a larger window, or truncate the rows when you tokenise them."
            )
        if kept:
            yield Window(number, 0, kept, [token in specials for token in kept])


def make_encoder(tokenizer: Any, special: bool) -> Encoder:
    """Return what is needed from a tokenizer of transformers, or from "bytes"; `special` adds its special tokens."""
    if tokenizer is None:
        raise InputError(
            "The model has no tokenizer. Put its tokenizer.json into its folder, or pass one "
            '(tokenizer="bytes" if its vocabulary is bytes).'
        )
    if isinstance(tokenizer, str):
        if tokenizer != "bytes":
            raise InputError(f'Unknown tokenizer {tokenizer!r}. Pass a tokenizer object or "bytes".')
        return Encoder(lambda text: list(text.encode()), [], [], frozenset(), pad=0, keeps_space=True)

    def encode(text: str) -> list[int]:
        return list(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])

    prefix, suffix = _special_ids(encode("a"), list(tokenizer("a")["input_ids"])) if special else ([], [])
    pad = next((i for i in (tokenizer.pad_token_id, tokenizer.eos_token_id) if i is not None), 0)
    both = encode("one two")
    keeps_space = encode("one") + encode(" two") == both or encode("one") + encode("two") != both
    return Encoder(encode, prefix, suffix, frozenset(tokenizer.all_special_ids), pad, keeps_space)


def _special_ids(bare: list[int], framed: list[int]) -> tuple[list[int], list[int]]:
    """Find the ids that a tokenizer puts before and after a text, from the ids of a text without and with them."""
    for start in range(len(framed) - len(bare) + 1):
        if framed[start : start + len(bare)] == bare:
            return framed[:start], framed[start + len(bare) :]
    raise InputError("The tokenizer puts special tokens inside the text. Measure with special=False.")


def _windows(encoder: Encoder, documents: Iterable[str], size: int, *, one_text: bool) -> Iterator[Window]:
    if one_text:
        for number, ids in enumerate(_cut(_ids(encoder, documents), size)):
            yield _make_window(encoder, number, 0, ids)
        return
    for number, text in enumerate(documents):
        start = 0
        for ids in _cut(_ids(encoder, text_pieces([text])), size) if text.strip() else ():
            window = _make_window(encoder, number, start, ids)
            start += len(window.ids)
            yield window


def _ids(encoder: Encoder, pieces: Iterable[str]) -> Iterator[list[int]]:
    """Yield the ids of the pieces of one text, as if it were tokenised at once."""
    for number, piece in enumerate(pieces):
        yield encoder.encode(piece if number == 0 or encoder.keeps_space else piece.removeprefix(" "))


def _cut(lists: Iterable[list[int]], size: int) -> Iterator[list[int]]:
    """Yield a stream of ids in lists of `size`; the last one may be shorter."""
    pending: list[int] = []
    for ids in lists:
        pending += ids
        complete = len(pending) // size * size
        yield from (pending[i : i + size] for i in range(0, complete, size))
        pending = pending[complete:]
    if pending:
        yield pending


def _make_window(encoder: Encoder, document: int, start: int, ids: list[int]) -> Window:
    inner = [token in encoder.specials for token in ids]
    special = [True] * len(encoder.prefix) + inner + [True] * len(encoder.suffix)
    return Window(document, start, encoder.prefix + ids + encoder.suffix, special)


def _first(windows: Iterable[Window], tokens: int, suffix: int) -> Iterator[Window]:
    """Yield windows up to `tokens` tokens in all; the last one is shortened before its special tokens."""
    left = tokens
    for window in windows:
        surplus = len(window.ids) - left
        if surplus > 0:
            end = len(window.ids) - suffix if left > suffix else len(window.ids)
            cut = slice(end - surplus, end)
            window = Window(window.document, window.start, _without(window.ids, cut), _without(window.special, cut))
        yield window
        left -= len(window.ids)
        if left == 0:
            return


def _without(values: list[Any], part: slice) -> list[Any]:
    return values[: part.start] + values[part.stop :]


def _check_ids(windows: Iterable[Window], vocabulary: int, tokenizer: Any) -> Iterator[Window]:
    for window in windows:
        largest = max(window.ids)
        if largest >= vocabulary:
            name = "" if isinstance(tokenizer, str) else f" ({tokenizer.convert_ids_to_tokens(largest)!r})"
            raise InputError(
                f"The tokenizer gives id {largest}{name} but the model's embedding has {vocabulary} rows. "
                "Use the tokenizer that the model was trained with."
            )
        yield window


def _batch(windows: list[Window], pad: int, unit: str, decoder_start: int | None, *, mask: bool) -> Batch:
    b, T = len(windows), max(len(window.ids) for window in windows)
    ids = torch.full((b, T), pad)  # (b, T) int64
    special = torch.zeros(b, T, dtype=torch.bool)  # (b, T)
    for row, window in enumerate(windows):
        ids[row, : len(window.ids)] = torch.tensor(window.ids)
        special[row, : len(window.ids)] = torch.tensor(window.special)
    lengths = torch.tensor([len(window.ids) for window in windows])  # (b,)
    document = torch.tensor([window.document for window in windows])  # (b,)
    start = torch.tensor([window.start for window in windows])  # (b,)
    table = window_table(ids, lengths, document, start, special)
    inputs = {"input_ids": ids}
    if mask:
        inputs["attention_mask"] = table.counts.long()
    if decoder_start is None:
        return make_batch(table, inputs, unit)

    shifted = torch.cat([torch.full((b, 1), decoder_start), ids[:, :-1]], dim=1)  # (b, T)
    start_token = torch.ones(b, 1, dtype=torch.bool)  # (b, 1): the start token is special
    decoder = window_table(shifted, lengths, document, start, torch.cat([start_token, special[:, :-1]], dim=1))
    inputs["decoder_input_ids"] = shifted.masked_fill(~decoder.counts, pad)
    if mask:
        inputs["decoder_attention_mask"] = decoder.counts.long()
    return make_batch(table, inputs, unit, decoder)


def _require_tokens(batches: Iterator[Batch]) -> Iterator[Batch]:
    first = next(batches, None)
    if first is None:
        raise InputError("The text is empty: it has no tokens to measure. Use a longer text.")
    yield first
    yield from batches
