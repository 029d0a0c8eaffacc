"""The choice of experts that a router returned, whatever the order and form of its outputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from anisoscope.errors import CaptureError
from anisoscope.stats.router_sums import Routing

_TOP = ("top_k", "topk", "num_experts_per_tok", "num_experts_per_token", "moe_top_k", "num_selected_experts")


def routing_of(model: nn.Module, path: str, output: Any, sequences: torch.Size) -> Routing:
    """Return the logits and the chosen experts of every token.

    The logits are the widest float tensor. A tensor of whole numbers holds the chosen experts, either their numbers or
    one column per expert. Without one, the experts are those with the largest logits, as many as the module says.

    Args:
        model: The model.
        path: The router in it.
        output: What the router returned.
        sequences: Sequences in the batch, and their length.

    Raises:
        CaptureError: The output holds no logits, or the number of experts per token is not known.
    """
    tensors = list(_flat(output))
    floats = [x for x in tensors if x.is_floating_point() and x.ndim > 1 and x.shape[-1] > 1]
    if not floats:
        raise CaptureError(f"{path} returned no logits of experts, so router is not known for this model.")
    logits = max(floats, key=lambda x: x.shape[-1])  # the first of the widest
    experts = logits.shape[-1]
    tokens = sequences.numel()
    if logits.numel() != tokens * experts:
        raise CaptureError(f"{path} returned logits of shape {tuple(logits.shape)} for {tokens} tokens.")
    top = _experts_per_token(model, path)
    numbers = [x for x in tensors if not x.is_floating_point() and x.ndim > 1 and x.numel() % tokens == 0]
    logits = logits.detach().reshape(*sequences, experts)
    if not numbers:
        if top is None:
            raise CaptureError(
                f"{path} returns logits only, and none of the attributes {', '.join(_TOP)} tells how many experts a "
                "token is sent to. Set one of them on the module."
            )
        index = logits.topk(min(top, experts), dim=-1).indices
    elif numbers[0].shape[-1] == experts and top != experts:
        return Routing(logits, numbers[0].detach().reshape(*sequences, experts) > 0)
    else:
        index = numbers[0].detach().reshape(*sequences, -1)
    chosen = torch.zeros(*sequences, experts, dtype=torch.bool, device=logits.device)
    return Routing(logits, chosen.scatter_(-1, index.long(), True))


def _flat(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _flat(item)
    elif isinstance(value, tuple | list):
        for item in value:
            yield from _flat(item)


def _experts_per_token(model: nn.Module, path: str) -> int | None:
    """Return how many experts a token is sent to: an attribute of the router, of a module around it, or of a config."""
    parts = path.split(".")
    for depth in range(len(parts), -1, -1):
        module = model.get_submodule(".".join(parts[:depth]))
        for holder in (module, getattr(module, "config", None)):
            for name in _TOP:
                value = getattr(holder, name, None)
                if isinstance(value, int):
                    return value
    return None
