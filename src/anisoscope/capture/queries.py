"""Queries and keys: after rotary embedding, as the attention function gets them, and before it, out of projections.

Models of the transformers library fetch their attention function from one place, `AttentionInterface.get_interface`.
While a capture runs, what it returns is wrapped: the same function is called with the same arguments, after a look at
q, k and the mask. No name changes, so masks and every branch on the implementation's name stay as they are and outputs
are bit-identical. Attention that does not go through there is met one level lower, where it calls
`scaled_dot_product_attention` (q and k) or `softmax` (logits only). Attention that ends in arithmetic of its own
(a sigmoid, say) can pass queries, keys and weights through `nn.Identity` children called `queries`, `keys` and
`pattern`: see `marked_modules`.
"""

from __future__ import annotations

import inspect
import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from anisoscope.capture.parts import out_features
from anisoscope.errors import CaptureError
from anisoscope.stats.head_scores import Heads, Scores

_SOFTMAX = (nn.functional.softmax, torch.softmax, Tensor.softmax)
_QUERY = ("q_proj", "query", "q_lin", "q", "to_q", "wq", "query_proj")
_KEY = ("k_proj", "key", "k_lin", "k", "to_k", "wk", "key_proj")
_FUSED = ("c_attn", "query_key_value", "qkv_proj", "Wqkv", "qkv", "in_proj", "att_proj")
_QUERY_NORM = ("q_norm", "q_layernorm")
_KEY_NORM = ("k_norm", "k_layernorm")
_HEAD_WIDTH = ("head_dim", "attention_head_size", "key_value_proj_dim", "head_size")
_MARKS = ("queries", "keys", "pattern")
_HEADS = ("num_heads", "num_attention_heads", "n_heads", "n_head", "heads")


class AttentionObserver(Protocol):
    """Who wants to know what the attention layer that runs at the moment computes from."""

    def is_attending(self) -> bool:
        """Whether a self-attention layer of interest is running."""

    def on_heads(self, heads: Heads, unknown_pattern: str | None) -> None:
        """Queries and keys; `pattern` says why they do not determine the probabilities, if so."""

    def on_scores(self, scores: Scores) -> None:
        """Logits on their way into a softmax."""


@contextmanager
def observe_attention(observer: AttentionObserver) -> Iterator[None]:
    """Tell the observer of every attention that runs inside; everything is put back afterwards."""
    with _wrapped_attention_interface(observer) as interface_call, _AttentionFunctions(observer, interface_call):
        yield


# --- after rotary embedding ---------------------------------------------------------------------------------------


class _InterfaceCall:
    """Set while a wrapped attention function runs, whose inner calls have been told of already."""

    def __init__(self) -> None:
        self.active = False


@contextmanager
def _wrapped_attention_interface(observer: AttentionObserver) -> Iterator[_InterfaceCall]:
    interface_call = _InterfaceCall()
    module = sys.modules.get("transformers.modeling_utils")
    if module is None:  # no model of that library can exist
        yield interface_call
        return
    interface: Any = module.AttentionInterface
    inner = interface.get_interface
    state = {"active": True, "inner": inner}

    def get_interface(self: Any, name: str, default: Callable[..., Any]) -> Callable[..., Any]:
        function: Callable[..., Any] = inner(self, name, default)
        return (
            _observed(function, name, observer, interface_call)
            if state["active"] and observer.is_attending()
            else function
        )

    overlay: Any = get_interface
    overlay.state = state
    interface.get_interface = overlay
    try:
        yield interface_call
    finally:
        state["active"] = False
        # Captures of several threads may end in any order: only what lies on top and is done is taken off.
        while not getattr(interface.get_interface, "state", {"active": True})["active"]:
            interface.get_interface = interface.get_interface.state["inner"]


def _observed(
    function: Callable[..., Any], name: str, observer: AttentionObserver, interface_call: _InterfaceCall
) -> Callable[..., Any]:
    def attention(
        module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Any, *rest: Any, **options: Any
    ) -> Any:
        observer.on_heads(*_heads(module, name, query, key, mask, _by_name(function, rest) | options))
        interface_call.active = True
        try:
            return function(module, query, key, value, mask, *rest, **options)
        finally:
            interface_call.active = False

    return attention


def _by_name(function: Callable[..., Any], rest: tuple[Any, ...]) -> dict[str, Any]:
    """Arguments given by position after (module, query, key, value, mask), by the function's names for them."""
    return dict(zip(list(inspect.signature(function).parameters)[5:], rest, strict=False)) if rest else {}


