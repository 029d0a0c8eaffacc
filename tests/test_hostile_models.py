"""Models from strangers: no code of theirs runs unasked, and no file of theirs crashes, hangs or fills the memory."""

from __future__ import annotations

import json
import os
import shutil
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from safetensors.torch import load_file, save_file

from anisoscope.data.vectors import open_vectors
from anisoscope.errors import AnisoscopeError, InputError, StoreError
from anisoscope.models.checkpoints import checkpoints
from anisoscope.models.open import open_model
from anisoscope.models.weight_files import stored_tensors, weights_problem
from anisoscope.studies.lab.experiment import Experiment, changed
from anisoscope.studies.lab.train import resume_training, train
from anisoscope.studies.lab.training_state import load_state
from tests import model_folders as made
from tests.damage import LONG, SHORT, damages


class Bomb:
    """Unpickling it makes a file."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.file),)


@pytest.fixture
def gpt2(tmp_path: Path) -> Path:
    return made.gpt2(tmp_path / "gpt2")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lab") / "run"
    switches = {"layers": 1, "width": 8, "heads": 2, "context": 16, "steps": 2, "batch": 2}
    train(changed(Experiment(), switches), folder)
    return folder


# Pickles.


def test_the_bomb_goes_off_where_a_pickle_is_trusted(tmp_path: Path) -> None:
    """Or the tests below would prove nothing."""
    torch.save(Bomb(tmp_path / "taken"), tmp_path / "bomb.pt")
    torch.load(tmp_path / "bomb.pt", weights_only=False)
    assert (tmp_path / "taken").exists()


@pytest.mark.parametrize("name", ["bomb.pt", "bomb.bin", "bomb.pth"])
def test_a_file_of_vectors_never_runs_code(tmp_path: Path, name: str) -> None:
    torch.save({"x": torch.ones(3, 2), "y": Bomb(tmp_path / "taken")}, tmp_path / name)
    with pytest.raises(InputError, match="run code"):
        open_vectors(tmp_path / name)
    assert not (tmp_path / "taken").exists()


@pytest.mark.parametrize("allowed", [False, True])
def test_a_folder_with_a_pickle_never_runs_code(gpt2: Path, tmp_path: Path, allowed: bool) -> None:
    """Even where pickles are allowed only tensors are read from them."""
    torch.save({"x": Bomb(tmp_path / "taken")}, gpt2 / "pytorch_model.bin")
    (gpt2 / "model.safetensors").unlink()
    with pytest.raises(InputError):
        open_model(gpt2, allow_pickle=allowed)
    assert not (tmp_path / "taken").exists()


def test_a_pickle_beside_a_decoy_is_not_opened(gpt2: Path) -> None:
    """A safetensors file of another name makes the folder look safe, while transformers would take the pickle."""
    made.as_pickle(gpt2)
    save_file({"x": torch.ones(1)}, gpt2 / "model-00001-of-00002.safetensors")
    with pytest.raises(InputError, match=r"model\.safetensors"):
        open_model(gpt2)


def test_an_adapter_s_pickle_beside_a_decoy_is_not_opened(tmp_path: Path) -> None:
    folder = tmp_path / "adapter"
    folder.mkdir()
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "base_model_name_or_path": "gpt2"}))
    save_file({"a.lora_A.weight": torch.ones(1)}, folder / "model.safetensors")
    torch.save({"x": Bomb(tmp_path / "taken")}, folder / "adapter_model.bin")
    with pytest.raises(InputError, match="pickle"):
        open_model(folder)
    assert not (tmp_path / "taken").exists()


def test_an_index_may_not_name_a_pickle_or_leave_its_folder(gpt2: Path) -> None:
    made.as_pickle(gpt2)
    for name in ("pytorch_model.bin", "../../x/model.safetensors", "/etc/model.safetensors", "..", "x.safetensors"):
        (gpt2 / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": name}}))
        save_file({"x": torch.ones(1)}, gpt2 / "model-00001-of-00001.safetensors")
        with pytest.raises(InputError, match="no safetensors file of this folder"):
            open_model(gpt2)
        assert "no safetensors file of this folder" in str(weights_problem(gpt2))


def test_the_state_of_a_training_never_runs_code(trained: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    torch.save({"step": 1, "model": Bomb(tmp_path / "taken")}, run / "state.pt")
    with pytest.raises(StoreError, match="run code"):
        resume_training(run)
    assert not (tmp_path / "taken").exists()


@pytest.mark.parametrize("state", [[], {}, {"step": 1}, {"step": "x", "model": {}}, torch.ones(2)])
def test_a_state_that_is_none_is_one_line(trained: Path, tmp_path: Path, state: Any) -> None:
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    torch.save(state, run / "state.pt")
    with pytest.raises(StoreError, match=r"state\.pt"):
        resume_training(run)


# A model's own code.

OWN = """
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
    (folder / "own.py").write_text(OWN.format(taken=str(taken)))
    names = {"AutoConfig": "own.Config", "AutoModel": "own.Model", "AutoModelForCausalLM": "own.Model"}
    made.change_json(folder / "config.json", model_type="own", auto_map=names, architectures=["Model"])
    return folder


