"""Only plain LoRA options reach PEFT; everything else in an adapter's configuration is refused by name."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from anisoscope.errors import InputError
from anisoscope.models.adapter_config import lora_options
from anisoscope.models.open import open_model
from tests import model_folders as made

RANKS = {"h.0.attn": 2, "h.1.attn": 4}


def save_adapter(folder: Path, base: Path, **options: Any) -> Any:
    """Save a LoRA adapter of a GPT-2 folder and return the adapted model."""
    import peft

    model = made.hf.GPT2LMHeadModel.from_pretrained(base)
    settings: dict[str, Any] = {
        "r": 2,
        "target_modules": ["c_attn"],
        "fan_in_fan_out": True,
        "init_lora_weights": False,
    } | options
    tuned = peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM", **settings)).eval()
    tuned.save_pretrained(str(folder))
    return tuned


@pytest.mark.parametrize(
    "options",
    [
        {"rank_pattern": {"h.1.attn.c_attn": 3}, "alpha_pattern": {"h.0.attn.c_attn": 5}, "use_rslora": True},
        {"target_modules": ".*attn.c_attn", "use_dora": True},
        {"target_modules": ["wte"], "fan_in_fan_out": False, "lora_alpha": 3},
        {"modules_to_save": ["ln_f"], "bias": "lora_only"},
        {"layers_to_transform": [1], "layers_pattern": "h"},
    ],
    ids=["patterns", "dora", "embedding", "saved-modules", "one-layer"],
)
def test_every_plain_lora_gives_the_output_of_the_model_it_was_saved_from(
    tmp_path: Path, gpt2: Path, options: dict[str, Any]
) -> None:
    tuned = save_adapter(tmp_path / "adapter", gpt2, **options)
    ids = torch.arange(12)[None]
    opened = open_model(tmp_path / "adapter", head=True)
    with torch.no_grad():
        assert torch.equal(opened.model(input_ids=ids).logits, tuned(input_ids=ids).logits)


def test_a_module_named_in_an_adapter_is_never_imported(tmp_path: Path, gpt2: Path) -> None:
    save_adapter(tmp_path / "adapter", gpt2)
    made.change_json(tmp_path / "adapter/adapter_config.json", megatron_config={"a": 1}, megatron_core="megatron.evil")
    (tmp_path / "megatron").mkdir()
    (tmp_path / "megatron/__init__.py").touch()
    (tmp_path / "megatron/evil.py").write_text("open('imported', 'w')\n")
    command = [sys.executable, "-m", "anisoscope", "measure", "adapter", "--weights"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert not (tmp_path / "imported").exists()
    assert result.returncode == 1
    assert "the entry 'megatron_config', which a plain LoRA does not" in " ".join(result.stderr.split())


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"megatron_core": "os"}, "'megatron_core'"),
        ({"arrow_config": {"top_k": 1}}, "'arrow_config'"),
        ({"layer_replication": [[0, 4]]}, "'layer_replication'"),
        ({"runtime_config": {"device": "meta"}}, "'runtime_config'"),
        ({"brand_new": 1}, "'brand_new'"),
        ({"r": 10**7}, "has rank 10000000, but its stored matrices have 2, 4"),
        ({"rank_pattern": {"h": 9}}, "has rank 9"),
        ({"rank_pattern": {"(a+)+$": 2}}, "rank_pattern = "),
        ({"r": "2"}, "r = '2', which no LoRA has"),
        ({"r": True}, "r = True"),
        ({"lora_alpha": float("inf")}, "lora_alpha = inf"),
        ({"lora_dropout": 1.0}, "lora_dropout = 1.0"),
        ({"bias": "some"}, "bias = 'some'"),
        ({"modules_to_save": ["../x"]}, "modules_to_save = "),
        ({"trainable_token_indices": [-1]}, "trainable_token_indices = "),
        ({"init_lora_weights": "pissa_niter_1000000000"}, "starts from 'pissa_niter_1000000000'"),
    ],
)
def test_what_a_plain_lora_does_not_need_is_refused_by_name(entries: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as error:
        lora_options({"r": 2, **entries}, RANKS, "mine")
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_regular_expressions_for_modules_are_replaced_by_the_stored_names() -> None:
    options = lora_options({"r": 2, "target_modules": "(a+)+$", "exclude_modules": "(b+)+$"}, RANKS, "mine")
    assert options == {"r": 2, "target_modules": ["h.0.attn", "h.1.attn"], "init_lora_weights": False}
