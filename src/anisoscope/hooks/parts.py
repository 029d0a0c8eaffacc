"""The parts of one block: its self-attention, its feed-forward layer, and the modules that output their results."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

from torch import nn

from anisoscope.hooks.layout import LayerRef

_ATTENTION = re.compile(r"attn|attention", re.IGNORECASE)
_CROSS = re.compile(r"cross|encdec|encoder_attn|encoder_decoder", re.IGNORECASE)
_MLP = re.compile(r"mlp|ffn|ff|feed_?forward|moe|mlp_block|block_sparse_moe|DenseReluDense", re.IGNORECASE)
_ROUTER = re.compile(r"gate|router|gating|classifier", re.IGNORECASE)
_EXPERTS = re.compile(r"experts", re.IGNORECASE)


def make_block(model: nn.Module, path: str, width: int | None, *, grid: bool) -> LayerRef:
    """Return a block with its sublayers; stages of several attention layers, and convolutions, have none."""
    module = model.get_submodule(path)
    attentions = attention_paths(path, module)
    if grid or len(attentions) > 1:
        return LayerRef(path, width)
    attention = attentions[0] if attentions else None
    attn = None if attention is None else _output_of(attention, model.get_submodule(attention), width)
    if width is None and attn is not None:
        width = out_features(model.get_submodule(attn))
    mlp = _mlp_path(path, module, attention, width)
    shown = attention if _shows_queries(model, attention) else None
    return LayerRef(path, width, shown, attn, mlp, router_path(path, module, attention))


def _shows_queries(model: nn.Module, attention: str | None) -> bool:
    """False for nn.MultiheadAttention, which is one function, and for linear attention, which has no softmax."""
    if attention is None or "linear" in attention.rpartition(".")[2]:
        return False
    return not isinstance(model.get_submodule(attention), nn.MultiheadAttention)


def attention_paths(path: str, module: nn.Module) -> list[str]:
    """Return the paths of the outermost self-attention modules inside a block."""
    paths: list[str] = []
    for name, child in module.named_modules(prefix=path):
        last = name.rpartition(".")[2]
        is_attention = _ATTENTION.search(last) or isinstance(child, nn.MultiheadAttention)
        if name == path or not is_attention or _CROSS.search(last) or any(inside(name, other) for other in paths):
            continue
        if any(True for _ in child.children()) and not is_norm(child):
            paths.append(name)
    named_self = [name for name in paths if "self" in name.rpartition(".")[2].lower()]
    return named_self or paths


def _output_of(path: str, module: nn.Module, width: int | None) -> str | None:
    """Return the module that outputs a sublayer's result before any residual add: its last projection to the stream.

    Without projections that is the module itself, unless it normalises: then its output already includes the residual.
    """
    if isinstance(module, nn.MultiheadAttention):
        return path  # it uses its projection without calling it
    projections = [
        name
        for name, out in _projections(path, module)
        if (width is None or out == width) and "gate" not in name.rpartition(".")[2]
    ]
    if projections:
        return projections[-1]
    return None if _normalises(module) else path


def _mlp_path(path: str, module: nn.Module, attention: str | None, width: int | None) -> str | None:
    """Return the feed-forward sublayer: a module with such a name, or the block's last projection outside attention."""
    named = [
        (name, child)
        for name, child in module.named_modules(prefix=path)
        if _MLP.fullmatch(name.rpartition(".")[2]) and out_features(child) is None and name != path
    ]
    if named:
        name, child = named[0]
        adds_residual = "residual" in inspect.signature(child.forward).parameters or _normalises(child)
        return _output_of(name, child, width) if adds_residual else name
    if attention is None:
        return None
    outside = [
        name
        for name, out in _projections(path, module)
        if (width is None or out == width) and not any(_ATTENTION.search(p) for p in name[len(path) :].split("."))
    ]
    return outside[-1] if outside else None


def router_path(path: str, module: nn.Module, attention: str | None) -> str | None:
    """Return the module that chooses experts: a `gate` or `router` next to modules called experts."""
    for name, child in module.named_modules(prefix=path):
        owner, _, last = name.rpartition(".")
        within_attention = attention is not None and inside(name, attention)
        if not _ROUTER.fullmatch(last) or within_attention or not any(True for _ in child.parameters()):
            continue
        siblings = [sibling for sibling, _ in module.get_submodule(owner[len(path) + 1 :]).named_children()]
        if any(_EXPERTS.search(sibling) for sibling in siblings):
            return name
    return None


def _projections(path: str, module: nn.Module) -> Iterator[tuple[str, int]]:
    """Yield path and output features of the linear maps inside a module; an adapter counts as the map it wraps."""
    for name, child in module.named_children():
        inner = f"{path}.{name}" if path else name
        out = out_features(child)
        if out is not None:
            yield inner, out
        else:
            yield from _projections(inner, child)


def out_features(module: nn.Module) -> int | None:
    """Return the output features of a linear map (Linear, quantised or adapted Linear, Conv1D of GPT-2), else None."""
    if isinstance(module, nn.MultiheadAttention):
        return int(module.embed_dim)
    out: Any = getattr(module, "out_features", getattr(module, "nf", None))
    return out if isinstance(out, int) else None


def _normalises(module: nn.Module) -> bool:
    return any(is_norm(child) for child in module.children())


def is_norm(module: nn.Module) -> bool:
    return "norm" in type(module).__name__.lower() and not any(True for _ in module.children())


def inside(path: str, outer: str) -> bool:
    return path == outer or path.startswith(outer + ".")
