"""What a model is trained to do: its inputs and labels for a batch, and the loss whose gradients are the true ones."""

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
Loss = Callable[[Any, Tensor], Tensor]  # what the model returned, labels (b, T) -> a scalar


@dataclass(frozen=True)
class Objective:
    """A name, batch -> (inputs, labels), and (output, labels) -> loss."""

    name: str
    prepare: Callable[[Batch], tuple[dict[str, Tensor], Tensor]]
    loss: Loss


def choose_objective(loss: str | Loss | None, model: nn.Module, *, mask: int | None = None, seed: int = 0) -> Objective:
    """The objective of a name, of a function of yours, or (None) the one that the model's head was made for.

    A function is called with what the model returns and the labels: the batch's own `labels`, else the next tokens.
    """
    if callable(loss):
        return Objective(getattr(loss, "__name__", "yours"), _given_labels, loss)
    name = loss or _guess(model)
    if name == "next_token":
        return Objective(name, next_tokens, cross_entropy)
    if name == "masked_token":
        if mask is None:
            raise InputError("masked_token needs the id of the mask token; give mask=, or a model with its tokenizer")
        return Objective(name, lambda batch: masked_tokens(batch, mask, seed), cross_entropy)
    raise unknown("loss", name, ["next_token", "masked_token"])


def next_tokens(batch: Batch) -> tuple[dict[str, Tensor], Tensor]:
    """Each position's label is the token after it in its window; the last one's, and padding's, are ignored."""
    token = batch.token.masked_fill(~batch.counts, IGNORED)
    labels = torch.full_like(token, IGNORED)
    labels[:, :-1] = torch.where(batch.counts[:, :-1], token[:, 1:], IGNORED)
    return dict(batch.inputs), labels


def masked_tokens(batch: Batch, mask: int, seed: int) -> tuple[dict[str, Tensor], Tensor]:
    """A share of the tokens is replaced by the mask token and is to be told; the same ones for the same seed."""
    key = token_key(batch.document.flatten(), batch.position.flatten(), seed).view_as(batch.token)
    chosen = (key.double() < _MASKED_SHARE * 2**63) & batch.counts & ~batch.special
    inputs = {**batch.inputs, "input_ids": batch.inputs["input_ids"].masked_fill(chosen, mask)}
    return inputs, batch.token.masked_fill(~chosen, IGNORED)


def cross_entropy(output: Any, labels: Tensor) -> Tensor:
    """The summed cross-entropy of logits (b, T, V): summed, so that batches of any size weigh tokens alike."""
    logits = output if isinstance(output, Tensor) else getattr(output, "logits", None)
    if not isinstance(logits, Tensor) or logits.ndim != 3:
        raise InputError(
            f"{type(output).__name__} holds no logits (batch, positions, vocabulary); open the model with its head "
            "(head=True), or give loss= a function of what the model returns and the labels"
        )
    flat = labels.to(logits.device).flatten()
    return nn.functional.cross_entropy(logits.flatten(0, 1).float(), flat, ignore_index=IGNORED, reduction="sum")


def shuffled(labels: Tensor, seed: int) -> Tensor:
    """The labels that count, dealt out again at random among the places that count."""
    places = (labels != IGNORED).flatten().nonzero()[:, 0]
    order = torch.randperm(len(places), generator=torch.Generator().manual_seed(seed))
    out = labels.flatten().clone()
    out[places] = out[places[order]]
    return out.view_as(labels)


def _given_labels(batch: Batch) -> tuple[dict[str, Tensor], Tensor]:
    if "labels" not in batch.inputs:
        return next_tokens(batch)
    return {name: x for name, x in batch.inputs.items() if name != "labels"}, batch.inputs["labels"].cpu()


def _guess(model: nn.Module) -> str:
    kind = type(model).__name__
    if "MaskedLM" in kind or "PreTraining" in kind:
        return "masked_token"
    if "CausalLM" in kind or "LMHead" in kind:
        return "next_token"
    raise InputError(
        f"what {kind} is trained to do cannot be told from its class; give loss='next_token', 'masked_token' or a "
        "function of what the model returns and the labels"
    )
