"""Read text: the documents of files, folders, datasets and standard input."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path
from typing import Any, TextIO

from anisoscope.data.sample_text import SAMPLE, sample_documents
from anisoscope.errors import InputError, first_line
from anisoscope.extras import needs
from anisoscope.models.sources import files_in
from anisoscope.store.files import parse_errors, parse_json, similar_paths, user_path

# A long text is tokenised in pieces of this many characters: enough to hide the tokenizer's overhead per call, and
# few enough that a file of any size can be streamed.
PIECE = 1 << 16

# Between two letters a single space is a token boundary for every common pre-tokenizer; a newline or a second space
# may belong to the token before it.
_SAFE_CUT = re.compile(r"(?<=[^\W\d_]) (?=[^\W\d_])")

# A row of a table is read at once. A longer one is not a text for a model and would fill the memory.
_MAX_LINE = 1 << 26  # characters

_TEXT_SUFFIXES = (".txt", ".md")
_TABLE_SUFFIXES = (".jsonl", ".parquet")


@dataclass(frozen=True)
class TextDocuments:
    """Texts that are read when iterated.

    Attributes:
        read: starts a new pass over the texts.
        unit: "documents", or "windows" if the texts are pieces of a single text without document marks.
    """

    read: Callable[[], Iterator[str]]
    unit: str = "documents"

    def __iter__(self) -> Iterator[str]:
        return self.read()


def text_documents(
    source: str | Path | Iterable[str], *, field: str | None = None, mark: str | None = None
) -> TextDocuments:
    """Return the documents of a source; they are read when iterated.

    Args:
        source: one of
            - a list of strings, each a document;
            - a folder: each .txt and .md file, and each row of each .jsonl and .parquet file, sorted by path;
            - `sample:topics`: the beginnings of Python's help topics, which come with Python;
            - file.jsonl, file.parquet or datasets:name[:config[:split]]: the `field` of each row;
            - any other file, or "-" for standard input: the texts between `mark`s. Without a mark it is one text, and
              each window cut from it counts as a document (`unit` is "windows").
        field: name of the field or column that holds the text, "text" by default.
        mark: string that separates two documents in a plain text.

    Raises:
        InputError: if the source does not exist, or its options do not fit it.

    >>> list(text_documents(["one", "two"]))
    ['one', 'two']
    """
    if not isinstance(source, str | Path):
        return TextDocuments(lambda: iter(source))
    if str(source) == "-":
        return _stdin_documents(field, mark)
    if str(source) == SAMPLE:
        return TextDocuments(sample_documents)
    if str(source).startswith("datasets:"):
        return TextDocuments(lambda: _dataset_rows(str(source), field or "text"))
    path = user_path(source)
    if path.is_dir():
        files = files_in(path, _TEXT_SUFFIXES + _TABLE_SUFFIXES)
        if len(files) > 1:
            return TextDocuments(lambda: chain.from_iterable(_file_documents(file, field, mark) for file in files))
        path = files[0]
    if not path.is_file():
        options = f"a file, a folder, -, {SAMPLE} or datasets:NAME (in Python also a list of texts)"
        raise InputError(f"No text at {path}{similar_paths(path)}. Use {options}.")
    if field is not None and path.suffix.lower() not in _TABLE_SUFFIXES:
        raise InputError(f"{path} is plain text without fields. Leave out the field ({field!r}), or use a .jsonl file.")
    if path.suffix.lower() in _TABLE_SUFFIXES or mark is not None:
        return TextDocuments(lambda: _file_documents(path, field, mark))
    return TextDocuments(lambda: text_pieces(_chunks(path)), unit="windows")


def text_size(source: str | Path | Iterable[str]) -> int | None:
    """Return the size of a source of text in bytes, or None if that is unknown without reading it.

    >>> text_size(["one", "three"])
    8
    """
    if isinstance(source, list | tuple):
        return sum(map(len, source))
    if str(source) == SAMPLE:
        return sum(map(len, sample_documents()))
    if not isinstance(source, str | Path) or str(source) == "-" or str(source).startswith("datasets:"):
        return None
    path = user_path(source)
    files = files_in(path, _TEXT_SUFFIXES + _TABLE_SUFFIXES) if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files if file.is_file())


def text_pieces(chunks: Iterable[str], size: int = PIECE) -> Iterator[str]:
    """Cut a text into pieces of at most `size` characters, before a space between two letters.

    Cutting there does not change the tokens (see `Encoder.keeps_space`). If there is no such space within `size`
    characters, the piece is cut after `size` characters, which may change them.

    >>> list(text_pieces(["one two three"], size=9))
    ['one two', ' three']
    """
    pending = ""
    for chunk in chunks:
        pending += chunk
        start = 0  # an index instead of slicing `pending`, which would copy a long text for every piece
        while len(pending) - start > size:
            piece = pending[start : start + size + 1]
            cut = max((m.start() for m in _SAFE_CUT.finditer(piece)), default=size)
            yield piece[:cut]
            start += cut
        pending = pending[start:]
    if pending:
        yield pending


def _stdin_documents(field: str | None, mark: str | None) -> TextDocuments:
    if field is not None:
        return TextDocuments(lambda: _json_rows(sys.stdin, "standard input", field))
    if mark is not None:
        return TextDocuments(lambda: _between(_stream_chunks(sys.stdin, "standard input"), mark))
    return TextDocuments(lambda: text_pieces(_stream_chunks(sys.stdin, "standard input")), unit="windows")


def _file_documents(path: Path, field: str | None, mark: str | None) -> Iterator[str]:
    """Yield the documents of one file, according to its suffix."""
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
        raise InputError(f"{name} is not UTF-8 text ({error.reason}). Convert it, or use another file.") from error


def _between(chunks: Iterable[str], mark: str) -> Iterator[str]:
    """Yield the texts between marks, without the line breaks around them."""
    if not mark:
        raise InputError("The document mark is empty. Use the string that separates two documents.")
    parts: list[str] = []  # joined when a document ends; adding strings would copy a long one for every chunk
    edge = ""  # the end of the text so far, in which a mark may begin
    for chunk in chunks:
        *complete, rest = (edge + chunk).split(mark)
        if complete:
            yield "".join([*parts, complete[0]]).strip("\n")
            yield from (text.strip("\n") for text in complete[1:])
            parts = []
        cut = max(0, len(rest) - len(mark) + 1)
        parts.append(rest[:cut])
        edge = rest[cut:]
    yield "".join([*parts, edge]).strip("\n")


def _json_rows(lines: TextIO, name: str, field: str) -> Iterator[str]:
    for number in count(1):
        try:
            line = lines.readline(_MAX_LINE + 1)
            if len(line) > _MAX_LINE:
                raise ValueError(f"it has more than {_MAX_LINE:,} characters")
            row = parse_json(line) if line.strip() else None
        except ValueError as error:  # includes UnicodeDecodeError
            raise InputError(
                f"{name}, line {number} is not JSON ({first_line(error)}). Fix or remove the line."
            ) from error
        if not line:
            return
        if line.strip():
            yield _text_of(row, field, f"{name}, line {number}")


def _text_of(row: Any, field: str, label: str) -> str:
    if not isinstance(row, dict) or not isinstance(row.get(field), str):
        actual = f"fields {', '.join(map(str, row))}" if isinstance(row, dict) else type(row).__name__
        raise InputError(
            f"{label} has no text in field {field!r} (it has {actual}). Name the field that holds the text."
        )
    # JSON can contain halves of surrogate pairs, which no tokenizer accepts.
    return str(row[field]).encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _parquet_rows(path: Path, field: str) -> Iterator[str]:
    import pyarrow.parquet

    with parse_errors(path, "use another file"):
        schema = pyarrow.parquet.read_schema(path)
        if field not in schema.names:
            raise InputError(f"{path} has no column {field!r}. Its columns are {', '.join(schema.names)}.")
        if not _is_text(kind := schema.field(field).type):
            raise InputError(f"{path}: column {field!r} holds {kind}, not text. Name the column that holds the text.")
        # As a dictionary, each text is decoded once: a small file may repeat a large text a million times.
        options: dict[str, Any] = {"read_dictionary": [field], "pre_buffer": False, "buffer_size": 1 << 20}
        with pyarrow.parquet.ParquetFile(path, **options) as table:
            for rows in table.iter_batches(columns=[field], batch_size=1024, use_threads=False):
                yield from (text for value in rows.column(0) if (text := value.as_py()))


def _is_text(kind: Any) -> bool:
    from pyarrow import types

    # pandas saves categories as a dictionary of texts
    kind = kind.value_type if types.is_dictionary(kind) else kind
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_null(kind))


def _dataset_rows(source: str, field: str) -> Iterator[str]:
    with needs("datasets", f"reading {source}"):
        datasets = importlib.import_module("datasets")
    name, config, split = (*source.removeprefix("datasets:").split(":"), "", "")[:3]
    try:
        rows = datasets.load_dataset(name, config or None, split=split or "train", streaming=True)
    except Exception as error:  # the hub client raises many kinds of errors
        raise InputError(f"Cannot open {source}: {first_line(error)}. Check the name and the network.") from error
    for number, row in enumerate(rows):
        yield _text_of(row, field, f"{source}, row {number}")
