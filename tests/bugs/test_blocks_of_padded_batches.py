"""Batches padded to different lengths broke the numbering of the blocks of documents."""

from __future__ import annotations

from pathlib import Path

import torch

from anisoscope.capture import find_layout
from anisoscope.data.batches import model_batches
from anisoscope.measurement.engine import Engine
from anisoscope.models.open import open_model
from tests import model_folders
from tests.sweep_folders import documents


def test_blocks_are_numbered_consecutively_for_any_padding(tmp_path: Path) -> None:
    opened = open_model(model_folders.gpt2(tmp_path / "model"))
    batches = list(model_batches(opened, documents(tmp_path / "text.jsonl", 120), window=64, batch=2, tokens=2000))
    assert len({batch.counts.shape[1] for batch in batches}) > 4
    layout = find_layout(opened.model, {"input_ids": torch.zeros(1, 4, dtype=torch.int64)})
    engine = Engine(
        opened.model, layout, ["resid.0"], ["mean_cosine"], special=True, sample=64, seed=0, tokens=2000
    )  # fmt: skip
    engine.run(batches)
    found = next(engine.evaluated())
    numbers = [block.number for block in found.clouds["all"].blocks]
    assert numbers == sorted(set(numbers))
    assert len(numbers) > 8
