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
