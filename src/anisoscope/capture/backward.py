"""Activations and the true gradients of a loss at the same places: one forward and one backward a batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from anisoscope.capture import Layout, Stack
from anisoscope.capture.parts import out_features
from anisoscope.capture.tensors import eager, hidden_input, hidden_state, rows_of
from anisoscope.data.inputs import device_of
from anisoscope.errors import CaptureError
from anisoscope.records import Site


@dataclass(frozen=True)
class Places:
    """Where to look: sites of the stream; linear maps (inputs and errors) and an embedding table as `weight.<path>`."""

    sites: tuple[Site, ...]
    linears: tuple[str, ...] = ()
    embedding: str | None = None


@dataclass
class Tape:
    """The tensors of one forward, still part of the graph; rows are made of them, and of their gradients, by `rows`."""

    inputs: dict[str, Tensor] = field(default_factory=dict)  # what enters a linear map, by `weight.<path>`
    outputs: dict[str, Tensor] = field(default_factory=dict)  # sites by name; linear maps and tables by `weight.<path>`
    shapes: dict[str, tuple[int | None, bool]] = field(default_factory=dict)  # width and order of axes
    calls: dict[str, int] = field(default_factory=dict)

    def clear(self) -> None:
        for table in (self.inputs, self.outputs, self.calls):
            table.clear()

    def rows(self, name: str, x: Tensor) -> Tensor:
        """(b, T, d) of a tensor that is shaped like the output of this name."""
        width, batch_first = self.shapes.get(name, (None, True))
        return rows_of(x, width, batch_first)


@contextmanager
def differentiable(model: nn.Module) -> Iterator[None]:
    """Evaluation mode, run as written, with gradients even for frozen weights; all as it was afterwards."""
    training = [module for module in model.modules() if module.training]
    frozen = [p for p in model.parameters() if not p.requires_grad and p.is_floating_point()]
    try:
        for module in training:
            module.training = False
        for parameter in frozen:
            parameter.requires_grad_(True)
        with torch.enable_grad(), eager():
            yield
    finally:
        for module in training:
            module.training = True
        for parameter in frozen:
            parameter.requires_grad_(False)


@contextmanager
def watching(model: nn.Module, layout: Layout, places: Places) -> Iterator[Tape]:
    """Hooks that keep the tensors at these places, of the latest forward, until the `with` ends."""
    seen = Tape()
    wanted = {str(site) for site in places.sites}
    with ExitStack() as cleanup:
        for stack in layout.stacks:
            for path, layer in {block.path: layer for layer, block in enumerate(stack.blocks)}.items():
                _hook_block(model.get_submodule(path), stack, layer, wanted, seen, cleanup)
        for name in (*places.linears, *([] if places.embedding is None else [places.embedding])):
            _hook_module(model.get_submodule(name.removeprefix("weight.")), name, seen, cleanup)
        yield seen


def forward(model: nn.Module, inputs: Mapping[str, Tensor], seen: Tape) -> Any:
    """What the model returns; the tensors of the forward before are forgotten."""
    seen.clear()
    device = device_of(model)
    return model(**{name: x.to(device) if isinstance(x, Tensor) else x for name, x in inputs.items()})


def reader_and_writer(model: nn.Module, stack: Stack, layer: int) -> tuple[str | None, str | None]:
    """A block's first linear map that reads the stream and its last that writes to it, of the feed-forward layer.

    Where that shows none (fused experts), those of the attention stand in. Blocks that are called more than once have
    one gradient for all their calls, which belongs to no single layer: None.
    """
    block = stack.blocks[layer]
    if stack.shared:
        return None, None
    found = [
        (path, _sizes(module)) for path, module in model.get_submodule(block.path).named_modules(prefix=block.path)
    ]
    linears = [(path, sizes) for path, sizes in found if sizes is not None]
    outside = [(path, sizes) for path, sizes in linears if "att" not in path.removeprefix(block.path).lower()]
    readers = [path for part in (outside, linears) for path, (taken, _) in part if taken == block.width]
    writers = [path for part in (linears, outside) for path, (_, given) in part if given == block.width]
    return (f"weight.{readers[0]}" if readers else None), (f"weight.{writers[-1]}" if writers else None)


def input_embedding(model: nn.Module) -> str | None:
    """The table that token ids are looked up in, the largest one, as `weight.<path>`."""
    tables = [(m.num_embeddings, path) for path, m in model.named_modules() if isinstance(m, nn.Embedding)]
    return f"weight.{max(tables)[1]}" if tables else None


def _sizes(module: nn.Module) -> tuple[int, int] | None:
    """How many features a linear map takes and gives (Linear, the Conv1D of GPT-2), else None."""
    given = out_features(module)
    weight = getattr(module, "weight", None)
    if given is None or not isinstance(weight, Tensor) or weight.ndim != 2:
        return None
    return (
        weight.shape[0] if weight.shape[1] == given and not hasattr(module, "in_features") else weight.shape[1]
    ), given


def _hook_block(module: nn.Module, stack: Stack, layer: int, wanted: set[str], seen: Tape, cleanup: ExitStack) -> None:
    """The stream around one block; where blocks are shared, the i-th call of any of them is layer i."""

    def enter(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        calls = seen.calls.get(stack.name, 0)
        seen.calls[stack.name] = calls + 1
        name = str(Site("embed", stack=stack.name))
        x = hidden_input(args, kwargs)
        if calls == 0 and name in wanted and x is not None:
            seen.outputs[name] = x
            seen.shapes[name] = (None, stack.batch_first)

    def leave(_module: nn.Module, _args: Any, output: Any) -> None:
        here = seen.calls[stack.name] - 1 if stack.shared else layer
        name = str(Site("resid", here, stack=stack.name))
        if name in wanted:
            seen.outputs[name] = hidden_state(output)
            seen.shapes[name] = (stack.blocks[here].width, stack.batch_first)

    cleanup.callback(module.register_forward_pre_hook(enter, with_kwargs=True).remove)
    cleanup.callback(module.register_forward_hook(leave).remove)


def _hook_module(module: nn.Module, name: str, seen: Tape, cleanup: ExitStack) -> None:
    def leave(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        x = hidden_input(args, kwargs)
        if x is not None:
            seen.inputs[name] = x
        seen.outputs[name] = hidden_state(output)

    cleanup.callback(module.register_forward_hook(leave, with_kwargs=True).remove)


def require(seen: Tape, places: Places, found: Sequence[str]) -> None:
    """Silence is an error: every site must have been met, and the loss must depend on it."""
    missing = [str(site) for site in places.sites if str(site) not in found]
    if missing:
        why = "the loss does not depend on it" if missing[0] in seen.outputs else "its block was not called"
        raise CaptureError(f"{', '.join(missing)}: no gradient; {why}: leave it out of sites=, or give another loss=")
