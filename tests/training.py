"""A small training that the tracker tests share: a tiny decoder with dropout, batches by step, one loop."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from anisoscope import Record, Run, Tracker
from anisoscope.schedule import every

hf: Any = transformers
LAYERS, WIDTH, WORDS, LENGTH = 3, 32, 97, 16


def small_model(seed: int = 0, **changes: Any) -> Any:
    """A GPT-2 of three layers in training mode, with dropout."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        sizes = {"n_embd": WIDTH, "n_layer": LAYERS, "n_head": 4, "vocab_size": WORDS, "n_positions": 64}
        config = hf.GPT2Config(**{**sizes, "bos_token_id": 1, "eos_token_id": 2, "loss_type": "ForCausalLM", **changes})
        return hf.GPT2LMHeadModel(config).train()


class Block(nn.Module):
    """A residual block without attention: the least that a compiler needs."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.inner = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.inner(self.norm(x)).tanh()


class Stack(nn.Module):
    """An embedding, three blocks and a head; returns its loss, or its logits if there are no labels."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.embed = nn.Embedding(WORDS, WIDTH)
            self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
            self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, input_ids: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        x = self.embed(input_ids)
        for block in self.blocks:
            x = block(x)
        logits = self.head(x)
        if labels is None:
            return {"logits": logits}
        return {"loss": nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())}


def words(seed: int, items: int = 4, length: int = LENGTH) -> dict[str, Tensor]:
    """A batch of random words, the same for the same seed."""
    ids = torch.randint(3, WORDS, (items, length), generator=torch.Generator().manual_seed(seed))
    return {"input_ids": ids, "labels": ids.clone()}


def held_out(items: int = 8) -> dict[str, Tensor]:
    return words(10_000, items)


def train(
    model: nn.Module,
    tracker: Tracker | None,
    steps: range = range(6),
    *,
    batch: Callable[[int], Mapping[str, Tensor]] = words,
    micro: int = 1,
) -> torch.optim.Optimizer:
    """The loop of the documentation, with `micro` batches per step."""
    torch.manual_seed(7)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in steps:
        if tracker is not None:
            tracker.probe(step)
        for part in range(micro):
            (model(**batch(100 * step + part))["loss"] / micro).backward()
        if tracker is not None:
            tracker.watch(step)
        optimiser.step()
        optimiser.zero_grad()
    return optimiser


def tracked(folder: Path, model: nn.Module, **options: Any) -> Tracker:
    """A tracker of that model at every other step, without the scalars of every step."""
    known: dict[str, Any] = {"probe": held_out(), "schedule": every(2), "bars_every": None, "scalars": False, **options}
    return Tracker(model, out=folder / "run", **known)


def records(folder: Path, **columns: Any) -> list[Record]:
    """The records of the run in this folder that have these columns."""
    found = Run.open(folder / "run").records()
    return [r for r in found if all(getattr(r, name) == value for name, value in columns.items())]


def value(folder: Path, **columns: Any) -> float:
    """The value of the one record with these columns."""
    (found,) = records(folder, **columns)
    assert found.value is not None, found.note
    return found.value


def hooks_of(model: nn.Module) -> int:
    """The number of hooks on a model and its modules."""
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return sum(len(getattr(module, kind)) for module in model.modules() for kind in kinds)
