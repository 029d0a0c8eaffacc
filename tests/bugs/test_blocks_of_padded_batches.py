"""Batches of documents are padded to different lengths; their blocks are numbered through all the same."""

from __future__ import annotations

from pathlib import Path

import torch

from anisoscope.data.batches import model_batches
from anisoscope.hooks import find_layout
from anisoscope.measurement.engine import Engine
from anisoscope.measurement.request import Request
from anisoscope.models.open import open_model
from tests import model_folders
from tests.sweep_folders import documents


def test_blocks_are_numbered_through_whatever_the_padding(tmp_path: Path) -> None:
    opened = open_model(model_folders.gpt2(tmp_path / "model"))
    batches = list(model_batches(opened, documents(tmp_path / "text.jsonl", 120), window=64, batch=2, tokens=2000))
    assert len({batch.counts.shape[1] for batch in batches}) > 4
    layout = find_layout(opened.model, {"input_ids": torch.zeros(1, 4, dtype=torch.int64)})
    request = Request.of(sites=["resid.0"], metrics=["mean_cosine"], sample=64)
    survey = Engine(opened.model, layout, request, expected=2000)
    survey.run(batches)
    found = next(survey.results())
    numbers = [block.number for block in found.clouds["all"].blocks]
    assert numbers == sorted(set(numbers))
    assert len(numbers) > 8
