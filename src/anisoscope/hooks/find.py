"""Find the layers of any model from its structure, instead of from a list of architectures.

The stack of a model is its largest list of blocks by parameters: a `ModuleList`, a `Sequential` of similar blocks, or
attributes that differ in a number (`layer1`, `layer2`, …). Lists inside a block (experts, sublayers) belong to the
block; lists of single torch modules are not blocks. An `encoder` next to a `decoder` makes two stacks.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from anisoscope.distributed import unwrapped
from anisoscope.errors import CaptureError
from anisoscope.hooks.layout import Layout, Stack
from anisoscope.hooks.parts import attention_paths, inside, is_norm, make_block
from anisoscope.hooks.tensors import eager, hidden_input, hidden_state, rows_of, same_tensor

# Blocks whose hidden states are (positions, batch, width), by class.
_BATCH_SECOND = ("XLNetLayer",)

_SIDE = {side: re.compile(rf"(^|_){side}coder(_|$)") for side in ("en", "de")}


def find_layout(model: nn.Module, example: Mapping[str, Any] | None = None) -> Layout:
    """Return the layout of a model, from its structure or from one forward pass of an example.

    Args:
        model: The model; wrappers such as DistributedDataParallel and `torch.compile` are looked through.
        example: Keyword arguments of the model. One forward with them settles what structure only suggests: how often
            and in which order blocks are called, every width, and whether a norm really follows the last block.

    Raises:
        CaptureError: The model has no list of blocks, or the example calls none of them.

    >>> layer = nn.TransformerEncoderLayer(8, 2, batch_first=True)
    >>> len(find_layout(nn.TransformerEncoder(layer, 3)).stacks[0].blocks)
    3
    """
    model = unwrapped(model)
    lists = _lists(model)
    if not lists:
        raise CaptureError(
            f"No list of blocks in {type(model).__name__}: expected a ModuleList, a Sequential of similar blocks or "
            "attributes such as layer1, layer2. Capture its modules by name with in.<module>."
        )
    if example is None:
        return Layout(tuple(_stack(model, name, members) for name, members in _by_side(lists)))
    trace = _trace(model, [_stack(model, "", members) for members in lists], example)
    called = [members for members in lists if not set(members).isdisjoint(trace.order)]
    if not called:
        raise CaptureError(f"The example called no block of {type(model).__name__}, such as {lists[0][0]}.")
    stacks = [_stack(model, name, members) for name, members in _by_side(called)]
    return Layout(tuple(_as_traced(model, stack, trace) for stack in stacks))


# --- lists of blocks ----------------------------------------------------------------------------------------------


def _lists(model: nn.Module) -> list[list[str]]:
    """Return the paths of every list of blocks that is not inside a block of another list, largest first."""
    lists = [(path, _members(path, module)) for path, module in model.named_modules()]
    sized = [(_size(model, members), path, members) for path, members in lists if members]
    sized.sort(key=lambda item: (-item[0], len(item[1])))
    kept: list[list[str]] = []
    for _, _, members in sized:
        if not any(inside(members[0], path) for other in kept for path in other):
            kept.append(members)
    return kept


def _members(path: str, module: nn.Module) -> list[str]:
    """Return the paths of the blocks that a module holds as a list; empty if it is not such a list."""
    children = dict(_flat_children(path, module))
    blocks = {name: child for name, child in children.items() if _is_block(child)}
    if isinstance(module, nn.ModuleList | nn.ModuleDict):
        return list(blocks) if len(blocks) == len(children) else []
    if isinstance(module, nn.Sequential):
        kinds = [type(child) for child in blocks.values()]
        return [name for name, child in blocks.items() if kinds.count(type(child)) > 1]
    numbered = [name for name in blocks if re.search(r"[a-z]\d+$", name)]
    stems = [re.sub(r"\d+$", "", name) for name in numbered]
    return [name for name, stem in zip(numbered, stems, strict=True) if stems.count(stem) > 1 and stem == stems[0]]


def _flat_children(path: str, module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield children by path; a ModuleList inside a ModuleList is never called, so its children are yielded instead."""
    for name, child in module.named_children():
        inner = f"{path}.{name}" if path else name
        if isinstance(module, nn.ModuleList) and isinstance(child, nn.ModuleList):
            yield from _flat_children(inner, child)
        else:
            yield inner, child


