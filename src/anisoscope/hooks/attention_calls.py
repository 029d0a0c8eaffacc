"""Queries, keys and patterns of attention as it is computed: what its attention function receives.

Models of the transformers library fetch their attention function from `AttentionInterface.get_interface`. While a
capture runs, the function it returns is wrapped: q, k and the mask are reported, then the same function is called with
the same arguments. No name changes, so masks and every branch on the implementation's name stay as they are, and
outputs are bit-identical. Attention that does not use the interface is observed one level lower, where it calls
`scaled_dot_product_attention` (q and k) or `softmax` (logits only). Attention that ends in its own arithmetic (a
sigmoid, say) can pass queries, keys and weights through `nn.Identity` children called `queries`, `keys` and `pattern`:
see `marked_modules`.
"""

from __future__ import annotations

import inspect
import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from anisoscope.stats.head_scores import Heads, Scores

_ATTENDING = frozenset(
    (nn.functional.scaled_dot_product_attention, nn.functional.softmax, torch.softmax, Tensor.softmax)
)
_MARKS = ("queries", "keys", "pattern")


class AttentionObserver(Protocol):
    """Receives what the attention layer that runs at the moment computes with."""

    def is_attending(self) -> bool:
        """Whether a self-attention layer of interest is running."""

    def on_heads(self, heads: Heads, unknown_pattern: str | None) -> None:
        """Receive queries and keys; `unknown_pattern` is the reason if they do not determine the probabilities."""

    def on_scores(self, scores: Scores) -> None:
        """Receive the logits that enter a softmax."""


@contextmanager
def observe_attention(observer: AttentionObserver) -> Iterator[None]:
    """Report every attention that runs inside the `with` to the observer; restore everything afterwards."""
    with _wrapped_attention_interface(observer) as interface_call, _AttentionFunctions(observer, interface_call):
        yield


# --- the attention interface of transformers ----------------------------------------------------------------------


class _InterfaceCall:
    """Whether a wrapped attention function runs, whose inner calls must not be reported a second time."""

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
        # Captures of several threads may end in any order: remove only finished overlays that are on top.
        while not getattr(interface.get_interface, "state", {"active": True})["active"]:
            interface.get_interface = interface.get_interface.state["inner"]


def _observed(
    function: Callable[..., Any], name: str, observer: AttentionObserver, interface_call: _InterfaceCall
) -> Callable[..., Any]:
    def attention(
        module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Any, *rest: Any, **options: Any
    ) -> Any:
        heads, unknown = _heads(module, name, query, key, mask, _by_name(function, rest) | options)
        observer.on_heads(_with_values(heads, value), unknown)
        interface_call.active = True
        try:
            return function(module, query, key, value, mask, *rest, **options)
        finally:
            interface_call.active = False

    return attention


def _by_name(function: Callable[..., Any], rest: tuple[Any, ...]) -> dict[str, Any]:
    """Return the positional arguments after (module, query, key, value, mask) by the function's names for them."""
    return dict(zip(list(inspect.signature(function).parameters)[5:], rest, strict=False)) if rest else {}


def _heads(
    module: nn.Module, name: str, q: Tensor, k: Tensor, mask: Any, options: dict[str, Any]
) -> tuple[Heads, str | None]:
    """Return the heads that an implementation computes from its arguments, and why they lack the pattern, if so."""
    t, s = q.shape[2], k.shape[2]
    scaling = options.get("scaling")
    is_causal = options.get("is_causal")
    is_causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    flash = "flash" in (name or "")
    # Without a mask `eager` attends to everything, while fused kernels use the flag.
    causal = bool(is_causal) and t > 1 and name != "eager" and (mask is None or flash)
    if causal and not flash and s > t:  # a fresh static cache: only its first t positions are filled
        k, s = k[:, :, :t], t
    unknown = _unknown_pattern(mask, options)
    heads = Heads(
        q,
        k,
        q.shape[-1] ** -0.5 if scaling is None else float(scaling),
        mask=None if unknown else _mask(mask, s),
        causal=causal,
        window=options.get("sliding_window") if flash else None,
        softcap=options.get("softcap"),
        bias=_detached(options.get("position_bias")),
    )
    return heads, unknown


