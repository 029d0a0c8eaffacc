"""A configuration cannot build far more modules than its weights fill."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import torch

from anisoscope.errors import InputError
from anisoscope.models import construction
from anisoscope.models.construction import bounded_construction
from anisoscope.models.open import open_model
from tests import model_folders as made


def test_building_stops_at_the_bound() -> None:
    built = torch.nn.ModuleList()

    def build() -> None:
        for _ in range(10_000):
            built.append(torch.nn.Identity())

    with bounded_construction("crafted", tensors=1), pytest.raises(InputError, match="more than 8,256 modules"):
        build()
    assert len(built) < 8_300
    built.append(torch.nn.Identity())  # no bound afterwards


def test_modules_of_other_threads_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(construction, "_FREE_MODULES", 4)

    def build() -> None:
        torch.nn.Sequential(*[torch.nn.Identity() for _ in range(500)])

    with bounded_construction("plain", tensors=0):
        worker = threading.Thread(target=build)
        worker.start()
        worker.join()
        torch.nn.Sequential(torch.nn.Identity())


def test_a_model_with_more_modules_than_its_weights_allow_is_refused(
    gpt2: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(construction, "_FREE_MODULES", 0)
    monkeypatch.setattr(construction, "_MODULES_PER_TENSOR", 0)
    with pytest.raises(InputError, match="belong to the same model"):
        open_model(gpt2)
    monkeypatch.undo()
    assert open_model(gpt2).modality == "text"


def sinusoidal(folder: Path) -> Path:
    """A DistilBERT whose table of positions would be computed in a Python loop, as long as its configuration says."""
    shape = {"dim": 16, "n_layers": 1, "n_heads": 2, "hidden_dim": 32, "vocab_size": 300}
    config = made.hf.DistilBertConfig(**shape, max_position_embeddings=32, sinusoidal_pos_embds=True)
    made.save(folder, made.hf.DistilBertModel(config), made.word_pieces())
    made.change_json(folder / "config.json", max_position_embeddings=1 << 24)
    return folder


def test_a_configuration_of_far_larger_weights_is_refused_before_they_are_made(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"describes more than \d+ MB of weights, but its files have"):
        open_model(sinusoidal(tmp_path / "model"))


def test_bytes_are_counted_on_the_meta_device_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "model.safetensors"
    file.write_bytes(b"12345678")
    monkeypatch.setattr(construction, "_FREE_BYTES", 0)
    with bounded_construction("plain", None, [file]):
        torch.nn.Linear(100, 100)
        with torch.device("meta"):
            torch.nn.Linear(10, 10)
            with pytest.raises(InputError, match="its files have 8 bytes"):
                torch.nn.Linear(10, 10)
