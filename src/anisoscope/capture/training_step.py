"""The true gradients of the live batch: d loss/d h at every residual site, taken while backward computes them.

Hooks are there from `probe` to `watch` of a due step and never else. A forward hook on each block puts a tensor hook
on the block's output; backward calls it with the gradient, whose rows are added to the site's `Moments` at once.
Under gradient checkpointing the block runs twice, but only one of its two outputs is part of the graph, so each
gradient is seen once. The blocks of a compiled model get no hooks: they would never fire, or be compiled into the
model. Such a forward is remembered with the gradient of its outputs, and `replay` runs it again eagerly.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn

from anisoscope.capture import Layout, Stack
from anisoscope.capture.invisible import draw_again, drawn_so_far, side_effect_free
from anisoscope.capture.tensors import eager, hidden_state, rows_of
from anisoscope.data.inputs import device_of
from anisoscope.data.token_table import Batch, table_of_length
from anisoscope.data.windows import as_inputs, digests, windows_of
from anisoscope.errors import CaptureError
from anisoscope.records import Site
from anisoscope.stats.moments import Moments
from anisoscope.stats.rows import bare_rows

_COMPILER = os.path.join("torch", "_dynamo", "eval_frame.py")


@dataclass
class Forward:
    """One forward of the live model: its windows, and what a replay needs where its blocks stayed silent."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    batch: Batch
    random: list[Tensor]  # the states of the random numbers when it began
    autocast: torch.dtype | None  # its precision where autocast was on
    calls: dict[str, int] = field(default_factory=dict)  # blocks called so far, by stack
    outputs: dict[int, Tensor] = field(default_factory=dict)  # d loss/d output, by place, of a silent forward

    def places(self, stack: str, items: int, length: int) -> Tensor | None:
        """The flat places of the tokens that count among items × length; None: all of them."""
        whole = self.batch.decoder if stack == "dec" and self.batch.decoder is not None else self.batch
        counts = table_of_length(whole, length).counts  # (b, T)
        return None if counts.shape != (items, length) or bool(counts.all()) else counts.flatten().nonzero()[:, 0]


