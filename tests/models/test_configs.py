"""Configurations that would run code or build absurd models are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from anisoscope.errors import InputError
from anisoscope.models.configs import require_safe_config
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
        ({"n_head": -2}, "n_head = -2"),
        ({"num_labels": 5 * 10**7}, "num_labels = 50,000,000"),
        ({"num_labels": 10**6}, "num_labels = 1,000,000"),
        ({"text_config": {"text_config": {"text_config": {}}}}, "nests a configuration"),
        ({"attention_types": [[["global", "local"], 10**9]]}, "attention_types = 1,000,000,000"),
        ({"depths": [2, 2_000_000]}, "depths = 2,000,000"),
        ({"num_hidden_groups": 10**6}, "num_hidden_groups = 1,000,000"),
        ({"vision_config": {"depth": 10**6}}, "depth = 1,000,000"),
        ({"num_experts": 10**6}, "num_experts = 1,000,000"),
        ({"num_channels": 10**9}, "num_channels = 1,000,000,000"),
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


def test_many_labels_are_accepted_if_a_stored_matrix_has_a_row_for_each(tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = made.gpt2_config(num_labels=200_000, n_embd=4, n_layer=1, pad_token_id=0)
    made.hf.GPT2ForSequenceClassification(config).save_pretrained(tmp_path)
    assert require_safe_config(tmp_path, [tmp_path / "model.safetensors"], trusted=False)
    made.change_json(tmp_path / "config.json", num_labels=200_001)
    with pytest.raises(InputError, match="num_labels = 200,001"):
        require_safe_config(tmp_path, [tmp_path / "model.safetensors"], trusted=False)


def test_large_numbers_that_size_nothing_are_accepted(gpt2: Path) -> None:
    made.change_json(gpt2 / "config.json", rope_theta=10**9, vision_feature_layer=-2)
    assert open_model(gpt2).info["model_type"] == "gpt2"