def _heads(
    module: nn.Module, name: str, q: Tensor, k: Tensor, mask: Any, options: dict[str, Any]
) -> tuple[Heads, str | None]:
    """What the implementation of this name makes of its arguments, and why that is not the whole story, if so."""
    t, s = q.shape[2], k.shape[2]
    scaling = options.get("scaling")
    is_causal = options.get("is_causal")
    is_causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    flash = "flash" in (name or "")
    # Without a mask `eager` attends to everything; the fused kernels go by the flag.
    causal = bool(is_causal) and t > 1 and name != "eager" and (mask is None or flash)
    if causal and not flash and s > t:  # a fresh static cache: only its first t places are filled
        k, s = k[:, :, :t], t
    unknown = _unknown_pattern(mask, options)
    heads = Heads(
        q.detach(),
        k.detach(),
        q.shape[-1] ** -0.5 if scaling is None else float(scaling),
        mask=None if unknown else _mask(mask, s),
        causal=causal,
        window=options.get("sliding_window") if flash else None,
        softcap=options.get("softcap"),
        bias=_detached(options.get("position_bias")),
    )
    return heads, unknown


def _unknown_pattern(mask: Any, options: dict[str, Any]) -> str | None:
    if mask is not None and not isinstance(mask, Tensor):
        return f"its mask is a {type(mask).__name__}; load the model with attn_implementation='sdpa'"
    if options.get("s_aux") is not None:
        return "its softmax has a learned extra logit (s_aux), so its weights do not add to 1 over the keys"
    return None


def _mask(mask: Tensor | None, s: int) -> Tensor | None:
    """A mask that broadcasts to (b, h, t, s): padding masks (b, s) become (b, 1, 1, s) booleans."""
    if mask is None:
        return None
    mask = mask.detach()[..., :s]
    return mask if mask.ndim == 4 else mask[:, None, None, :].bool()


def _detached(x: Tensor | None) -> Tensor | None:
    return None if x is None else x.detach()


class _AttentionFunctions(TorchFunctionMode):
    """Sees the torch functions that attention ends in, where no interface was asked."""

    def __init__(self, observer: AttentionObserver, interface_call: _InterfaceCall) -> None:
        super().__init__()
        self.observer = observer
        self.interface_call = interface_call

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not self.interface_call.active and self.observer.is_attending():
            if func is nn.functional.scaled_dot_product_attention:
                _report_heads(self.observer, *args, **kwargs)
            elif func in _SOFTMAX and args and args[0].ndim == 4:
                self.observer.on_scores(Scores(args[0].detach()))
        return func(*args, **kwargs)


