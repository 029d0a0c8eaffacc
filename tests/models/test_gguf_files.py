"""GGUF files open as the model that was written; other files are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from transformers import AutoTokenizer

from anisoscope.data.batches import model_batches
from anisoscope.errors import InputError
from anisoscope.models.gguf_files import read_once
from anisoscope.models.open import open_model
from tests import model_folders as made


def logits(model: Any, text: str = made.WORDS) -> torch.Tensor:
    ids = torch.tensor([made.byte_pairs()(text)["input_ids"][:48]])
    with torch.no_grad():
        output = model(input_ids=ids)
    found: torch.Tensor = output.logits if "logits" in output else output.last_hidden_state
    return found


def test_a_gguf_file_opens_as_the_model_that_was_written(tmp_path: Path) -> None:
    written = made.llama_gguf(tmp_path / "tiny.gguf")
    for source in (tmp_path / "tiny.gguf", tmp_path):  # a folder with one GGUF file stands for it
        opened = open_model(source, head=True)
        assert torch.equal(logits(opened.model), logits(written))
    assert opened.info["quantization"] == "F32"
    (batch, *_) = model_batches(opened, [made.WORDS])
    assert batch.token[0, :20].tolist() == made.byte_pairs()(made.WORDS)["input_ids"][:20]
    assert open_model(tmp_path).info["architecture"] == "LlamaModel"


@pytest.mark.parametrize("begins_texts", [False, True])
def test_the_token_that_begins_texts_is_used_if_the_header_asks_for_it(tmp_path: Path, begins_texts: bool) -> None:
    made.llama_gguf(tmp_path / "tiny.gguf", begins_texts=begins_texts)
    opened = open_model(tmp_path / "tiny.gguf")
    (batch, *_) = model_batches(opened, [made.WORDS])
    assert (batch.token[0, 0] == 0) == begins_texts
    assert not (batch.token[0, 1:] == 0).any()
    assert opened.processor is not None
    opened.processor.save_pretrained(tmp_path / "copy")  # untrained twins get a copy
    assert AutoTokenizer.from_pretrained(tmp_path / "copy")("a")["input_ids"] == opened.processor("a")["input_ids"]


def test_a_file_that_is_not_gguf_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.gguf").write_bytes(b"not this")
    with pytest.raises(InputError, match=r"x\.gguf is not a GGUF file"):
        open_model(tmp_path / "x.gguf")
    (tmp_path / "y.gguf").write_bytes(b"GGUF" + bytes(3))
    with pytest.raises(InputError, match=r"header of .*y\.gguf cannot be read"):
        open_model(tmp_path / "y.gguf")
    with pytest.raises(InputError, match=r"2 GGUF files\. Name one of x\.gguf, y\.gguf"):
        open_model(tmp_path)


def test_a_gguf_file_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made.llama_gguf(tmp_path / "tiny.gguf")
    maps, built = gguf.get_tensor_name_map, gguf.GGUFReader.__init__
    reads, calls = [], []

    def read(self: Any, path: Any, *mode: Any) -> None:
        reads.append(path)
        built(self, path, *mode)

    def name_map(*of: Any) -> Any:
        calls.append(of)
        return maps(*of)

    monkeypatch.setattr(gguf.GGUFReader, "__init__", read)
    monkeypatch.setattr(gguf, "get_tensor_name_map", name_map)
    reader = gguf.GGUFReader
    opened = open_model(tmp_path / "tiny.gguf", head=True)
    assert len(reads) == 1
    assert len(calls) == len(set(calls))
    assert gguf.GGUFReader is reader, "the library is changed only while it opens this file"
    assert opened.processor is not None


def test_the_plain_reader_reads_what_the_library_reads(tmp_path: Path) -> None:
    made.llama_gguf(tmp_path / "tiny.gguf")
    slow = gguf.GGUFReader(tmp_path / "tiny.gguf")
    with read_once(tmp_path / "tiny.gguf"):
        fast = gguf.GGUFReader(tmp_path / "tiny.gguf")
    assert list(fast.fields) == list(slow.fields)
    for name, field in slow.fields.items():
        same = [np.array_equal(a, b) for a, b in zip(fast.fields[name].parts, field.parts, strict=True)]
        assert all(same), name
    for one, other in zip(fast.tensors, slow.tensors, strict=True):
        assert one.name == other.name
        assert np.array_equal(one.data, other.data)
