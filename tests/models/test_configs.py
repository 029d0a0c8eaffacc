"""Configurations that would run code or build absurd models are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from anisoscope.errors import InputError
from anisoscope.models.open import open_model
from tests import model_folders as made


@pytest.mark.parametrize("name", ["attn_implementation", "_attn_implementation", "experts_implementation"])
def test_a_kernel_of_another_repository_is_refused(gpt2: Path, name: str) -> None:
    made.change_json(gpt2 / "config.json", **{name: "someone/kernel"})
    with pytest.raises(InputError, match=r"code of someone/kernel.*--trust-remote-code"):
        open_model(gpt2)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"n_layer": 10**9}, "n_layer = 1,000,000,000"),
        ({"n_embd": "x"}, "Cannot open"),
        ({"n_head": 0}, "Cannot open"),
        ({"n_embd": 24}, "other sizes than its config.json"),
        ({"n_positions": 10**8}, "n_positions = 100,000,000"),
        ({"vocab_size": 10**12}, "gpt2"),
        ({"architectures": [5]}, "Cannot open"),
        ({"quantization_config": 5}, "Cannot open"),
        ({"auto_map": 5}, "Cannot open"),
        ({"transformers_weights": "adapter_model.bin"}, "not a weights file of this folder"),
        ({"transformers_weights": "../x.safetensors"}, "not a weights file of this folder"),
    ],
)
def test_an_invalid_config_is_reported_in_one_line(gpt2: Path, values: dict[str, Any], message: str) -> None:
    made.change_json(gpt2 / "config.json", **values)
    with pytest.raises(InputError, match=message) as caught:
        open_model(gpt2)
    assert "\n" not in str(caught.value)


def test_a_config_that_is_nested_too_deeply_is_refused(gpt2: Path) -> None:
    (gpt2 / "config.json").write_text("[" * 200_000)
    with pytest.raises(InputError, match="nested too deeply"):
        open_model(gpt2)
