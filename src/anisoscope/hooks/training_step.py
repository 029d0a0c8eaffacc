"""The true gradients d loss/d h at every residual site of the batch that is being trained on.

Hooks exist only between `GradientRecorder.arm` and `disarm`. A hook on each block registers a tensor hook on the
block's output; backward calls that with the gradient, whose rows are added to the site's `Moments` at once. Under
gradient checkpointing a block runs twice, but only one of its two outputs is part of the graph, so each gradient is
counted once.

The blocks of a compiled model get no hooks: they would never fire, or would be compiled into the model. Instead the
forward is remembered with the gradients of its outputs, and `GradientRecorder.replay` runs it again eagerly.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial, wraps
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn

from anisoscope.data.inputs import device_of
from anisoscope.data.token_table import Batch, table_of_length
from anisoscope.data.windows import as_inputs, digests, windows_of
from anisoscope.errors import CaptureError
from anisoscope.hooks.invisible import get_random_states, set_random_states, side_effect_free
from anisoscope.hooks.layer_calls import LayerCall, LayerCalls
from anisoscope.hooks.layout import Layout
from anisoscope.hooks.tensors import eager
from anisoscope.records import Site
from anisoscope.stats.moments import Moments
from anisoscope.stats.rows import bare_rows


@dataclass
class TrainingForward:
    """One forward of the model in training: its windows, and what is needed to replay it."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    batch: Batch
    random_states: list[Tensor]  # when it began
    autocast: torch.dtype | None  # its precision if autocast was on
    output_gradients: dict[int, Tensor] = field(default_factory=dict)  # by index among `float_tensors` of the output

    def keep_gradient(self, index: int, gradient: Tensor | None) -> None:
        """Keep the gradient of an output; compiled code passes None for an output that the loss does not use."""
        if gradient is not None:
            self.output_gradients[index] = gradient

    def counted_tokens(self, stack: str, items: int, length: int) -> Tensor | None:
        """Return the flat indices of the tokens that count among items × length; None if all of them do."""
        batch = self.batch.decoder if stack == "dec" and self.batch.decoder is not None else self.batch
        counts = table_of_length(batch, length).counts  # (b, T)
        return None if counts.shape != (items, length) or bool(counts.all()) else counts.flatten().nonzero()[:, 0]