def _report_heads(
    observer: AttentionObserver,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> None:
    """The arguments of `scaled_dot_product_attention` as heads; its causality counts from the first key."""
    if query.ndim != 4:
        return
    t, s = query.shape[2], key.shape[2]
    key = key[:, :, :t] if is_causal and s > t else key
    mask = None if attn_mask is None else attn_mask.detach()
    if mask is not None:
        mask = mask[(None,) * (4 - mask.ndim)]  # (t, s) -> (1, 1, t, s)
    scaling = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    observer.on_heads(Heads(query.detach(), key.detach(), scaling, mask=mask, causal=is_causal), None)


# --- attention of a model's own arithmetic ------------------------------------------------------------------------


def marked_modules(attention: nn.Module) -> tuple[nn.Module, nn.Module, nn.Module] | None:
    """The `nn.Identity` children `queries`, `keys` and `pattern` of an attention module, if it has all three."""
    children = dict(attention.named_children())
    found = [child for name in _MARKS if isinstance(child := children.get(name), nn.Identity)]
    return (found[0], found[1], found[2]) if len(found) == len(_MARKS) else None


def weighted_heads(q: Tensor, k: Tensor, weights: Tensor) -> Heads:
    """Heads whose pattern is the weights (b, h, t, s) over their sum: the bias makes up for what q·k does not say."""
    q, k, weights = q.detach(), k.detach(), weights.detach()
    scaling = q.shape[-1] ** -0.5
    logits = q @ k.repeat_interleave(q.shape[1] // k.shape[1], dim=1).mT * scaling  # (b, h, t, s)
    seen = weights > 0
    return Heads(q, k, scaling, mask=seen, bias=torch.where(seen, weights, 1.0).log() - logits)


# --- before rotary embedding --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Projection:
    """How the output of one module of an attention layer splits into queries or keys before rotary embedding."""

    path: str
    split: Callable[[Tensor], Tensor]  # (b, t, features) -> (b, heads, t, head width)


def projection(path: str, attention: nn.Module, kind: str) -> Projection:
    """Where `q.pre` or `k.pre` of an attention module can be seen; a CaptureError where it cannot.

    Norms on queries or keys (OLMo 2, Qwen 3, Gemma 3) come before the rotation and are applied here again.
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
            f"{kind} at {path}: {type(attention).__name__} has no separate projections and the layout of its fused one "
            "is not known; capture q and k, or attn, instead, or add its class to _FUSED_LAYOUTS in capture/queries.py"
        )
    part = 0 if kind == "q.pre" else 1
    return Projection(f"{owner_path}.{child}", lambda x: layout(owner, x)[part].transpose(1, 2))


def _owner(path: str, attention: nn.Module, names: tuple[str, ...]) -> tuple[str, nn.Module, str | None]:
    """The module that has a child of one of these names: its path, itself and the child's name."""
    for inner, module in attention.named_modules(prefix=path):
        for name, child in module.named_children():
            if name in names and out_features(child) is not None:
                return inner, module, name
    return path, attention, None


def _child(module: nn.Module, names: tuple[str, ...]) -> nn.Module | None:
    return next((child for name, child in module.named_children() if name in names), None)


def _head_width(owner: nn.Module) -> int:
    """The width of one head: named as such, or that of the queries over the number of heads."""
    named, query = _first_int(owner, _HEAD_WIDTH), _child(owner, _QUERY)
    if named is not None or query is None:
        return _known(owner, _HEAD_WIDTH)
    return (out_features(query) or 0) // _known(owner, _HEADS)


def _known(owner: nn.Module, names: tuple[str, ...]) -> int:
    value = _first_int(owner, names)
    if value is None:
        raise CaptureError(f"q.pre and k.pre: {type(owner).__name__} has none of the attributes {', '.join(names)}")
    return value


def _first_int(owner: nn.Module, names: tuple[str, ...]) -> int | None:
    """The first of these attributes that the attention module or its configuration has."""
    values = (getattr(place, name, None) for place in (owner, getattr(owner, "config", None)) for name in names)
    return next((value for value in values if isinstance(value, int)), None)


def _split(x: Tensor, width: int, norm: nn.Module | None) -> Tensor:
    """(b, t, heads · width) -> (b, heads, t, width), through a norm over all features or over each head's."""
    weight = getattr(norm, "weight", None)
    whole = weight is not None and weight.shape == x.shape[-1:] and weight.numel() != width
    if norm is not None and whole:
        x = norm.forward(x)
    x = x.reshape(*x.shape[:2], -1, width)  # (b, t, heads, width)
    if norm is not None and not whole:
        x = norm.forward(x)
    return x.transpose(1, 2)


def _thirds(owner: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """All queries, then all keys, then all values; keys may have fewer heads."""
    heads = _known(owner, _HEADS)
    x = x.reshape(*x.shape[:2], -1, _known(owner, _HEAD_WIDTH))  # (b, t, heads + 2 · key heads, width)
    return x[:, :, :heads], x[:, :, heads : heads + (x.shape[2] - heads) // 2]


def _head_by_head(owner: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """Each head's query, key and value beside each other."""
    x = x.reshape(*x.shape[:2], -1, 3, _known(owner, _HEAD_WIDTH))  # (b, t, heads, 3, width)
    return x[:, :, :, 0], x[:, :, :, 1]


def _falcon(owner: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    """Falcon's three generations: grouped, head by head, one key head for all."""
    if owner.new_decoder_architecture:
        groups = x.reshape(*x.shape[:2], owner.num_kv_heads, -1, owner.head_dim)  # (b, t, g, h/g + 2, width)
        return groups[:, :, :, :-2].flatten(2, 3), groups[:, :, :, -2]
    return _thirds(owner, x) if owner.multi_query else _head_by_head(owner, x)


# Layouts of fused projections, by the class that owns them; each is checked in tests against queries after rotation.
_FUSED_LAYOUTS: dict[str, Callable[[Any, Tensor], tuple[Tensor, Tensor]]] = {
    "GPT2Attention": _thirds,
    "MptAttention": _thirds,
    "ModernBertAttention": _thirds,
    "Phi3Attention": _thirds,
    "GPTNeoXAttention": _head_by_head,
    "BloomAttention": _head_by_head,
    "FalconAttention": _falcon,
}
