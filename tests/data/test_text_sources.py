"""Documents are read from every source; what is wrong with a text is reported in one line."""

from __future__ import annotations

import io
import json
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from anisoscope.data.text_sources import text_documents, text_pieces
from anisoscope.errors import InputError
from tests import model_folders as made


def test_pieces_do_not_depend_on_how_the_file_was_read() -> None:
    text = made.WORDS * 3
    chunks = [text[i : i + 7] for i in range(0, len(text), 7)]
    assert "".join(text_pieces(chunks, 50)) == text
    assert max(map(len, text_pieces(chunks, 50))) <= 50


def test_a_text_without_spaces_is_cut_too() -> None:
    assert list(text_pieces(["x" * 25], 10)) == ["x" * 10, "x" * 10, "x" * 5]


def test_a_folder_gives_one_document_per_file_sorted_by_path(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "x.md").write_text("third")
    (tmp_path / "a.txt").write_text("first")
    (tmp_path / "a2.jsonl").write_text('{"text": "second"}\n\n')
    (tmp_path / "ignored.bin").write_bytes(b"\x00")
    (tmp_path / ".hidden.txt").write_text("hidden")
    documents = text_documents(tmp_path)
    assert list(documents) == ["first", "second", "third"]
    assert documents.unit == "documents"


def test_a_folder_of_one_text_is_that_text(tmp_path: Path) -> None:
    (tmp_path / "only.txt").write_text(made.WORDS)
    assert text_documents(tmp_path).unit == "windows"


def test_marks_separate_documents_for_every_chunk_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "marked.txt"
    file.write_text("one\n<doc>\ntwo\nlines\n<doc>\nthree")
    for size in (1, 4, 1000):
        monkeypatch.setattr("anisoscope.data.text_sources.PIECE", size)
        assert list(text_documents(file, mark="<doc>")) == ["one", "two\nlines", "three"]
    assert text_documents(file, mark="<doc>").unit == "documents"


def test_standard_input_can_be_a_text_marked_texts_or_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    def piped(text: str) -> None:
        monkeypatch.setattr(sys, "stdin", io.StringIO(text))

    piped("plain text")
    assert list(text_documents("-")) == ["plain text"]
    assert text_documents("-").unit == "windows"
    piped("one\ftwo")
    assert list(text_documents("-", mark="\f")) == ["one", "two"]
    piped('{"body": "row"}\n')
    assert list(text_documents("-", field="body")) == ["row"]


def test_rows_of_jsonl_and_parquet_are_documents(tmp_path: Path) -> None:
    import pandas as pd

    texts = ["first", "second \ud83d", "dritter Text"]
    (tmp_path / "rows.jsonl").write_text("\n".join(json.dumps({"body": text}) for text in texts))
    pd.DataFrame({"body": ["first", None, "last"], "other": [1, 2, 3]}).to_parquet(tmp_path / "rows.parquet")
    assert list(text_documents(tmp_path / "rows.jsonl", field="body")) == ["first", "second \ufffd", "dritter Text"]
    assert list(text_documents(tmp_path / "rows.parquet", field="body")) == ["first", "last"]
    with pytest.raises(InputError, match=r"no column 'text'\. Its columns are body, other"):
        list(text_documents(tmp_path / "rows.parquet"))


def test_a_dataset_is_streamed_by_its_id(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}

    def load_dataset(name: str, config: str | None, **options: Any) -> list[dict[str, str]]:
        asked.update(name=name, config=config, **options)
        return [{"text": "row one"}, {"text": "row two"}]

    fake: Any = types.ModuleType("datasets")
    fake.load_dataset = load_dataset
    monkeypatch.setitem(sys.modules, "datasets", fake)
    assert list(text_documents("datasets:org/wiki:small:test")) == ["row one", "row two"]
    assert asked == {"name": "org/wiki", "config": "small", "split": "test", "streaming": True}
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(InputError, match="pip install datasets"):
        list(text_documents("datasets:org/wiki"))


def test_an_invalid_line_is_named_by_its_number(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text('{"text": "fine"}\n{"text": "brok\n')
    with pytest.raises(InputError, match=r"rows\.jsonl, line 2 is not JSON"):
        list(text_documents(file))
    file.write_text('{"text": "fine"}\n{"body": "no text"}\n')
    with pytest.raises(InputError, match=r"line 2 has no text in field 'text' \(it has fields body\)"):
        list(text_documents(file))


def test_a_file_that_is_not_utf8_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "latin.txt"
    file.write_bytes("naïve".encode("latin-1"))
    with pytest.raises(InputError, match=r"latin\.txt is not UTF-8"):
        list(text_documents(file))


def test_a_missing_text_suggests_similar_paths(tmp_path: Path) -> None:
    (tmp_path / "corpus.txt").write_text("words")
    with pytest.raises(InputError, match=r"(?i)did you mean .*corpus\.txt"):
        text_documents(tmp_path / "corpsu.txt")
    with pytest.raises(InputError, match=r"has no \.txt"):
        text_documents(_made(tmp_path / "empty"))


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def test_control_characters_are_text(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes("a\0b \u202e c \ufeff".encode())
    assert "".join(text_documents(tmp_path / "a.txt")) == "a\0b \u202e c \ufeff"


class Counted(str):
    """A text that counts how much of it is copied."""

    copied = 0

    def __getitem__(self, part: object) -> str:
        found = super().__getitem__(part)  # type: ignore[index]
        Counted.copied += len(found)
        return Counted(found)

    def __radd__(self, other: str) -> str:
        return Counted(str(other) + str(self))


def test_a_long_text_is_cut_without_repeated_copies() -> None:
    text = Counted("word " * 20_000)
    assert "".join(text_pieces([text], size=100)) == text
    assert Counted.copied < 5 * len(text)


def test_marks_are_found_wherever_chunks_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "one<|>two<|><|>four" + "x" * 50 + "<|>five<|"
    (tmp_path / "a.txt").write_text(text)
    for size in (1, 2, 3, 7, 1000):
        monkeypatch.setattr("anisoscope.data.text_sources.PIECE", size)
        assert list(text_documents(tmp_path / "a.txt", mark="<|>")) == text.split("<|>")
