"""The class of a model fits its weights; its own code runs only if allowed."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from anisoscope.errors import AnisoscopeError, InputError
from anisoscope.models.open import open_model
from tests import model_folders as made


def logits(model: Any, text: str = made.WORDS) -> torch.Tensor:
    ids = torch.tensor([made.byte_pairs()(text)["input_ids"][:48]])
    with torch.no_grad():
        output = model(input_ids=ids)
    found: torch.Tensor = output.logits if "logits" in output else output.last_hidden_state
    return found


def test_a_head_is_loaded_only_if_the_checkpoint_has_one(tmp_path: Path) -> None:
    with_head = made.save(tmp_path / "masked", made.hf.BertForMaskedLM(made.bert_config()), made.word_pieces())
    without = made.save(tmp_path / "plain", made.hf.BertModel(made.bert_config()), made.word_pieces())
    assert [open_model(with_head, head=head).info["architecture"] for head in (True, False)] == [
        "BertForMaskedLM",
        "BertModel",
    ]
    opened = open_model(without, head=True)
    assert (opened.info["architecture"], opened.info["head"]) == ("BertModel", False)


def test_a_head_tied_to_the_embedding_needs_no_weights(tmp_path: Path) -> None:
    backbone = made.save(tmp_path / "backbone", made.hf.GPT2Model(made.gpt2_config()), made.byte_pairs())
    assert open_model(backbone, head=True).info["architecture"] == "GPT2LMHeadModel"


def test_missing_weights_are_named(tmp_path: Path) -> None:
    pooled = made.hf.BertModel(made.bert_config(), add_pooling_layer=False)
    info = open_model(made.save(tmp_path / "bert", pooled, made.word_pieces())).info
    assert info["random_weights"] == ["pooler.dense.bias", "pooler.dense.weight"]


def test_the_encoder_of_an_encoder_decoder_opens_alone(tmp_path: Path) -> None:
    half = made.save(tmp_path / "half", made.hf.T5EncoderModel(made.t5_config()), made.sentence_pieces())
    for head in (False, True):
        info = open_model(half, head=head).info
        assert (info["architecture"], info["head"]) == ("T5EncoderModel", False)


def test_weights_of_another_model_are_refused(gpt2: Path, tmp_path: Path) -> None:
    other = made.save(tmp_path / "bert", made.hf.BertModel(made.bert_config()))
    shutil.copy(other / "model.safetensors", gpt2 / "model.safetensors")
    with pytest.raises(InputError, match=r"do not fit its config\.json"):
        open_model(gpt2)


CODE_OF_A_MODEL = """
import os
from transformers import GPT2Config, GPT2LMHeadModel
os.mkdir({taken!r})
class Config(GPT2Config):
    model_type = "own"
class Model(GPT2LMHeadModel):
    config_class = Config
class Tokenizer: pass
"""


def with_code(folder: Path, taken: Path) -> Path:
    (folder / "own.py").write_text(CODE_OF_A_MODEL.format(taken=str(taken)))
    names = {"AutoConfig": "own.Config", "AutoModel": "own.Model", "AutoModelForCausalLM": "own.Model"}
    made.change_json(folder / "config.json", model_type="own", auto_map=names, architectures=["Model"])
    return folder


def test_code_of_a_model_runs_only_if_allowed(gpt2: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    with_code(gpt2, tmp_path / "taken")
    for head in (False, True):
        with pytest.raises(InputError, match=r"trust_remote_code=True \(--trust-remote-code\)"):
            open_model(gpt2, head=head)
    assert not (tmp_path / "taken").exists()
    with suppress(AnisoscopeError):
        open_model(gpt2, trust_remote_code=True)
    assert (tmp_path / "taken").exists()


def test_code_of_a_tokenizer_does_not_run_either(gpt2: Path, tmp_path: Path) -> None:
    (gpt2 / "own.py").write_text(CODE_OF_A_MODEL.format(taken=str(tmp_path / "taken")))
    names = {"AutoTokenizer": ["own.Tokenizer", None]}
    made.change_json(gpt2 / "tokenizer_config.json", tokenizer_class="Tokenizer", auto_map=names)
    with suppress(AnisoscopeError):
        open_model(gpt2)
    assert not (tmp_path / "taken").exists()
