"""Series of checkpoints like those of a training run: tiny models whose weights take random steps."""

from __future__ import annotations

import random
import shutil
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from tests import model_folders

STEPS = (0, 100, 200, 300)


def checkpoint_series(folder: Path, steps: Sequence[int] = STEPS) -> Path:
    """Make a folder of checkpoints, each a random step away from the previous one."""
    first = model_folders.gpt2(folder / f"checkpoint-{steps[0]}")
    weights = load_file(first / "model.safetensors")
    generator = torch.Generator().manual_seed(1)
    for step in steps[1:]:
        weights = {name: x + 0.05 * torch.randn(x.shape, generator=generator) for name, x in weights.items()}
        place = folder / f"checkpoint-{step}"
        shutil.copytree(first, place)
        save_file(weights, place / "model.safetensors", {"format": "pt"})
    return folder


def documents(path: Path, number: int = 60, seed: int = 0) -> Path:
    """Write a file of documents of very different lengths, one JSON object per line."""
    import json

    chance = random.Random(seed)
    words = model_folders.WORDS.split()
    texts = [" ".join(chance.choice(words) for _ in range(chance.randint(2, 50))) for _ in range(number)]
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return path
