"""Activations and the true gradients of a loss at the same sites, from one forward and one backward per batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from anisoscope.data.inputs import device_of
from anisoscope.distributed import unwrapped
from anisoscope.errors import CaptureError
from anisoscope.hooks.layer_calls import LayerCall, LayerCalls
from anisoscope.hooks.layout import Layout, Stack
from anisoscope.hooks.parts import out_features
from anisoscope.hooks.tensors import eager, hidden_input, hidden_state, rows_of
from anisoscope.records import Site


@dataclass(frozen=True)
class TapeTargets:
    """What a tape records: sites of the stream, and modules by the name of their weight, `weight.<path>`."""

    sites: tuple[Site, ...]
    linears: tuple[str, ...] = ()  # linear maps: what enters and what leaves them
    embedding: str | None = None  # the embedding table: what leaves it


@dataclass
class Tape:
    """The tensors of the latest forward, still part of its graph."""

    inputs: dict[str, Tensor] = field(default_factory=dict)  # what enters a linear map, by `weight.<path>`
    outputs: dict[str, Tensor] = field(default_factory=dict)  # sites by name; linear maps and tables by `weight.<path>`
    shapes: dict[str, tuple[int | None, bool]] = field(default_factory=dict)  # width and order of axes, by name

    def clear(self) -> None:
        self.inputs.clear()
        self.outputs.clear()

    def rows(self, name: str, x: Tensor) -> Tensor:
        """Return (b, T, d) of a tensor that is shaped like the output of this name, such as its gradient."""
        width, batch_first = self.shapes.get(name, (None, True))
        return rows_of(x, width, batch_first)


@contextmanager
def differentiable(model: nn.Module) -> Iterator[None]:
    """Run the model eagerly, in evaluation mode, with gradients even for frozen weights; restore it afterwards."""
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
def record_tape(model: nn.Module, layout: Layout, targets: TapeTargets) -> Iterator[Tape]:
    """Record the tensors at the targets during each forward inside the `with`; the tape holds those of the latest.

    Raises:
        CaptureError: During a forward, if a site is met twice or has another width than the layout expects.
    """
    model = unwrapped(model)
    tape, calls = Tape(), LayerCalls()
    with ExitStack() as cleanup:
        calls.hook_forward(model, cleanup)
        for stack in layout.stacks:
            _record_stack(model, stack, {str(site) for site in targets.sites}, tape, calls, cleanup)
        for name in (*targets.linears, *([] if targets.embedding is None else [targets.embedding])):
            _record_module(model.get_submodule(name.removeprefix("weight.")), name, tape, cleanup)
        yield tape


def run_model(model: nn.Module, inputs: Mapping[str, Tensor], tape: Tape) -> Any:
    """Clear the tape, call the model with the inputs moved to its device, and return what it returns."""
    tape.clear()
    device = device_of(model)
    return model(**{name: x.to(device) if isinstance(x, Tensor) else x for name, x in inputs.items()})


def require_gradients(tape: Tape, targets: TapeTargets, names: Sequence[str]) -> None:
    """Raise a `CaptureError` unless every site of the targets is among the names that have a gradient."""
    missing = [str(site) for site in targets.sites if str(site) not in names]
    if missing:
        reason = "the loss does not depend on it" if missing[0] in tape.outputs else "its block was not called"
        raise CaptureError(
            f"{', '.join(missing)}: no gradient, because {reason}. Leave it out of sites=, or pass another loss=."
        )


def reader_and_writer(model: nn.Module, stack: Stack, layer: int) -> tuple[str | None, str | None]:
    """Return a block's first linear map that reads the stream and its last one that writes to it, as `weight.<path>`.

    They are taken from the feed-forward layer, or from the attention if that has none (fused experts). Both are None
    for a block that is called more than once: its weights have one gradient for all calls, which belongs to no layer.
    """
    block = stack.blocks[layer]
    if stack.shared:
        return None, None
    modules = unwrapped(model).get_submodule(block.path).named_modules(prefix=block.path)
    sized = [(path, _sizes(module)) for path, module in modules]
    linears = [(path, sizes) for path, sizes in sized if sizes is not None]
    outside = [(path, sizes) for path, sizes in linears if "att" not in path.removeprefix(block.path).lower()]
    readers = [path for part in (outside, linears) for path, (n_in, _) in part if n_in == block.width]
    writers = [path for part in (linears, outside) for path, (_, n_out) in part if n_out == block.width]
    return (f"weight.{readers[0]}" if readers else None), (f"weight.{writers[-1]}" if writers else None)


def input_embedding(model: nn.Module) -> str | None:
    """Return the largest embedding table, which token ids are looked up in, as `weight.<path>`."""
    modules = unwrapped(model).named_modules()
    tables = [(m.num_embeddings, path) for path, m in modules if isinstance(m, nn.Embedding)]
    return f"weight.{max(tables)[1]}" if tables else None


def _sizes(module: nn.Module) -> tuple[int, int] | None:
    """Input and output features of a linear map (Linear, the Conv1D of GPT-2), else None."""
    n_out = out_features(module)
    weight = getattr(module, "weight", None)
    if n_out is None or not isinstance(weight, Tensor) or weight.ndim != 2:
        return None
    transposed = weight.shape[1] == n_out and not hasattr(module, "in_features")  # Conv1D stores (in, out)
    return weight.shape[0 if transposed else 1], n_out


def _record_stack(
    model: nn.Module, stack: Stack, names: set[str], tape: Tape, calls: LayerCalls, cleanup: ExitStack
) -> None:
    """Record the stream before the first block and after every block."""

    def record(site: Site, width: int | None, x: Tensor) -> None:
        if str(site) in names and calls.in_forward:
            calls.meet(site)
            tape.outputs[str(site)] = x
            tape.shapes[str(site)] = (width, stack.batch_first)

    def on_input(call: LayerCall, x: Tensor) -> None:
        if call.is_first:
            record(Site("embed", stack=stack.name), None, x)

    def on_output(call: LayerCall, x: Tensor) -> None:
        record(call.site, stack.blocks[call.layer].width, x)

    calls.hook_blocks(model, stack, cleanup, on_input=on_input, on_output=on_output)


def _record_module(module: nn.Module, name: str, tape: Tape, cleanup: ExitStack) -> None:
    def leave(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        x = hidden_input(args, kwargs)
        if x is not None:
            tape.inputs[name] = x
        tape.outputs[name] = hidden_state(output)

    cleanup.callback(module.register_forward_hook(leave, with_kwargs=True).remove)
