"""LoRA adapters are applied to their base model, or refused with the reason."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from anisoscope.errors import InputError
from anisoscope.models.open import open_model
from tests import model_folders as made
from tests.pickle_bomb import PickleBomb


def logits(model: Any, text: str = made.WORDS) -> torch.Tensor:
    ids = torch.tensor([made.byte_pairs()(text)["input_ids"][:48]])
    with torch.no_grad():
        output = model(input_ids=ids)
    found: torch.Tensor = output.logits if "logits" in output else output.last_hidden_state
    return found


@pytest.fixture
def adapter(tmp_path: Path, gpt2: Path) -> tuple[Path, Any]:
    """A LoRA adapter's folder and the model it was saved from."""
    import peft

    base = made.hf.GPT2LMHeadModel.from_pretrained(gpt2)
    options: dict[str, Any] = {"task_type": "CAUSAL_LM", "target_modules": ["c_attn"], "fan_in_fan_out": True}
    tuned = peft.get_peft_model(base, peft.LoraConfig(r=2, init_lora_weights=False, **options)).eval()
    tuned.save_pretrained(str(tmp_path / "adapter"))
    return tmp_path / "adapter", tuned


def test_an_adapter_is_applied_without_changing_its_base(adapter: tuple[Path, Any], gpt2: Path) -> None:
    folder, tuned = adapter
    opened = open_model(folder, head=True)
    assert torch.equal(logits(opened.model), logits(tuned))
    assert not torch.equal(logits(opened.model), logits(open_model(gpt2, head=True).model))
    states = opened.model.state_dict()
    stored = load_file(gpt2 / "model.safetensors")["transformer.h.0.attn.c_attn.weight"]
    assert torch.equal(states["transformer.h.0.attn.c_attn.base_layer.weight"], stored)
    assert opened.info["adapter"]["kind"] == "LORA"
    assert opened.processor is not None
    backbone = open_model(folder)
    assert (backbone.info["architecture"], backbone.info["head"]) == ("GPT2Model", False)
    assert torch.equal(logits(backbone.model), logits(tuned.get_base_model().transformer))


def test_a_base_in_the_folder_of_the_adapter_is_used(adapter: tuple[Path, Any], gpt2: Path) -> None:
    folder, tuned = adapter
    shutil.move(gpt2, folder / "base")
    made.change_json(folder / "adapter_config.json", base_model_name_or_path="base")
    assert torch.equal(logits(open_model(folder, head=True).model), logits(tuned))


def test_an_adapter_without_its_base_is_refused(adapter: tuple[Path, Any], gpt2: Path) -> None:
    folder, _ = adapter
    shutil.rmtree(gpt2)
    with pytest.raises(InputError, match=r"base model of the adapter .*adapter cannot be opened: No model at .*gpt2"):
        open_model(folder)
    made.change_json(folder / "adapter_config.json", base_model_name_or_path=None)
    with pytest.raises(InputError, match="does not name the base model"):
        open_model(folder)


def test_an_adapter_of_another_model_is_refused(adapter: tuple[Path, Any], tmp_path: Path) -> None:
    folder, _ = adapter
    other = made.gpt2(tmp_path / "other", n_layer=1)
    made.change_json(folder / "adapter_config.json", base_model_name_or_path=str(other))
    with pytest.raises(InputError, match=r"changes transformer\.h\.1\.attn\.c_attn and 0 more .*other does not"):
        open_model(folder)


def test_an_adapter_that_is_not_lora_is_refused(adapter: tuple[Path, Any]) -> None:
    folder, _ = adapter
    made.change_json(folder / "adapter_config.json", peft_type="PROMPT_TUNING")
    save_file({"prompt_embeddings": torch.zeros(4, 16)}, folder / "adapter_model.safetensors")
    with pytest.raises(InputError, match="PROMPT_TUNING adapter; only LoRA"):
        open_model(folder)


def test_the_pickle_of_an_adapter_next_to_a_decoy_is_not_opened(tmp_path: Path) -> None:
    folder = tmp_path / "adapter"
    folder.mkdir()
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "base_model_name_or_path": "gpt2"}))
    save_file({"a.lora_A.weight": torch.ones(1)}, folder / "model.safetensors")
    torch.save({"x": PickleBomb(tmp_path / "taken")}, folder / "adapter_model.bin")
    with pytest.raises(InputError, match="pickle"):
        open_model(folder)
    assert not (tmp_path / "taken").exists()


def test_lora_weights_under_the_name_of_another_kind_are_refused(adapter: tuple[Path, Any]) -> None:
    folder, _ = adapter
    made.change_json(folder / "adapter_config.json", peft_type="IA3")
    with pytest.raises(InputError, match="IA3 adapter; only LoRA"):
        open_model(folder)