def test_code_of_a_model_runs_only_when_asked(gpt2: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    (gpt2 / "own.py").write_text(OWN.format(taken=str(tmp_path / "taken")))
    names = {"AutoTokenizer": ["own.Tokenizer", None]}
    made.change_json(gpt2 / "tokenizer_config.json", tokenizer_class="Tokenizer", auto_map=names)
    with suppress(AnisoscopeError):
        open_model(gpt2)
    assert not (tmp_path / "taken").exists()


@pytest.mark.parametrize("name", ["attn_implementation", "_attn_implementation", "experts_implementation"])
def test_a_kernel_from_elsewhere_is_code_too(gpt2: Path, name: str) -> None:
    made.change_json(gpt2 / "config.json", **{name: "someone/kernel"})
    with pytest.raises(InputError, match=r"code of someone/kernel.*--trust-remote-code"):
        open_model(gpt2)


# Configurations and weights that claim too much, or are nonsense.


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"n_layer": 10**9}, "n_layer 1,000,000,000"),
        ({"n_embd": "x"}, "cannot open"),
        ({"n_head": 0}, "cannot open"),
        ({"n_embd": 24}, "other sizes than its config.json"),
        ({"n_positions": 10**8}, "n_positions 100,000,000"),
        ({"vocab_size": 10**12}, "gpt2"),
        ({"architectures": [5]}, "cannot open"),
        ({"quantization_config": 5}, "cannot open"),
        ({"auto_map": 5}, "cannot open"),
        ({"transformers_weights": "adapter_model.bin"}, "no weights file of this folder"),
        ({"transformers_weights": "../x.safetensors"}, "no weights file of this folder"),
    ],
)
def test_a_config_that_is_nonsense_is_one_line(gpt2: Path, values: dict[str, Any], told: str) -> None:
    made.change_json(gpt2 / "config.json", **values)
    with pytest.raises(InputError, match=told) as caught:
        open_model(gpt2)
    assert "\n" not in str(caught.value)


def test_a_config_nested_without_end_is_one_line(gpt2: Path) -> None:
    (gpt2 / "config.json").write_text("[" * 200_000)
    with pytest.raises(InputError, match="nested too deeply"):
        open_model(gpt2)


@pytest.mark.parametrize("text", ["{", '{"version": "1.0", "model": {"type": "none"}}', "<!doctype html><html>"])
def test_a_damaged_tokenizer_is_not_taken_for_a_missing_one(gpt2: Path, text: str) -> None:
    (gpt2 / "tokenizer.json").write_text(text)
    with pytest.raises(InputError, match=r"tokenizer\.json"):
        open_model(gpt2)


def header(**tensors: Any) -> bytes:
    text = json.dumps(tensors).encode()
    return struct.pack("<Q", len(text)) + text


GOOD = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}


