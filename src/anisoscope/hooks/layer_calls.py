"""Which layer each call of a block is: the only place that hooks the blocks of a model."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from anisoscope.distributed import unwrapped
from anisoscope.errors import CaptureError
from anisoscope.hooks.layout import Stack
from anisoscope.hooks.tensors import hidden_input, hidden_state, rows_of
from anisoscope.records import Site

_REMEDY = "Pass layout=find_layout(model, example), which runs the model once and counts calls and widths."


@dataclass(frozen=True)
class LayerCall:
    """One call of a block: the stack it belongs to and the layer it computes."""

    stack: Stack
    layer: int
    is_first: bool = False  # of the stack's calls in this forward

    @property
    def site(self) -> Site:
        """The site of the block's output."""
        return Site("resid", self.layer, stack=self.stack.name)

    @property
    def is_last_layer(self) -> bool:
        return self.layer == len(self.stack.blocks) - 1

    def rows(self, x: Tensor) -> Tensor:
        """Return (batch, positions, width) of a tensor shaped like the block's output.

        Raises:
            CaptureError: The width is not the one the layout expects.
        """
        width = self.stack.blocks[self.layer].width
        rows = rows_of(x, width, self.stack.batch_first)  # (b, T, d)
        if width is not None and rows.shape[-1] != width:
            raise CaptureError(f"{self.site} is {rows.shape[-1]} wide, but the layout expects {width}. {_REMEDY}")
        return rows


OnTensor = Callable[[LayerCall, Tensor], None]
Wrap = Callable[[Callable[..., None]], Callable[..., None]]


class LayerCalls:
    """Hooks on the blocks of a model that report which layer each call is.

    A block that its stack uses once is always the same layer, even if other layers are skipped. In a stack with
    shared blocks the i-th call within a forward is layer i. Calls outside a forward of the model (a block that
    gradient checkpointing runs again in backward) are reported only if their layer is certain: see `in_forward`.
    """

    def __init__(self) -> None:
        self.running: dict[str, int] = {}  # the layer that runs now, by stack; needs `on_input`
        self._depth = 0  # of nested forwards of the model
        self._finished: dict[str, int] = {}  # block calls of this forward, by stack
        self._met: set[Site] = set()

    @property
    def in_forward(self) -> bool:
        return self._depth > 0

    @property
    def any_finished(self) -> bool:
        """Whether any block has been called in this forward, or in the last one."""
        return bool(self._finished)

    def begin_forward(self) -> None:
        if self._depth == 0:
            self.running.clear()
            self._finished.clear()
            self._met.clear()
        self._depth += 1

    def end_forward(self) -> None:
        self._depth -= 1

    def meet(self, site: Site) -> None:
        """Note that a site was reported; raise a `CaptureError` at the second time in one forward."""
        if site in self._met:
            raise CaptureError(f"{site} was met twice in one forward: its module is called repeatedly. {_REMEDY}")
        self._met.add(site)

    def hook_forward(self, model: nn.Module, cleanup: ExitStack) -> None:
        """Let the model's own calls begin and end forwards, also those that fail."""
        model = unwrapped(model)
        begin = model.register_forward_pre_hook(lambda _module, _args: self.begin_forward())
        cleanup.callback(begin.remove)
        end = model.register_forward_hook(lambda _module, _args, _output: self.end_forward(), always_call=True)
        cleanup.callback(end.remove)

    def hook_blocks(
        self,
        model: nn.Module,
        stack: Stack,
        cleanup: ExitStack,
        *,
        on_output: OnTensor,
        on_input: OnTensor | None = None,
        wrap: Wrap = lambda hook: hook,
    ) -> None:
        """Report the hidden states that enter and leave the blocks of a stack, until `cleanup` is closed.

        Args:
            model: The model, wrapped or not.
            stack: Its blocks.
            cleanup: Removes the hooks when it is closed.
            on_output: Called after each block with the call and what the block returned, as the model holds it.
            on_input: Called before each block with the call and the hidden state that enters it.
            wrap: Applied to every hook before it is registered.
        """
        model = unwrapped(model)
        for path, layer in {block.path: layer for layer, block in enumerate(stack.blocks)}.items():
            block = model.get_submodule(path)
            if on_input is not None:
                enter = wrap(self._enter(stack, layer, on_input))
                cleanup.callback(block.register_forward_pre_hook(enter, with_kwargs=True).remove)
            leave = wrap(self._leave(stack, layer, on_output))
            cleanup.callback(block.register_forward_hook(leave).remove)

    def _enter(self, stack: Stack, layer: int, report: OnTensor) -> Callable[..., None]:
        def enter(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            call = self._call(stack, layer)
            self.running[stack.name] = call.layer
            x = hidden_input(args, kwargs)
            if x is not None:
                report(call, x)

        return enter

    def _leave(self, stack: Stack, layer: int, report: OnTensor) -> Callable[..., None]:
        def leave(_module: nn.Module, _args: Any, output: Any) -> None:
            call = self._call(stack, layer)
            self.running.pop(stack.name, None)
            if self.in_forward:
                self._finished[stack.name] = self._finished.get(stack.name, 0) + 1
            elif stack.shared:
                return  # which of its calls is computed again is not known
            if call.layer >= len(stack.blocks):
                raise CaptureError(
                    f"The shared blocks were called more than the {len(stack.blocks)} times expected. {_REMEDY}"
                )
            x = hidden_state(output)
            call.rows(x.detach())  # checks the width
            report(call, x)

        return leave

    def _call(self, stack: Stack, layer: int) -> LayerCall:
        calls = self._finished.get(stack.name, 0)
        return LayerCall(stack, calls if stack.shared else layer, is_first=calls == 0)
