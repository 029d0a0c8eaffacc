"""Text into batches: where documents come from, how they are tokenised and cut into windows."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path
from typing import Any, TextIO

import torch

from anisoscope.data.token_table import Batch, require_positive, runs, window_table, with_inputs
from anisoscope.errors import InputError, first_line
from anisoscope.models.sources import files_in
from anisoscope.store.files import given_path, near_paths, parse_json, understood

# A long text is tokenised in pieces of this many characters: enough that the tokenizer's overhead per call is
# nothing, little enough that a file of any size streams.
PIECE = 1 << 16

# Between two letters a single space is a token boundary for every common pre-tokenizer; a newline or a second space
# may belong to the token before it.
_SAFE_CUT = re.compile(r"(?<=[^\W\d_]) (?=[^\W\d_])")

# A row of a table is read whole: beyond this it is no text for a model, and would fill the memory.
_LONGEST_LINE = 1 << 26  # characters

_PLAIN = (".txt", ".md")
_ROWS = (".jsonl", ".parquet")


@dataclass(frozen=True)
class TextDocuments:
    """Texts that are read when iterated; `are` is "documents", or "windows" for the pieces of one unmarked text."""

    read: Callable[[], Iterator[str]]
    are: str = "documents"

    def __iter__(self) -> Iterator[str]:
        return self.read()


@dataclass(frozen=True)
class Encoder:
    """What is needed of a tokenizer: text to ids, the special tokens around a window, and how a text may be cut."""

    encode: Callable[[str], list[int]]
    prefix: list[int]
    suffix: list[int]
    specials: frozenset[int]
    pad: int
    keeps_space: bool  # a piece cut from a text before a space is tokenised with that space


@dataclass(frozen=True)
class Window:
    """One row of a batch: its document, the position of its first token there, its ids, and which are special."""

    document: int
    start: int
    ids: list[int]
    special: list[bool]


def text_documents(
    source: str | Path | Iterable[str], *, field: str | None = None, mark: str | None = None
) -> TextDocuments:
    """The documents of a source, read lazily.

    A list of strings: each is a document. A folder: each .txt and .md file, each row of each .jsonl and .parquet file,
    in the order of their paths. file.jsonl, file.parquet, datasets:name[:config[:split]]: the `field` ("text") of each
    row. Any other file, or "-" for standard input: the texts between `mark`s; without a mark it is one text, and every
    window cut from it is a document of its own (`are` says "windows").

    >>> list(text_documents(["one", "two"]))
    ['one', 'two']
    """
    if not isinstance(source, str | Path):
        return TextDocuments(lambda: iter(source))
    if str(source) == "-":
        return _stdin_documents(field, mark)
    if str(source).startswith("datasets:"):
        return TextDocuments(lambda: _dataset_rows(str(source), field or "text"))
    path = given_path(source)
    if path.is_dir():
        files = files_in(path, _PLAIN + _ROWS)
        if len(files) > 1:
            return TextDocuments(lambda: chain.from_iterable(_file_documents(file, field, mark) for file in files))
        path = files[0]
    if not path.is_file():
        known = "a file, a folder, - or datasets:NAME, in Python also a list of texts"
        raise InputError(f"no text at {path}{near_paths(path)}; give {known}")
    if field is not None and path.suffix.lower() not in _ROWS:
        raise InputError(f"{path} is plain text without fields; leave out the field ({field!r}), or give .jsonl")
    if path.suffix.lower() in _ROWS or mark is not None:
        return TextDocuments(lambda: _file_documents(path, field, mark))
    return TextDocuments(lambda: text_pieces(_chunks(path)), are="windows")


def text_size(source: str | Path | Iterable[str]) -> int | None:
    """How many bytes a source of text holds, where that can be told without reading it.

    >>> text_size(["one", "three"])
    8
    """
    if isinstance(source, list | tuple):
        return sum(map(len, source))
    if not isinstance(source, str | Path) or str(source) == "-" or str(source).startswith("datasets:"):
        return None
    path = given_path(source)
    files = files_in(path, _PLAIN + _ROWS) if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files if file.is_file())


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
    """Windows of at most `window` tokens, `batch` at a time, padded on the right; no window spans two documents.

    `tokens` bounds the number of counted tokens exactly; `special` puts the tokenizer's special tokens around every
    window; `decoder_start` adds the decoder's side (the window shifted right behind that id); ids that reach
    `vocabulary`, the rows of the model's embedding, are an error; without `padding`, for models that take no mask,
    only windows of equal length share a batch. `tokenizer` may be "bytes": the ids are the bytes of the text.
    """
    require_positive(window=window, batch=batch, tokens=tokens)
    encoder = _encoder(tokenizer, special)
    room = window - len(encoder.prefix) - len(encoder.suffix)
    if room < 1:
        raise InputError(f"window {window} has no room for text beside {window - room} special tokens; make it larger")
    are = documents.are if isinstance(documents, TextDocuments) else "documents"
    windows = _windows(encoder, documents, room, one_text=are == "windows")
    if tokens is not None:
        windows = _first(windows, tokens, len(encoder.suffix))
    if vocabulary is not None:
        windows = _checked(windows, vocabulary, tokenizer)
    groups = runs(windows, batch, key=lambda w: 0 if padding else len(w.ids))
    return _not_empty(_batch(group, encoder.pad, are, decoder_start, mask=padding) for group in groups)


def text_pieces(chunks: Iterable[str], size: int = PIECE) -> Iterator[str]:
    """A text in pieces of about `size` characters, cut before a space between two letters.

    There, cutting does not change the tokens (see `Encoder.keeps_space`). A text without such a space within `size`
    characters is cut after `size`, where it may.

    >>> list(text_pieces(["one two three"], size=9))
    ['one two', ' three']
    """
    held = ""
    for chunk in chunks:
        held += chunk
        start = 0  # what stands before it was given out; cutting that off each time would copy a long text every time
        while len(held) - start > size:
            piece = held[start : start + size + 1]
            cut = max((m.start() for m in _SAFE_CUT.finditer(piece)), default=size)
            yield piece[:cut]
            start += cut
        held = held[start:]
    if held:
        yield held


def _stdin_documents(field: str | None, mark: str | None) -> TextDocuments:
    if field is not None:
        return TextDocuments(lambda: _json_rows(sys.stdin, "standard input", field))
    if mark is not None:
        return TextDocuments(lambda: _between(_stream_chunks(sys.stdin, "standard input"), mark))
    return TextDocuments(lambda: text_pieces(_stream_chunks(sys.stdin, "standard input")), are="windows")


def _file_documents(path: Path, field: str | None, mark: str | None) -> Iterator[str]:
    """The documents of one file by its suffix."""
    if path.suffix.lower() == ".parquet":
        yield from _parquet_rows(path, field or "text")
    elif path.suffix.lower() == ".jsonl":
        with path.open(encoding="utf-8-sig") as lines:
            yield from _json_rows(lines, str(path), field or "text")
    elif mark is not None:
        yield from _between(_chunks(path), mark)
    else:
        yield "".join(_chunks(path))


def _chunks(path: Path) -> Iterator[str]:
    with path.open(encoding="utf-8-sig") as stream:
        yield from _stream_chunks(stream, str(path))


def _stream_chunks(stream: TextIO, name: str) -> Iterator[str]:
    try:
        while chunk := stream.read(PIECE):
            yield chunk
    except UnicodeDecodeError as error:
        raise InputError(f"{name} is not UTF-8 text ({error.reason}); convert it, or give another file") from error


def _between(chunks: Iterable[str], mark: str) -> Iterator[str]:
    """The texts between marks, without the line breaks around them."""
    if not mark:
        raise InputError("the document mark is empty; give the string that stands between two documents")
    held: list[str] = []  # joined when a document ends: a long one would be copied with every chunk
    edge = ""  # the end of what is held, in which a mark may begin
    for chunk in chunks:
        *whole, rest = (edge + chunk).split(mark)
        if whole:
            yield "".join([*held, whole[0]]).strip("\n")
            yield from (text.strip("\n") for text in whole[1:])
            held = []
        cut = max(0, len(rest) - len(mark) + 1)
        held.append(rest[:cut])
        edge = rest[cut:]
    yield "".join([*held, edge]).strip("\n")


def _json_rows(lines: TextIO, name: str, field: str) -> Iterator[str]:
    for number in count(1):
        try:
            line = lines.readline(_LONGEST_LINE + 1)
            if len(line) > _LONGEST_LINE:
                raise ValueError(f"it has more than {_LONGEST_LINE:,} characters")
            row = parse_json(line) if line.strip() else None
        except ValueError as error:  # bytes that are no text are one too
            raise InputError(
                f"{name}, line {number} is not JSON ({first_line(error)}); mend or remove the line"
            ) from error
        if not line:
            return
        if line.strip():
            yield _text_of(row, field, f"{name}, line {number}")


def _text_of(row: Any, field: str, where: str) -> str:
    if not isinstance(row, dict) or not isinstance(row.get(field), str):
        seen = f"fields {', '.join(map(str, row))}" if isinstance(row, dict) else type(row).__name__
        raise InputError(f"{where} has no text in field {field!r} (it has {seen}); name the field that holds the text")
    # JSON can carry halves of surrogate pairs, which no tokenizer accepts.
    return str(row[field]).encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _parquet_rows(path: Path, field: str) -> Iterator[str]:
    import pyarrow.parquet

    with understood(path, "give another file"):
        schema = pyarrow.parquet.read_schema(path)
        if field not in schema.names:
            raise InputError(f"{path} has no column {field!r}; its columns are {', '.join(schema.names)}")
        if not _is_text(kind := schema.field(field).type):
            raise InputError(f"{path}: column {field!r} holds {kind}, not text; name the column that holds the text")
        # As a dictionary, each text is unpacked once: a small file may repeat a large one a million times.
        options: dict[str, Any] = {"read_dictionary": [field], "pre_buffer": False, "buffer_size": 1 << 20}
        with pyarrow.parquet.ParquetFile(path, **options) as table:
            for rows in table.iter_batches(columns=[field], batch_size=1024, use_threads=False):
                yield from (text for value in rows.column(0) if (text := value.as_py()))


def _is_text(kind: Any) -> bool:
    from pyarrow import types

    # pandas saves its categories as a dictionary of texts
    kind = kind.value_type if types.is_dictionary(kind) else kind
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_null(kind))


def _dataset_rows(source: str, field: str) -> Iterator[str]:
    try:
        datasets = importlib.import_module("datasets")
    except ImportError as error:
        raise InputError(f"{source} needs the datasets package: pip install datasets") from error
    name, config, split = (*source.removeprefix("datasets:").split(":"), "", "")[:3]
    try:
        rows = datasets.load_dataset(name, config or None, split=split or "train", streaming=True)
    except Exception as error:  # the hub client raises dozens of kinds here; the user needs one line
        raise InputError(f"cannot open {source}: {first_line(error)}; check the name and the network") from error
    for number, row in enumerate(rows):
        yield _text_of(row, field, f"{source}, row {number}")


def _encoder(tokenizer: Any, special: bool) -> Encoder:
    if tokenizer is None:
        raise InputError(
            "the model has no tokenizer; put its tokenizer.json into its folder, or give one "
            '(tokenizer="bytes" if its vocabulary is bytes)'
        )
    if isinstance(tokenizer, str):
        if tokenizer != "bytes":
            raise InputError(f'tokenizer {tokenizer!r} is not known; give a tokenizer object or "bytes"')
        return Encoder(lambda text: list(text.encode()), [], [], frozenset(), pad=0, keeps_space=True)

    def encode(text: str) -> list[int]:
        return list(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])

    prefix, suffix = _frame(encode("a"), list(tokenizer("a")["input_ids"])) if special else ([], [])
    pad = next((i for i in (tokenizer.pad_token_id, tokenizer.eos_token_id) if i is not None), 0)
    whole = encode("one two")
    keeps_space = encode("one") + encode(" two") == whole or encode("one") + encode("two") != whole
    return Encoder(encode, prefix, suffix, frozenset(tokenizer.all_special_ids), pad, keeps_space)


def _frame(bare: list[int], framed: list[int]) -> tuple[list[int], list[int]]:
    """The special ids that a tokenizer puts before and after a text, from one text without and with them."""
    for start in range(len(framed) - len(bare) + 1):
        if framed[start : start + len(bare)] == bare:
            return framed[:start], framed[start + len(bare) :]
    raise InputError("the tokenizer's special tokens do not stand around its text; measure with special=False")


def _windows(encoder: Encoder, documents: Iterable[str], room: int, *, one_text: bool) -> Iterator[Window]:
    if one_text:
        for number, ids in enumerate(_cut(_ids(encoder, documents), room)):
            yield _framed(encoder, number, 0, ids)
        return
    for number, text in enumerate(documents):
        start = 0
        for ids in _cut(_ids(encoder, text_pieces([text])), room) if text.strip() else ():
            window = _framed(encoder, number, start, ids)
            start += len(window.ids)
            yield window


def _ids(encoder: Encoder, pieces: Iterable[str]) -> Iterator[list[int]]:
    """The ids of the pieces of one text, as if it were tokenised whole."""
    for number, piece in enumerate(pieces):
        yield encoder.encode(piece if number == 0 or encoder.keeps_space else piece.removeprefix(" "))


def _cut(lists: Iterable[list[int]], size: int) -> Iterator[list[int]]:
    """A stream of ids in lists of `size`, the last one shorter."""
    held: list[int] = []
    for ids in lists:
        held += ids
        whole = len(held) // size * size
        yield from (held[i : i + size] for i in range(0, whole, size))
        held = held[whole:]
    if held:
        yield held


def _framed(encoder: Encoder, document: int, start: int, ids: list[int]) -> Window:
    inner = [token in encoder.specials for token in ids]
    special = [True] * len(encoder.prefix) + inner + [True] * len(encoder.suffix)
    return Window(document, start, encoder.prefix + ids + encoder.suffix, special)


def _first(windows: Iterable[Window], tokens: int, suffix: int) -> Iterator[Window]:
    """The windows up to `tokens` tokens in all; the last is shortened before its suffix where it has one."""
    left = tokens
    for window in windows:
        surplus = len(window.ids) - left
        if surplus > 0:
            end = len(window.ids) - suffix if left > suffix else len(window.ids)
            kept = slice(end - surplus, end)
            window = Window(window.document, window.start, _without(window.ids, kept), _without(window.special, kept))
        yield window
        left -= len(window.ids)
        if left == 0:
            return


def _without(values: list[Any], part: slice) -> list[Any]:
    return values[: part.start] + values[part.stop :]


def _checked(windows: Iterable[Window], vocabulary: int, tokenizer: Any) -> Iterator[Window]:
    for window in windows:
        largest = max(window.ids)
        if largest >= vocabulary:
            name = "" if isinstance(tokenizer, str) else f" ({tokenizer.convert_ids_to_tokens(largest)!r})"
            raise InputError(
                f"the tokenizer gives id {largest}{name} but the model's embedding has {vocabulary} rows; "
                "they do not belong together: give the tokenizer that the model was trained with"
            )
        yield window


def _batch(windows: list[Window], pad: int, are: str, decoder_start: int | None, *, mask: bool) -> Batch:
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
        return with_inputs(table, inputs, are)

    shifted = torch.cat([torch.full((b, 1), decoder_start), ids[:, :-1]], dim=1)  # (b, T)
    opening = torch.ones(b, 1, dtype=torch.bool)  # (b, 1): the start token is special
    decoder = window_table(shifted, lengths, document, start, torch.cat([opening, special[:, :-1]], dim=1))
    inputs["decoder_input_ids"] = shifted.masked_fill(~decoder.counts, pad)
    if mask:
        inputs["decoder_attention_mask"] = decoder.counts.long()
    return with_inputs(table, inputs, are, decoder)


def _not_empty(batches: Iterator[Batch]) -> Iterator[Batch]:
    first = next(batches, None)
    if first is None:
        raise InputError("the text is empty: it has no tokens to measure; give a text with some words in it")
    yield first
    yield from batches