def _is_block(module: nn.Module) -> bool:
    """Whether a module has parameters and is more than one plain torch module."""
    plain = type(module).__module__.startswith("torch.nn.modules") and not any(True for _ in module.children())
    return not plain and not isinstance(module, nn.ModuleList) and any(True for _ in module.parameters())


def _size(model: nn.Module, members: list[str]) -> int:
    return sum(p.numel() for p in {p for path in members for p in model.get_submodule(path).parameters()})


def _by_side(lists: list[list[str]]) -> list[tuple[str, list[str]]]:
    """Return the largest list, or the largest encoder and decoder if the largest list is one of them."""
    sides: dict[str, list[str]] = {}
    for members in lists:
        parts = members[0].split(".")
        named = [side for side, pattern in _SIDE.items() if any(pattern.search(part) for part in parts)]
        if len(named) == 1:
            sides.setdefault(named[0], members)
    if len(sides) == 2 and lists[0] in sides.values():
        return [("enc", sides["en"]), ("dec", sides["de"])]
    return [("", lists[0])]


# --- one stack ----------------------------------------------------------------------------------------------------


def _stack(model: nn.Module, name: str, members: list[str]) -> Stack:
    modules = {path: model.get_submodule(path) for path in members}
    grid = any(_is_convolutional(module) for module in modules.values())
    config = _config(model, members[0])
    widths = _configured_widths(config, modules, grid)
    blocks = [make_block(model, path, widths[path], grid=grid) for path in members]
    if len(blocks) == getattr(config, "num_hidden_groups", None):  # each group of shared layers is called many times
        blocks = [blocks[i * len(blocks) // config.num_hidden_layers] for i in range(config.num_hidden_layers)]
    final = None if grid else next(_final_norms(model, members), None)
    return Stack(name, tuple(blocks), final, grid, not any(_is_batch_second(m) for m in modules.values()))


def _is_batch_second(block: nn.Module) -> bool:
    return type(block).__name__ in _BATCH_SECOND or any(
        isinstance(module, nn.MultiheadAttention) and not module.batch_first for module in block.modules()
    )


def _is_convolutional(module: nn.Module) -> bool:
    """Whether a block or stage keeps the image grid: it convolves, and is more than one attention layer."""
    convolves = any(isinstance(m, nn.Conv2d) for m in module.modules())
    is_stage = any(isinstance(m, nn.ModuleList | nn.Sequential) and _members("", m) for m in module.modules())
    return convolves and (is_stage or not attention_paths("", module))


def _config(model: nn.Module, path: str) -> Any:
    """Return the configuration of the nearest module around a block that has one, else None."""
    around = (model.get_submodule(prefix) for prefix, _ in _surroundings(model, path))
    return next((module.config for module in around if getattr(module, "config", None) is not None), None)


def _configured_widths(config: Any, modules: Mapping[str, nn.Module], grid: bool) -> dict[str, int | None]:
    """Return each block's width in the configuration: that of its stage, or that of all blocks that are not stages."""
    stages = _stages(list(modules))
    for name in ("hidden_sizes", "embed_dim"):
        sizes = getattr(config, name, None)
        if isinstance(sizes, list | tuple) and len(sizes) == max(stages) + 1:
            return {path: int(sizes[stage]) for path, stage in zip(modules, stages, strict=True)}
    width = getattr(config, "hidden_size", None)
    width = width if isinstance(width, int) and not grid else None
    return {path: width if len(attention_paths(path, m)) < 2 else None for path, m in modules.items()}


def _stages(paths: list[str]) -> list[int]:
    """Return the stage of each block, counted by the first part in which their paths differ.

    >>> _stages(["encoder.block.0.0", "encoder.block.0.1", "encoder.block.1.0"])
    [0, 0, 1]
    """
    split = [path.split(".") for path in paths]
    index = next((i for i, parts in enumerate(zip(*split, strict=False)) if len(set(parts)) > 1), 0)
    names = list(dict.fromkeys(parts[index] for parts in split))
    return [names.index(parts[index]) for parts in split]


# --- the final norm -----------------------------------------------------------------------------------------------


def _final_norms(model: nn.Module, members: list[str]) -> Iterator[str]:
    """Yield candidates for the final norm: one with such a name, or the first module defined after the stack.

    Not every candidate is one (some get only a pooled token); only an example forward can tell.
    """
    for prefix, children in _surroundings(model, members[0]):
        paths = [f"{prefix}.{name}" if prefix else name for name in children]
        yield from (
            path
            for path, (name, child) in zip(paths, children.items(), strict=True)
            if "final" in name and is_norm(child)
        )
        last = max(i for i, path in enumerate(paths) if any(inside(member, path) for member in members))
        for path in paths[last + 1 :]:
            module = model.get_submodule(path)
            if is_norm(module) and not re.search(r"embed|^pre", path.rpartition(".")[2]):
                yield path
            elif not is_norm(module) and any(True for _ in module.parameters()):
                return


def _norms_around(model: nn.Module, path: str) -> Iterator[str]:
    """Yield every norm next to a block or next to one of the modules around it."""
    for prefix, children in _surroundings(model, path):
        yield from (f"{prefix}.{name}" if prefix else name for name, child in children.items() if is_norm(child))


def _surroundings(model: nn.Module, path: str) -> Iterator[tuple[str, dict[str, nn.Module]]]:
    """Yield the paths and children of the modules around a block, innermost first."""
    parts = path.split(".")
    for depth in range(len(parts) - 1, -1, -1):
        prefix = ".".join(parts[:depth])
        yield prefix, dict(model.get_submodule(prefix).named_children())


# --- an example forward -------------------------------------------------------------------------------------------


@dataclass
class _Trace:
    """What an example forward showed: the order of block calls, their widths, and which norm got which output."""

    order: list[str] = field(default_factory=list)
    widths: dict[str, int] = field(default_factory=dict)
    grids: set[str] = field(default_factory=set)
    norms: dict[str, str] = field(default_factory=dict)  # norm -> the block whose output it received
    latest: Tensor | None = None

    def block(self, path: str, output: Any, batch_first: bool) -> None:
        x = hidden_state(output)
        self.order.append(path)
        self.latest = x
        self.widths[path] = rows_of(x, None, batch_first).shape[-1]
        if x.ndim > 3:
            self.grids.add(path)

    def norm(self, path: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        if same_tensor(hidden_input(args, kwargs), self.latest):
            self.norms[path] = self.order[-1]


def _trace(model: nn.Module, stacks: list[Stack], example: Mapping[str, Any]) -> _Trace:
    """Run the example once, without gradients and in evaluation mode; the model is left as it was."""
    trace = _Trace()
    blocks = {block.path: stack.batch_first for stack in stacks for block in stack.blocks}
    norms = {norm for stack in stacks for norm in _norms_around(model, stack.blocks[0].path)}
    training = [module for module in model.modules() if module.training]
    with ExitStack() as cleanup:
        for path, batch_first in blocks.items():
            hook = model.get_submodule(path).register_forward_hook(_on_block(trace, path, batch_first))
            cleanup.callback(hook.remove)
        for path in norms:
            hook = model.get_submodule(path).register_forward_pre_hook(_on_norm(trace, path), with_kwargs=True)
            cleanup.callback(hook.remove)
        cleanup.callback(_set_training, training, True)
        _set_training(training, False)  # not model.eval(), which some models override
        with torch.no_grad(), eager():
            model(**example)
    return replace(trace, latest=None)


def _set_training(modules: list[nn.Module], mode: bool) -> None:
    for module in modules:
        module.training = mode


def _on_block(trace: _Trace, path: str, batch_first: bool) -> Callable[..., None]:
    return lambda _module, _args, output: trace.block(path, output, batch_first)


def _on_norm(trace: _Trace, path: str) -> Callable[..., None]:
    return lambda _module, args, kwargs: trace.norm(path, args, kwargs)


def _as_traced(model: nn.Module, stack: Stack, trace: _Trace) -> Stack:
    """Return the stack as the example ran it: blocks in the order of calls, actual widths, the actual final norm."""
    members = {block.path for block in stack.blocks}
    order = [path for path in trace.order if path in members]
    grid = order[0] in trace.grids
    blocks = tuple(make_block(model, path, trace.widths[path], grid=grid) for path in order)
    final = next((norm for norm, block in trace.norms.items() if block == order[-1]), None)
    return replace(stack, blocks=blocks, final=final, grid=grid)