class GradientRecorder:
    """Sums of the gradient rows at each residual site, over the batches between `arm` and `disarm`.

    Args:
        model: The bare model, without wrappers.
        layout: Its layout.
        strict: Raise errors of the recorder inside the training loop, instead of giving them as `reason`.
    """

    def __init__(self, model: nn.Module, layout: Layout, *, strict: bool = False) -> None:
        self._model = model
        self._layout = layout
        self._strict = strict
        self._hooks = ExitStack()
        self.clear()

    def clear(self) -> None:
        """Forget everything that was recorded."""
        self.moments: dict[Site, Moments] = {}
        self.windows: set[bytes] = set()  # digests of the windows of all forwards
        self.forwards = 0
        self.seconds = 0.0  # spent in hooks, inside the user's forward and backward
        self._reasons: dict[Site, str] = {}  # why a site has no gradient
        self._failure: str | None = None  # of a hook, whose site is not known
        self._forward: TrainingForward | None = None  # the one that runs, or ran last
        self._calls = LayerCalls()
        self._to_replay: list[TrainingForward] = []
        self._blocks_hooked = False

    @property
    def has_gradients(self) -> bool:
        """Whether backward has run, or there is a reason why it left no gradient."""
        explained = self._reasons or self._failure is not None
        return bool(self.moments or explained or any(forward.output_gradients for forward in self._to_replay))

    def reason(self, site: Site) -> str:
        """Return why a site has no gradient."""
        unused = "no gradient reached this layer: the loss does not depend on it, or its block was skipped"
        return self._reasons.get(site, self._failure or unused)

    def arm(self) -> None:
        """Forget what was recorded and hook the model; its blocks are hooked in the forward, unless it is compiled."""
        self.clear()
        detector = _CompilationDetector()
        try:
            if _compiler_is_loaded():
                self._remove_later(self._model.register_forward_pre_hook(detector.detect))
            begin = _hidden_from_compiler(partial(self._begin, detector))
            self._remove_later(self._model.register_forward_pre_hook(begin, with_kwargs=True))
            end = _hidden_from_compiler(self._end)
            self._remove_later(self._model.register_forward_hook(end, always_call=True))
        except BaseException:
            self._hooks.close()
            raise

    def disarm(self) -> None:
        """Remove all hooks; what was recorded stays."""
        self._hooks.close()

    def replay(self) -> None:
        """Run the forwards of a compiled model again, eagerly, for the gradients at its sites."""
        for forward in self._to_replay:
            if forward.output_gradients:
                try:
                    for call, gradient in replay_gradients(self._model, self._layout, forward):
                        self._add(call, forward, gradient)
                except Exception as error:
                    if self._strict:
                        raise
                    why = f"the eager replay failed with {type(error).__name__}: {error}"
                    self._reasons |= {site: why for site in self._layout.sites() if site.kind == "resid"}

    def _remove_later(self, hook: Any) -> None:
        self._hooks.callback(hook.remove)

    def _begin(
        self, detector: _CompilationDetector, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        if not torch.is_grad_enabled():
            return  # no training: validation, a teacher
        start = perf_counter()
        if not self._blocks_hooked and not detector.is_compiled:
            self._hook_blocks()
        batch = windows_of(as_inputs(model, args, kwargs))
        kind = device_of(model).type
        autocast = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
        self._forward = TrainingForward(args, kwargs, batch, get_random_states(model), autocast)
        self._calls.begin_forward()
        self.windows |= digests(batch)
        self.forwards += 1
        self.seconds += perf_counter() - start

    def _hook_blocks(self) -> None:
        self._blocks_hooked = True
        for stack in self._layout.stacks:
            self._calls.hook_blocks(
                self._model,
                stack,
                self._hooks,
                on_output=self._on_output,
                wrap=lambda hook: _hidden_from_compiler(self._harmless(hook)),
            )

    def _harmless(self, hook: Callable[..., None]) -> Callable[..., None]:
        """Let a failure of a hook become the reason that gradients are missing: it must not end the user's forward."""

        @wraps(hook)
        def guarded(*args: Any) -> None:
            try:
                hook(*args)
            except Exception as error:
                if self._strict:
                    raise
                self._failure = f"{type(error).__name__}: {error}"

        return guarded

    def _on_output(self, call: LayerCall, x: Tensor) -> None:
        """Hook a block's output, in the forward or when gradient checkpointing computes it again in backward."""
        forward = self._forward
        if forward is None or not (self._calls.in_forward or torch.is_grad_enabled()):
            return  # no training
        if x.requires_grad:
            x.register_hook(partial(self._add, call, forward))
            self._reasons.pop(call.site, None)
        elif call.site not in self.moments:
            self._reasons[call.site] = "no gradient reaches this layer: nothing before it is trained"

    def _end(self, _model: nn.Module, _args: Any, output: Any) -> None:
        """End a forward, or a failed one, after which there is no `watch`."""
        if self._calls.in_forward:
            self._calls.end_forward()
        forward = self._forward
        if output is None:
            self.disarm()
        elif forward is not None and not self._calls.any_finished and torch.is_grad_enabled():
            for index, x in enumerate(float_tensors(output)):
                if x.requires_grad:
                    x.register_hook(partial(forward.keep_gradient, index))
            self._to_replay.append(forward)

    def _add(self, call: LayerCall, forward: TrainingForward, gradient: Tensor) -> None:
        """Add the rows of one gradient; a failure must not end the user's backward."""
        start = perf_counter()
        try:
            rows = call.rows(gradient)  # (b, T, d)
            counted = forward.counted_tokens(call.stack.name, rows.shape[0], rows.shape[1])
            flat = rows.reshape(-1, rows.shape[-1])  # (b · T, d)
            moments = Moments.of(bare_rows(flat if counted is None else flat[counted.to(flat.device)]))
            before = self.moments.get(call.site)
            self.moments[call.site] = moments if before is None else before + moments
        except Exception as error:
            if self._strict:
                raise
            self._reasons[call.site] = f"{type(error).__name__}: {error}"
        self.seconds += perf_counter() - start


def replay_gradients(model: nn.Module, layout: Layout, forward: TrainingForward) -> Iterator[tuple[LayerCall, Tensor]]:
    """Run a forward again eagerly and yield the gradient of each residual site, from the gradients of its outputs.

    No `.grad` is written; modes, buffers and random numbers are restored. Dropout draws what eager code would have
    drawn, which may differ from what the compiled code drew.

    Raises:
        CaptureError: No block of the model ran.
    """
    hidden: dict[Site, tuple[LayerCall, Tensor]] = {}
    calls = LayerCalls()

    def on_output(call: LayerCall, x: Tensor) -> None:
        hidden[call.site] = (call, x)

    with ExitStack() as hooks, side_effect_free(model), eager():
        calls.hook_forward(model, hooks)
        for stack in layout.stacks:
            calls.hook_blocks(model, stack, hooks, on_output=on_output)
        set_random_states(model, forward.random_states)
        with torch.enable_grad(), _autocast(device_of(model).type, forward.autocast):
            outputs = list(float_tensors(model(*forward.args, **forward.kwargs)))
        if not hidden:
            raise CaptureError("No block ran in the eager replay. Give the tracker the model that is trained.")
        sought = [(call, x) for call, x in hidden.values() if x.requires_grad]
        gradients = torch.autograd.grad(
            [outputs[index] for index in forward.output_gradients],
            [x for _, x in sought],
            list(forward.output_gradients.values()),
            allow_unused=True,
        )
    return ((call, g) for (call, _), g in zip(sought, gradients, strict=True) if g is not None)


def float_tensors(output: Any) -> Iterator[Tensor]:
    """Yield the float tensors of what a model returns, a scalar loss included, always in the same order."""
    if isinstance(output, Tensor):
        if output.is_floating_point():
            yield output
    elif isinstance(output, Mapping):
        for item in output.values():
            yield from float_tensors(item)
    elif isinstance(output, tuple | list):
        for item in output:
            yield from float_tensors(item)


class _CompilationDetector:
    """Notes whether the forward that begins runs under `torch.compile`.

    `detect` must stay visible to the compiler: what it traces sees `is_compiling()` as True, while code that is
    hidden from it, such as the other hooks, sees False. It reads none of its arguments, so it is compiled once for all
    models, and it never breaks a graph.
    """

    def __init__(self) -> None:
        self.is_compiled = False

    def detect(self, _model: nn.Module, _args: Any) -> None:
        self.is_compiled = torch.compiler.is_compiling()


def _compiler_is_loaded() -> bool:
    """Whether anything can have been compiled; loading the compiler takes seconds."""
    return "torch._dynamo" in sys.modules


def _hidden_from_compiler(hook: Callable[..., None]) -> Callable[..., None]:
    if not _compiler_is_loaded():
        return hook
    hidden: Callable[..., None] = torch.compiler.disable(hook)
    return hidden


@contextmanager
def _autocast(kind: str, dtype: torch.dtype | None) -> Iterator[None]:
    with torch.autocast(kind, dtype=dtype, enabled=dtype is not None):
        yield
