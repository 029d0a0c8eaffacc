"""GGUF files open as the model that was written; other files are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from anisoscope.data.batches import model_batches
from anisoscope.errors import InputError
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


def test_a_file_that_is_not_gguf_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.gguf").write_bytes(b"not this")
    with pytest.raises(InputError, match=r"x\.gguf is not a GGUF file"):
        open_model(tmp_path / "x.gguf")
    (tmp_path / "y.gguf").write_bytes(b"GGUF" + bytes(3))
    with pytest.raises(InputError, match=r"header of .*y\.gguf cannot be read"):
        open_model(tmp_path / "y.gguf")
    with pytest.raises(InputError, match=r"2 GGUF files\. Name one of x\.gguf, y\.gguf"):
        open_model(tmp_path)