def _with_values(heads: Heads, value: Tensor) -> Heads:
    """Add the values of the keys of these heads; a fresh static cache holds more positions."""
    return replace(heads, v=value[:, :, : heads.k.shape[2]])


def _unknown_pattern(mask: Any, options: dict[str, Any]) -> str | None:
    if mask is not None and not isinstance(mask, Tensor):
        return f"Its mask is a {type(mask).__name__}. Load the model with attn_implementation='sdpa'."
    if options.get("s_aux") is not None:
        return "Its softmax has a learned extra logit (s_aux), so its weights do not add up to 1 over the keys."
    return None


def _mask(mask: Tensor | None, s: int) -> Tensor | None:
    """Return a mask that broadcasts to (b, h, t, s); padding masks (b, s) become (b, 1, 1, s) booleans."""
    if mask is None:
        return None
    mask = mask.detach()[..., :s]
    return mask if mask.ndim == 4 else mask[:, None, None, :].bool()


def _detached(x: Tensor | None) -> Tensor | None:
    return None if x is None else x.detach()


# --- torch functions ----------------------------------------------------------------------------------------------


class _AttentionFunctions(TorchFunctionMode):
    """Observes the torch functions that attention ends in, if it does not use the interface."""

    def __init__(self, observer: AttentionObserver, interface_call: _InterfaceCall) -> None:
        super().__init__()
        self.observer = observer
        self.interface_call = interface_call

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        # every function of the forward pass comes here, so the cheapest question is first
        if func in _ATTENDING and not self.interface_call.active and self.observer.is_attending():
            if func is nn.functional.scaled_dot_product_attention:
                heads = _heads_of_sdpa(*args, **kwargs)
                if heads is not None:
                    self.observer.on_heads(heads, None)
            elif args and args[0].ndim == 4:
                self.observer.on_scores(Scores(args[0].detach()))
        return func(*args, **kwargs)


def _heads_of_sdpa(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Heads | None:
    """Return the heads of a call of `scaled_dot_product_attention`; its causal mask is aligned to the first key."""
    if query.ndim != 4:
        return None
    t, s = query.shape[2], key.shape[2]
    key = key[:, :, :t] if is_causal and s > t else key
    mask = None if attn_mask is None else attn_mask.detach()
    if mask is not None:
        mask = mask[(None,) * (4 - mask.ndim)]  # (t, s) -> (1, 1, t, s)
    scaling = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    return _with_values(Heads(query, key, scaling, mask=mask, causal=is_causal), value)


# --- marked modules -----------------------------------------------------------------------------------------------


def marked_modules(attention: nn.Module) -> tuple[nn.Module, nn.Module, nn.Module] | None:
    """Return the `nn.Identity` children `queries`, `keys` and `pattern` of an attention module, if it has all three."""
    children = dict(attention.named_children())
    marked = [child for name in _MARKS if isinstance(child := children.get(name), nn.Identity)]
    return (marked[0], marked[1], marked[2]) if len(marked) == len(_MARKS) else None


def weighted_heads(q: Tensor, k: Tensor, weights: Tensor) -> Heads:
    """Return heads whose pattern is `weights` over their sum.

    The bias of the heads is the difference between the logits that give these weights and q·k.

    Args:
        q: (b, h, t, d).
        k: (b, key heads, s, d).
        weights: (b, h, t, s), not negative.
    """
    weights = weights.detach()
    scaling = q.shape[-1] ** -0.5
    logits = q.detach() @ k.detach().repeat_interleave(q.shape[1] // k.shape[1], dim=1).mT * scaling  # (b, h, t, s)
    attended = weights > 0  # (b, h, t, s)
    return Heads(q, k, scaling, mask=attended, bias=torch.where(attended, weights, 1.0).log() - logits)
