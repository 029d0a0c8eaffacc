"""Weights are selected, checked and digested without loading them; pickles are refused."""

from __future__ import annotations

import json
import os
import shutil
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from anisoscope.errors import InputError
from anisoscope.models.open import open_model
from anisoscope.models.weight_files import stored_tensors, weights_digest, weights_problem
from tests import model_folders as made
from tests.pickle_bomb import PickleBomb


def logits(model: Any, text: str = made.WORDS) -> torch.Tensor:
    ids = torch.tensor([made.byte_pairs()(text)["input_ids"][:48]])
    with torch.no_grad():
        output = model(input_ids=ids)
    found: torch.Tensor = output.logits if "logits" in output else output.last_hidden_state
    return found


def test_a_pickle_is_refused_unless_allowed(gpt2: Path) -> None:
    before = logits(open_model(gpt2, head=True).model)
    made.as_pickle(gpt2)
    with pytest.raises(InputError, match=r"pytorch_model\.bin\) are a pickle.*allow_pickle=True \(--allow-pickle\)"):
        open_model(gpt2)
    assert torch.equal(logits(open_model(gpt2, head=True, allow_pickle=True).model), before)


def test_a_pipe_is_not_a_model(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "model.gguf")
    with pytest.raises(InputError, match="neither a regular file nor a folder"):
        weights_digest(tmp_path / "model.gguf")


def test_safetensors_are_preferred_to_a_pickle(gpt2: Path) -> None:
    (gpt2 / "pytorch_model.bin").write_bytes(b"never opened")
    assert open_model(gpt2, allow_pickle=True).info["random_weights"] == []


def test_truncated_weights_are_refused(gpt2: Path) -> None:
    file = gpt2 / "model.safetensors"
    whole = file.read_bytes()
    for kept in (4, 100, len(whole) - 10):
        file.write_bytes(whole[:kept])
        with pytest.raises(InputError, match=r"model\.safetensors is incomplete"):
            open_model(gpt2)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run with checkpoints at steps 0, 50, 100 and 1000, all of the same weights."""
    first = made.gpt2(tmp_path / "run" / "checkpoint-0")
    for step in (1000, 50, 100):
        shutil.copytree(first, tmp_path / "run" / f"checkpoint-{step}")
    (tmp_path / "run" / "logs").mkdir()
    return tmp_path / "run"


def test_equal_weights_have_the_same_digest_and_a_step_changes_it(run: Path) -> None:
    digests = {weights_digest(run / f"checkpoint-{step}") for step in (0, 50, 100, 1000)}
    assert len(digests) == 1
    file = run / "checkpoint-50" / "model.safetensors"
    weights = load_file(file)
    weights["transformer.h.0.ln_1.bias"][3] += 1e-3
    save_file(weights, file)
    assert weights_digest(run / "checkpoint-50") not in digests


def test_a_digest_depends_on_names_shapes_and_dtypes(tmp_path: Path) -> None:
    def digest(**tensors: torch.Tensor) -> str:
        save_file(tensors, tmp_path / "model.safetensors")
        return weights_digest(tmp_path / "model.safetensors")

    x = torch.zeros(4, 6)
    variants = [{"a": x}, {"b": x}, {"a": x.reshape(6, 4)}, {"a": x.half()}, {"a": x, "b": x[:1].clone()}]
    assert len({digest(**tensors) for tensors in variants}) == len(variants)


def test_sharding_does_not_change_a_digest(run: Path, tmp_path: Path) -> None:
    model = made.hf.GPT2LMHeadModel.from_pretrained(run / "checkpoint-0")
    model.save_pretrained(tmp_path / "shards", max_shard_size="20KB")
    assert len(list((tmp_path / "shards").glob("model-*.safetensors"))) > 1
    assert weights_digest(tmp_path / "shards") == weights_digest(run / "checkpoint-0")


def test_a_module_and_its_file_have_the_same_digest(tmp_path: Path) -> None:
    torch.manual_seed(0)
    # Larger than what is read whole, with a length that is no multiple of a block.
    first = torch.nn.Linear(301, 211)
    module = torch.nn.Sequential(first, torch.nn.LayerNorm(211), torch.nn.Linear(7, 3).half())
    save_file(module.state_dict(), tmp_path / "model.safetensors")
    assert weights_digest(module) == weights_digest(tmp_path / "model.safetensors")
    with torch.no_grad():
        first.weight.add_(1e-6)
    assert weights_digest(module) != weights_digest(tmp_path / "model.safetensors")


def test_the_bomb_of_these_tests_works(tmp_path: Path) -> None:
    """Or the tests below would prove nothing."""
    torch.save(PickleBomb(tmp_path / "taken"), tmp_path / "bomb.pt")
    torch.load(tmp_path / "bomb.pt", weights_only=False)
    assert (tmp_path / "taken").exists()


@pytest.mark.parametrize("allowed", [False, True])
def test_a_folder_with_a_pickle_never_runs_code(gpt2: Path, tmp_path: Path, allowed: bool) -> None:
    """Even where pickles are allowed only tensors are read from them."""
    torch.save({"x": PickleBomb(tmp_path / "taken")}, gpt2 / "pytorch_model.bin")
    (gpt2 / "model.safetensors").unlink()
    with pytest.raises(InputError):
        open_model(gpt2, allow_pickle=allowed)
    assert not (tmp_path / "taken").exists()


def test_a_pickle_next_to_a_decoy_is_not_opened(gpt2: Path) -> None:
    """A safetensors file of another name makes the folder look safe, while transformers would take the pickle."""
    made.as_pickle(gpt2)
    save_file({"x": torch.ones(1)}, gpt2 / "model-00001-of-00002.safetensors")
    with pytest.raises(InputError, match=r"model\.safetensors"):
        open_model(gpt2)


def test_an_index_may_not_name_a_pickle_or_leave_its_folder(gpt2: Path) -> None:
    made.as_pickle(gpt2)
    for name in ("pytorch_model.bin", "../../x/model.safetensors", "/etc/model.safetensors", "..", "x.safetensors"):
        (gpt2 / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": name}}))
        save_file({"x": torch.ones(1)}, gpt2 / "model-00001-of-00001.safetensors")
        with pytest.raises(InputError, match="not a weights file of this folder"):
            open_model(gpt2)
        assert "not a weights file of this folder" in str(weights_problem(gpt2))


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


def test_a_git_lfs_pointer_and_a_web_page_are_recognised(gpt2: Path) -> None:
    pages = {"git lfs pull": "version https://git-lfs.github.com/spec/v1\n", "web page": "<!DOCTYPE html><html></html>"}
    for message, text in pages.items():
        (gpt2 / "model.safetensors").write_text(text)
        with pytest.raises(InputError, match=message):
            open_model(gpt2)
