"""Queries and keys before rotary embedding: how the outputs of an attention module's projections split into heads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from anisoscope.errors import CaptureError
from anisoscope.hooks.parts import out_features

_QUERY = ("q_proj", "query", "q_lin", "q", "to_q", "wq", "query_proj")
_KEY = ("k_proj", "key", "k_lin", "k", "to_k", "wk", "key_proj")
_FUSED = ("c_attn", "query_key_value", "qkv_proj", "Wqkv", "qkv", "in_proj", "att_proj")
_QUERY_NORM = ("q_norm", "q_layernorm")
_KEY_NORM = ("k_norm", "k_layernorm")
_HEAD_WIDTH = ("head_dim", "attention_head_size", "key_value_proj_dim", "head_size")
_HEADS = ("num_heads", "num_attention_heads", "n_heads", "n_head", "heads")


@dataclass(frozen=True)
class Projection:
    """A module of an attention layer, and how its output splits into queries or keys before rotary embedding."""

    path: str
    split: Callable[[Tensor], Tensor]  # (b, t, features) -> (b, heads, t, head width)


def projection(path: str, attention: nn.Module, kind: str) -> Projection:
    """Return the projection that shows `q.pre` or `k.pre` of an attention module.

    Norms on queries or keys (OLMo 2, Qwen 3, Gemma 3) come before the rotation, so they are applied to its output.

    Raises:
        CaptureError: The module has no separate projections, and the layout of its fused one is not known.
    """
    owner_path, owner, child = _owner(path, attention, _QUERY if kind == "q.pre" else _KEY)
    if child is not None:
        width = _head_width(owner)
        norm = _child(owner, _QUERY_NORM if kind == "q.pre" else _KEY_NORM)
        return Projection(f"{owner_path}.{child}", lambda x: _split(x, width, norm))
    owner_path, owner, child = _owner(path, attention, _FUSED)
    layout = _FUSED_LAYOUTS.get(type(owner).__name__)
    if child is None or layout is None:
        raise CaptureError(
            f"{kind} at {path}: {type(attention).__name__} has no separate projections, and the layout of its fused "
            "one is not known. Capture q and k, or attn, instead."
        )
    part = 0 if kind == "q.pre" else 1
    return Projection(f"{owner_path}.{child}", lambda x: layout(owner, x)[part].transpose(1, 2))


def _owner(path: str, attention: nn.Module, names: tuple[str, ...]) -> tuple[str, nn.Module, str | None]:
    """Return path and module of the first module that has a child of one of these names, and the child's name."""
    for inner, module in attention.named_modules(prefix=path):
        for name, child in module.named_children():
            if name in names and out_features(child) is not None:
                return inner, module, name
    return path, attention, None


def _child(module: nn.Module, names: tuple[str, ...]) -> nn.Module | None:
    return next((child for name, child in module.named_children() if name in names), None)


def _head_width(owner: nn.Module) -> int:
    """Return the width of one head: an attribute, or the width of all queries over the number of heads."""
    named, query = _first_int(owner, _HEAD_WIDTH), _child(owner, _QUERY)
    if named is not None or query is None:
        return _required_int(owner, _HEAD_WIDTH)
    return (out_features(query) or 0) // _required_int(owner, _HEADS)


def _required_int(owner: nn.Module, names: tuple[str, ...]) -> int:
    value = _first_int(owner, names)
    if value is None:
        raise CaptureError(
            f"{type(owner).__name__} has none of the attributes {', '.join(names)}, which q.pre and k.pre need. "
            "Capture q and k instead."
        )
    return value


def _first_int(owner: nn.Module, names: tuple[str, ...]) -> int | None:
    """Return the first of these attributes that the attention module or its configuration has."""
    holders = (owner, getattr(owner, "config", None))
    values = (getattr(holder, name, None) for holder in holders for name in names)
    return next((value for value in values if isinstance(value, int)), None)


def _split(x: Tensor, width: int, norm: nn.Module | None) -> Tensor:
    """Split (b, t, heads · width) into (b, heads, t, width), with a norm over all features or over each head's."""
    weight = getattr(norm, "weight", None)
    whole = weight is not None and weight.shape == x.shape[-1:] and weight.numel() != width
    if norm is not None and whole:
        x = norm.forward(x)
    x = x.reshape(*x.shape[:2], -1, width)  # (b, t, heads, width)
    if norm is not None and not whole:
        x = norm.forward(x)
    return x.transpose(1, 2)


def _thirds(owner: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """Split a projection to all queries, then all keys, then all values; keys may have fewer heads."""
    heads = _required_int(owner, _HEADS)
    x = x.reshape(*x.shape[:2], -1, _required_int(owner, _HEAD_WIDTH))  # (b, t, heads + 2 · key heads, width)
    return x[:, :, :heads], x[:, :, heads : heads + (x.shape[2] - heads) // 2]


def _head_by_head(owner: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """Split a projection with each head's query, key and value next to each other."""
    x = x.reshape(*x.shape[:2], -1, 3, _required_int(owner, _HEAD_WIDTH))  # (b, t, heads, 3, width)
    return x[:, :, :, 0], x[:, :, :, 1]


def _falcon(owner: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    """Split the projection of Falcon's three generations: grouped, head by head, one key head for all."""
    if owner.new_decoder_architecture:
        groups = x.reshape(*x.shape[:2], owner.num_kv_heads, -1, owner.head_dim)  # (b, t, g, h/g + 2, width)
        return groups[:, :, :, :-2].flatten(2, 3), groups[:, :, :, -2]
    return _thirds(owner, x) if owner.multi_query else _head_by_head(owner, x)


# Layouts of fused projections by the class that owns them; tests check each against queries after rotation.
_FUSED_LAYOUTS: dict[str, Callable[[Any, Tensor], tuple[Tensor, Tensor]]] = {
    "GPT2Attention": _thirds,
    "MptAttention": _thirds,
    "ModernBertAttention": _thirds,
    "Phi3Attention": _thirds,
    "GPTNeoXAttention": _head_by_head,
    "BloomAttention": _head_by_head,
    "FalconAttention": _falcon,
}