@pytest.mark.parametrize(
    "data",
    [
        struct.pack("<Q", 1 << 60) + b"{}",
        struct.pack("<Q", (1 << 64) - 1),
        struct.pack("<Q", 2) + b"[]",
        struct.pack("<Q", 1) + b"5",
        struct.pack("<Q", 100_000) + b"[" * 100_000,
        header(a=5),
        header(a={**GOOD, "data_offsets": [0, 1 << 60]}) + bytes(4),
        header(a={**GOOD, "data_offsets": [4, 0]}) + bytes(4),
        header(a={**GOOD, "data_offsets": [-4, 0]}) + bytes(4),
        header(a={**GOOD, "data_offsets": "ab"}) + bytes(4),
        header(a={**GOOD, "shape": [-1]}) + bytes(4),
        header(a={**GOOD, "shape": "x"}) + bytes(4),
        header(a={**GOOD, "dtype": 7}) + bytes(4),
        b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n",
        b"",
    ],
)
def test_crafted_headers_of_weights_are_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "model.safetensors").write_bytes(data)
    with pytest.raises(InputError, match=r"model\.safetensors"):
        stored_tensors(tmp_path / "model.safetensors")


def test_a_pointer_of_git_lfs_and_a_web_page_are_called_what_they_are(gpt2: Path) -> None:
    pages = {"git lfs pull": "version https://git-lfs.github.com/spec/v1\n", "web page": "<!DOCTYPE html><html></html>"}
    for told, text in pages.items():
        (gpt2 / "model.safetensors").write_text(text)
        with pytest.raises(InputError, match=told):
            open_model(gpt2)


# Damage.


def opened_or_refused(folder: Path) -> None:
    with suppress(AnisoscopeError):
        open_model(folder)
    with suppress(AnisoscopeError):
        checkpoints(folder)


@pytest.fixture(scope="module")
def valid(tmp_path_factory: pytest.TempPathFactory, trained: Path) -> dict[str, Path]:
    place = tmp_path_factory.mktemp("valid")
    (place / "gguf").mkdir()
    made.llama_gguf(place / "gguf" / "tiny.gguf")
    return {
        "gpt2": made.gpt2(place / "gpt2"),
        "lab": trained / "checkpoints" / "step-2",
        "gguf": place / "gguf",
    }


DAMAGED = [
    ("gpt2", "config.json"),
    ("gpt2", "model.safetensors"),
    ("gpt2", "tokenizer.json"),
    ("lab", "config.json"),
    ("lab", "model.safetensors"),
    ("gguf", "tiny.gguf"),
]


def check(place: Path, source: Path, name: str, damage: Callable[[bytes], bytes]) -> None:
    folder = place / "model"
    shutil.copytree(source, folder)
    (folder / name).write_bytes(damage((folder / name).read_bytes()))
    opened_or_refused(folder)
    shutil.rmtree(place)


@pytest.mark.parametrize(("kind", "name"), DAMAGED)
@given(damages)
@settings(SHORT, max_examples=12)
def test_a_damaged_model_opens_or_is_refused(
    tmp_path_factory: pytest.TempPathFactory,
    valid: dict[str, Path],
    kind: str,
    name: str,
    damage: Callable[[bytes], bytes],
) -> None:
    check(tmp_path_factory.mktemp("damage"), valid[kind], name, damage)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "name"), DAMAGED)
@given(damages)
@settings(LONG)
def test_a_much_damaged_model_opens_or_is_refused(
    tmp_path_factory: pytest.TempPathFactory,
    valid: dict[str, Path],
    kind: str,
    name: str,
    damage: Callable[[bytes], bytes],
) -> None:
    check(tmp_path_factory.mktemp("damage"), valid[kind], name, damage)


@given(damages)
@settings(SHORT)
def test_a_damaged_state_of_a_training_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, trained: Path, damage: Callable[[bytes], bytes]
) -> None:
    run = tmp_path_factory.mktemp("state")
    (run / "state.pt").write_bytes(damage((trained / "state.pt").read_bytes()))
    with suppress(StoreError):
        load_state(run)


def test_a_checkpoint_of_the_lab_that_claims_too_much_is_refused_before_memory_is_asked_for(
    valid: dict[str, Path], tmp_path: Path
) -> None:
    for name, value in (("vocabulary", 10**9), ("layers", 10**9), ("context", 10**9), ("mlp", 10**9), ("width", 10**6)):
        folder = tmp_path / name
        shutil.copytree(valid["lab"], folder)
        made.change_json(folder / "config.json", **{name: value})
        with pytest.raises(InputError, match="Copy the checkpoint again"):
            open_model(folder)


def test_the_undamaged_models_open(valid: dict[str, Path]) -> None:
    for folder in valid.values():
        assert open_model(folder).modality == "text"
    assert load_file(valid["gpt2"] / "model.safetensors")
