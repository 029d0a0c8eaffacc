"""The untrained twin of a model: the same configuration and tokenizer, initial weights."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import torch

from anisoscope.models.library_output import quiet
from anisoscope.models.open import open_model
from anisoscope.store.files import read_json
from anisoscope.studies.atlas.own_folders import MODEL_TYPE, untrained_module

SUFFIX = "-untrained"


def untrained_twin(folder: Path, *, out: Path | None = None, seed: int = 0) -> Path:
    """Return the folder of a model's untrained twin, which is made if it is not there yet.

    Args:
        folder: The trained model, a folder or a .gguf file.
        out: The folder to write. Default: next to the model.
        seed: Of the initial weights.
    """
    out = out or folder.with_name(folder.name + SUFFIX)
    if out.is_dir():
        return out
    scratch = out.with_name(out.name + "-unfinished")
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    config = folder / "config.json"
    with torch.random.fork_rng(devices=[]), quiet():
        torch.manual_seed(seed)
        if config.is_file() and read_json(config).get("model_type") == MODEL_TYPE:
            untrained_module(folder, scratch)
        else:
            opened = open_model(folder)
            trained: Any = opened.model
            type(trained)(trained.config).save_pretrained(scratch)
            if opened.processor is not None:
                opened.processor.save_pretrained(scratch)
    scratch.rename(out)
    return out
