"""Training objectives: the inputs and labels of a batch, and the loss whose gradients are tested."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from anisoscope.data.token_table import Batch
from anisoscope.errors import InputError, unknown
from anisoscope.stats.rows import token_key

IGNORED = -100  # a label that does not count, as everywhere in torch
_MASKED_SHARE = 0.15
Loss = Callable[[Any, Tensor], Tensor]  # the model's output, labels (b, T) -> a scalar


@dataclass(frozen=True)
class Objective:
    """A name, a function batch -> (inputs, labels), and a loss (output, labels) -> scalar."""

    name: str
    prepare: Callable[[Batch], tuple[dict[str, Tensor], Tensor]]
    loss: Loss


def choose_objective(loss: str | Loss | None, model: nn.Module, *, mask: int | None = None, seed: int = 0) -> Objective:
    """The objective to test.

    Args:
        loss: "next_token", "masked_token", a function, or None for the objective of the model's head. A function is
            called with the model's output and the labels: the batch's `labels` if it has any, else the next tokens.
        model: The model.
        mask: The id of the mask token, for "masked_token".
        seed: The seed that chooses the masked tokens.

    Raises:
        InputError: If the name is unknown, the head is unknown, or the mask token is missing.
    """
    if callable(loss):
        return Objective(getattr(loss, "__name__", "yours"), _labels_of_batch, loss)
    name = loss or _objective_of_head(model)
    if name == "next_token":
        return Objective(name, next_tokens, cross_entropy)
    if name == "masked_token":
        if mask is None:
            raise InputError(
                "masked_token needs the id of the mask token. Pass mask=, or a model opened with its tokenizer."
            )
        return Objective(name, lambda batch: masked_tokens(batch, mask, seed), cross_entropy)
    raise unknown("loss", name, ["next_token", "masked_token"])


def no_objective() -> Objective:
    """Inputs without a loss, for a pass that computes no gradients."""
    return Objective("none", lambda batch: (dict(batch.inputs), batch.token), lambda _output, labels: labels)


def next_tokens(batch: Batch) -> tuple[dict[str, Tensor], Tensor]:
    """Label each position with the next token of its window; the last position and padding are ignored."""
    token = batch.token.masked_fill(~batch.counts, IGNORED)
    labels = torch.full_like(token, IGNORED)
    labels[:, :-1] = torch.where(batch.counts[:, :-1], token[:, 1:], IGNORED)
    return dict(batch.inputs), labels


def masked_tokens(batch: Batch, mask: int, seed: int) -> tuple[dict[str, Tensor], Tensor]:
    """Replace 15 % of the tokens by the mask token and label them; the same seed masks the same tokens."""
    key = token_key(batch.document.flatten(), batch.position.flatten(), seed).view_as(batch.token)
    chosen = (key.double() < _MASKED_SHARE * 2**63) & batch.counts & ~batch.special
    inputs = {**batch.inputs, "input_ids": batch.inputs["input_ids"].masked_fill(chosen, mask)}
    return inputs, batch.token.masked_fill(~chosen, IGNORED)


def cross_entropy(output: Any, labels: Tensor) -> Tensor:
    """The cross-entropy of logits (b, T, V), summed so that tokens weigh the same in batches of any size.

    Raises:
        InputError: If the output holds no logits.
    """
    logits = output if isinstance(output, Tensor) else getattr(output, "logits", None)
    if not isinstance(logits, Tensor) or logits.ndim != 3:
        raise InputError(
            f"{type(output).__name__} holds no logits (batch, positions, vocabulary). Open the model with its head "
            "(head=True), or pass loss= a function of the model's output and the labels."
        )
    flat = labels.to(logits.device).flatten()
    return nn.functional.cross_entropy(logits.flatten(0, 1).float(), flat, ignore_index=IGNORED, reduction="sum")


def shuffled(labels: Tensor, seed: int) -> Tensor:
    """The labels that count, in random order among the positions that count."""
    positions = (labels != IGNORED).flatten().nonzero()[:, 0]
    order = torch.randperm(len(positions), generator=torch.Generator().manual_seed(seed))
    out = labels.flatten().clone()
    out[positions] = out[positions[order]]
    return out.view_as(labels)


def _labels_of_batch(batch: Batch) -> tuple[dict[str, Tensor], Tensor]:
    if "labels" not in batch.inputs:
        return next_tokens(batch)
    return {name: x for name, x in batch.inputs.items() if name != "labels"}, batch.inputs["labels"].cpu()


def _objective_of_head(model: nn.Module) -> str:
    kind = type(model).__name__
    if "MaskedLM" in kind or "PreTraining" in kind:
        return "masked_token"
    if "CausalLM" in kind or "LMHead" in kind:
        return "next_token"
    raise InputError(
        f"The objective of {kind} is unknown. Pass loss='next_token', 'masked_token', or a function of the model's "
        "output and the labels."
    )
