"""Errors of other libraries become one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from anisoscope.errors import InputError
from anisoscope.models.open import open_model
from tests import model_folders as made


def test_an_unknown_architecture_is_reported_in_one_line(gpt2: Path) -> None:
    made.change_json(gpt2 / "config.json", model_type="gtp9")
    with pytest.raises(InputError, match=r"Cannot open .*gtp9") as caught:
        open_model(gpt2)
    assert "\n" not in str(caught.value)


def test_a_model_that_needs_its_own_code_names_the_option(gpt2: Path) -> None:
    (gpt2 / "own.py").write_text("raise SystemExit('this ran')")
    made.change_json(gpt2 / "config.json", model_type="own", auto_map={"AutoConfig": "own.Config"})
    with pytest.raises(InputError, match=r"trust_remote_code=True \(--trust-remote-code\)"):
        open_model(gpt2)


def test_too_little_memory_is_reported_in_one_line(gpt2: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for error in (
        torch.OutOfMemoryError("CUDA out of memory"),
        RuntimeError("can't allocate memory: 1 TB"),
        MemoryError(),
    ):

        def fail(*args: Any, error: BaseException = error, **options: Any) -> None:
            raise error

        monkeypatch.setattr(made.hf.GPT2Model, "from_pretrained", fail)
        with pytest.raises(InputError, match=r"Not enough memory to open .*device_map"):
            open_model(gpt2)