class Live:
    """Gradients of the batches that run through a model between arming and disarming, added up by site."""

    def __init__(self, model: nn.Module, layout: Layout, *, strict: bool = False) -> None:
        self._model = model
        self._layout = layout
        self._strict = strict
        self._hooks = ExitStack()
        self.forget()

    def forget(self) -> None:
        """Nothing has been seen."""
        self.moments: dict[Site, Moments] = {}
        self.windows: set[bytes] = set()
        self.forwards = 0
        self.seconds = 0.0
        self._reasons: dict[Site, str] = {}  # why a site has no gradient
        self._forward: Forward | None = None  # the one that runs, or ran last
        self._inside = False
        self._silent: list[Forward] = []
        self._on_blocks = False

    @property
    def seen(self) -> bool:
        """Whether backward has been here, or there is a reason why it was not."""
        return bool(self.moments or self._reasons or any(forward.outputs for forward in self._silent))

    def reason(self, site: Site) -> str:
        return self._reasons.get(
            site, "no gradient came here: the loss does not depend on it, or its block was skipped"
        )

    def arm(self) -> None:
        """Be told of the next forward; the hooks on its blocks wait until it is seen whether a compiler runs it."""
        self.forget()
        with _undone_on_error(self._hooks):
            self._keep(self._model.register_forward_pre_hook(_untraced(self._begin), with_kwargs=True))
            self._keep(self._model.register_forward_hook(_untraced(self._end), always_call=True))

    def disarm(self) -> None:
        """Take all hooks away again; what was collected stays."""
        self._hooks.close()

    def replay(self) -> None:
        """Run the forwards whose blocks were silent again, eagerly, for the gradients at their sites."""
        for forward in self._silent:
            if forward.outputs:
                try:
                    for site, gradient in replayed(self._model, self._layout, forward):
                        self._add(site, forward, gradient)
                except Exception as error:
                    if self._strict:
                        raise
                    why = f"the eager replay failed with {type(error).__name__}: {error}"
                    self._reasons |= {site: why for site in self._layout.sites() if site.kind == "resid"}

    def _keep(self, hook: Any) -> None:
        self._hooks.callback(hook.remove)

    def _begin(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not torch.is_grad_enabled():
            return  # a look without learning: validation, a teacher
        start = perf_counter()
        if not self._on_blocks and not is_compiled_call():
            self._hook_blocks()
        batch = windows_of(as_inputs(model, args, kwargs))
        kind = device_of(model).type
        autocast = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
        self._forward = Forward(args, kwargs, batch, drawn_so_far(model), autocast)
        self._inside = True
        self.windows |= digests(batch)
        self.forwards += 1
        self.seconds += perf_counter() - start

    def _hook_blocks(self) -> None:
        self._on_blocks = True
        for stack in self._layout.stacks:
            for path, layer in {block.path: layer for layer, block in enumerate(stack.blocks)}.items():
                leave = _untraced(partial(self._leave, stack, layer))
                self._keep(self._model.get_submodule(path).register_forward_hook(leave))

    def _leave(self, stack: Stack, layer: int, _module: nn.Module, _args: Any, output: Any) -> None:
        """A block's output appears: in the forward itself, or when checkpointing computes it again in backward."""
        forward = self._forward
        if forward is None or not (self._inside or torch.is_grad_enabled()):
            return  # a look without learning
        here = forward.calls.get(stack.name, 0) if stack.shared else layer
        if self._inside:
            forward.calls[stack.name] = forward.calls.get(stack.name, 0) + 1
        elif stack.shared:
            return  # which of its calls is computed again is not known
        site = Site("resid", here, stack=stack.name)
        x = hidden_state(output)
        if x.requires_grad:
            x.register_hook(partial(self._add, site, forward))
            self._reasons.pop(site, None)
        elif site not in self.moments:
            self._reasons[site] = "no gradient comes here: nothing before this layer is trained"

    def _end(self, _model: nn.Module, _args: Any, output: Any) -> None:
        """The forward is over, or has failed, in which case there will be no `watch`."""
        forward = self._forward
        self._inside = False
        if output is None:
            self.disarm()
        elif forward is not None and not forward.calls and torch.is_grad_enabled():
            for place, x in enumerate(leaves(output)):
                if x.requires_grad:
                    x.register_hook(partial(forward.outputs.__setitem__, place))
            self._silent.append(forward)

    def _add(self, site: Site, forward: Forward, gradient: Tensor) -> None:
        """Counts the rows of one gradient; a failure of ours must not end the user's backward."""
        start = perf_counter()
        try:
            stack = next(s for s in self._layout.stacks if s.name == site.stack)
            width = stack.blocks[site.layer or 0].width
            rows = rows_of(gradient, width, stack.batch_first)  # (b, T, d)
            places = forward.places(site.stack, rows.shape[0], rows.shape[1])
            flat = rows.reshape(-1, rows.shape[-1])  # (b · T, d)
            found = Moments.of(bare_rows(flat if places is None else flat[places.to(flat.device)]))
            self.moments[site] = self.moments[site] + found if site in self.moments else found
        except Exception as error:
            if self._strict:
                raise
            self._reasons[site] = f"{type(error).__name__}: {error}"
        self.seconds += perf_counter() - start


def replayed(model: nn.Module, layout: Layout, forward: Forward) -> Iterator[tuple[Site, Tensor]]:
    """The gradients at every residual site of a forward, computed again eagerly from the gradients of its outputs.

    `autograd.grad` writes no `.grad`; modes, buffers and random numbers are as they were afterwards. Dropout draws
    what eager code would have drawn, which a compiler need not have done.
    """
    hidden: dict[Site, Tensor] = {}

    def leave(stack: Stack, layer: int, _module: nn.Module, _args: Any, output: Any) -> None:
        here = sum(site.stack == stack.name for site in hidden) if stack.shared else layer
        hidden[Site("resid", here, stack=stack.name)] = hidden_state(output)

    with ExitStack() as hooks, side_effect_free(model), eager():
        for stack in layout.stacks:
            for path, layer in {block.path: layer for layer, block in enumerate(stack.blocks)}.items():
                hook = model.get_submodule(path).register_forward_hook(partial(leave, stack, layer))
                hooks.callback(hook.remove)
        draw_again(model, forward.random)
        with torch.enable_grad(), _autocast(device_of(model).type, forward.autocast):
            outputs = list(leaves(model(*forward.args, **forward.kwargs)))
        if not hidden:
            raise CaptureError("no block ran in the eager replay; give the tracker the model that is trained")
        sites = [site for site, x in hidden.items() if x.requires_grad]
        gradients = torch.autograd.grad(
            [outputs[place] for place in forward.outputs],
            [hidden[site] for site in sites],
            list(forward.outputs.values()),
            allow_unused=True,
        )
    return ((site, g) for site, g in zip(sites, gradients, strict=True) if g is not None)


def leaves(output: Any) -> Iterator[Tensor]:
    """The float tensors of what a model returns, a scalar loss included, always in the same order."""
    if isinstance(output, Tensor):
        if output.is_floating_point():
            yield output
    elif isinstance(output, Mapping):
        for item in output.values():
            yield from leaves(item)
    elif isinstance(output, tuple | list):
        for item in output:
            yield from leaves(item)


def is_compiled_call() -> bool:
    """Whether the code that runs was called by what `torch.compile` made of it: a look at the stack of calls."""
    frame = sys._getframe(1)
    while frame.f_back is not None:
        frame = frame.f_back
        code = frame.f_code
        # what `torch.compiler.disable` wraps lives in the same file, and is the opposite
        if code.co_filename.endswith(_COMPILER) and not code.co_qualname.startswith("DisableContext"):
            return True
    return False


def _untraced(hook: Callable[..., None]) -> Callable[..., None]:
    """The hook, kept out of sight of the compiler, where there is one: loading it takes seconds."""
    if "torch._dynamo" not in sys.modules:
        return hook
    opaque: Callable[..., None] = torch.compiler.disable(hook)
    return opaque


@contextmanager
def _autocast(kind: str, dtype: torch.dtype | None) -> Iterator[None]:
    with torch.autocast(kind, dtype=dtype, enabled=dtype is not None):
        yield


@contextmanager
def _undone_on_error(hooks: ExitStack) -> Iterator[None]:
    try:
        yield
    except BaseException:
        hooks.close()
        raise
