"""Tensors at named sites while a model runs: each site at most once per forward."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from threading import get_ident
from typing import Any

import torch
from torch import Tensor, nn

from anisoscope.distributed import unwrapped
from anisoscope.errors import CaptureError, unknown
from anisoscope.hooks.attention_calls import marked_modules, observe_attention, weighted_heads
from anisoscope.hooks.branches import Branch, BranchCalls, hook_branches
from anisoscope.hooks.find import find_layout
from anisoscope.hooks.layer_calls import LayerCall, LayerCalls
from anisoscope.hooks.layout import LayerRef, Layout, Stack, expand, whole
from anisoscope.hooks.projections import projection
from anisoscope.hooks.routers import routing_of
from anisoscope.hooks.tensors import detached, eager, hidden_input, hidden_state, rows_of, same_tensor
from anisoscope.records import Site
from anisoscope.stats.head_scores import Heads, Scores

Sink = Callable[[Site, Any], None]
LayerAddress = tuple[str, int]  # stack and layer
_ATTENTION_KINDS = ("q", "k", "pattern")
_BRANCHES = ("attn", "mlp")


@dataclass
class CaptureLog:
    """What a capture has seen so far: the number of forwards, and in how many of them each site was seen."""

    forwards: int = 0
    counts: dict[Site, int] = field(default_factory=dict)
    reasons: dict[Site, str] = field(default_factory=dict)  # why a site cannot be seen, if that is known

    def require(self, sites: Iterable[Site | str]) -> None:
        """Raise a `CaptureError` unless each of these sites was seen in every forward."""
        required = dict.fromkeys(whole(Site.parse(site) if isinstance(site, str) else site) for site in sites)
        if not self.forwards:
            raise CaptureError(
                "No forward was seen. Inside the `with`, call the model that is captured, not a part of it."
            )
        missing = [site for site in required if self.counts.get(site, 0) < self.forwards]
        if missing:
            names = ", ".join(map(str, missing[:8])) + (", …" if len(missing) > 8 else "")
            raise CaptureError(f"{names}: not seen in every forward. {self._remedy(missing[0])}")

    def _remedy(self, site: Site) -> str:
        if site in self.reasons:
            return self.reasons[site]
        if site.kind in ("q", "k"):
            return (
                "This attention uses neither the attention interface of transformers nor scaled_dot_product_attention. "
                f"Capture {site.kind}.pre (before rotary embedding) and pattern instead, or pass queries, keys and "
                "weights through nn.Identity children of its module called queries, keys and pattern."
            )
        if site.kind == "pattern":
            return "It calls no known attention function or softmax. Load the model with attn_implementation='eager'."
        if site.kind in ("final", "final.in"):
            return (
                "The norm does not receive the last block's output. Pass layout=find_layout(model, example), "
                "which looks for the norm that does."
            )
        return (
            "Its module was not called: the layer is skipped, or a fused kernel replaces it "
            "(torch.backends.mha.set_fastpath_enabled(False) turns that off). "
            "find_layout(model, example) shows what runs."
        )


@contextmanager
def observe_sites(
    model: nn.Module,
    sites: Sequence[Site | str],
    sink: Sink,
    *,
    layout: Layout | None = None,
    grad: bool = False,
    branches: bool = False,
) -> Iterator[CaptureLog]:
    """Pass the tensors at the given sites to `sink` during every forward of the model inside the `with`.

    Only calls inside a forward of `model` itself count, so blocks that gradient checkpointing runs again in backward
    are not seen twice. Outputs of the model are bit-identical with and without a capture.

    Args:
        model: The model; wrappers such as DistributedDataParallel and `torch.compile` are looked through.
        sites: Sites, or names that `expand` turns into sites.
        sink: Called as `sink(site, x)`. x is detached but not copied, so use it at once. It is (batch, positions,
            width) for the stream, with image grids flattened; (batch, heads, positions, head width) for `q`, `k`,
            `q.pre` and `k.pre`, under the site of the whole layer; for `pattern.i` a `Heads`, or `Scores` if the
            model shows only logits, which `Attention.of` takes; and for `router.i` a `Routing`.
        layout: The model's layout; found from its structure by default.
        grad: Pass tensors that are still part of the graph.
        branches: Pass a `Branch` for `attn.i` and `mlp.i`: their rows with what they add to the residual stream, and
            the stream before that.

    Yields:
        A log of what has been seen; call its `require` at the end.

    Raises:
        CaptureError: The model has none of the sites, or a site is met twice in one forward.

    >>> model = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 8, batch_first=True), 2)
    >>> import torch
    >>> with observe_sites(model, ["resid"], lambda site, x: None) as log:
    ...     _ = model(torch.zeros(1, 3, 8))
    >>> log.require(["resid.0", "resid.1"])
    """
    model = unwrapped(model)
    layout = find_layout(model) if layout is None else layout
    requested = {whole(site) for site in expand(layout, sites)}
    if not requested:
        raise CaptureError(f"{type(model).__name__} has none of the sites {', '.join(map(str, sites))}.")
    log = CaptureLog()
    state = _CaptureState(requested, sink, log, grad=grad, branches=branches)
    with ExitStack() as cleanup:
        for stack in layout.stacks:
            _hook_stack(model, stack, state, cleanup)
        for site in requested:
            if site.kind == "in":
                _hook_input(model, site, state, cleanup)
        _hook_forward(model, state, cleanup)
        cleanup.enter_context(eager())
        if any(site.kind in _ATTENTION_KINDS for site in requested):
            cleanup.enter_context(observe_attention(state))
        yield log


class _CaptureState:
    """What runs at the moment, and the sink for the requested sites."""

    def __init__(self, requested: set[Site], sink: Sink, log: CaptureLog, *, grad: bool, branches: bool) -> None:
        self.requested = requested
        self.sink = sink
        self.log = log
        self.grad = grad
        self.branches = branches
        self.branch_calls: dict[str, BranchCalls] = {}  # of the block that runs, by stack
        self.calls = LayerCalls()
        self.thread = 0  # that runs the forward: other threads may run other models meanwhile
        self.attending: LayerAddress | None = None
        self.shapes: dict[str, torch.Size] = {}  # of the rows that entered the block that runs, by stack
        self.last_output: dict[str, Tensor] = {}  # of the last block, by which the final norm is recognised

    def begin(self) -> None:
        if not self.calls.in_forward:
            self.thread = get_ident()
            self.attending = None
        self.calls.begin_forward()

    def end(self) -> None:
        self.calls.end_forward()
        if not self.calls.in_forward:
            self.last_output.clear()
            self.log.forwards += 1

    def report(self, site: Site, x: Any) -> None:
        """Pass a tensor to the sink if its site is requested; twice in one forward is an error."""
        if site not in self.requested or not self.calls.in_forward:
            return
        self.calls.meet(site)
        self.log.counts[site] = self.log.counts.get(site, 0) + 1
        self.sink(site, x if self.grad else detached(x))

    def report_part(self, kind: str, stack: str, x: Any) -> None:
        """The same for a part of the block that runs in this stack, if one does."""
        if stack in self.calls.running:
            self.report(Site(kind, self.calls.running[stack], stack=stack), x)

    # --- AttentionObserver ---

    def is_attending(self) -> bool:
        return self.attending is not None and self.calls.in_forward and self.thread == get_ident()

    def on_heads(self, heads: Heads, unknown_pattern: str | None) -> None:
        stack, layer = self._attending_layer()
        self.report(Site("q", layer, stack=stack), heads.q)
        self.report(Site("k", layer, stack=stack), heads.k)
        site = Site("pattern", layer, stack=stack)
        if unknown_pattern is None:
            self.report(site, heads)
        else:
            self.log.reasons[site] = unknown_pattern

    def on_scores(self, scores: Scores) -> None:
        stack, layer = self._attending_layer()
        self.report(Site("pattern", layer, stack=stack), scores)

    def _attending_layer(self) -> LayerAddress:
        assert self.attending is not None
        return self.attending


# --- hooks --------------------------------------------------------------------------------------------------------


def _before(module: nn.Module, cleanup: ExitStack, call: Callable[[tuple[Any, ...], dict[str, Any]], None]) -> None:
    """Call with the arguments before each run of a module, until clean-up."""
    hook = module.register_forward_pre_hook(lambda _, args, kwargs: call(args, kwargs), with_kwargs=True)
    cleanup.callback(hook.remove)


def _after(module: nn.Module, cleanup: ExitStack, call: Callable[[Any], None], *, always: bool = False) -> None:
    """Call with the output after each run of a module (`always`: also if it failed), until clean-up."""
    hook = module.register_forward_hook(lambda _module, _args, output: call(output), always_call=always)
    cleanup.callback(hook.remove)


def _hook_forward(model: nn.Module, state: _CaptureState, cleanup: ExitStack) -> None:
    _before(model, cleanup, lambda args, kwargs: state.begin())
    _after(model, cleanup, lambda output: state.end(), always=True)


def _hook_stack(model: nn.Module, stack: Stack, state: _CaptureState, cleanup: ExitStack) -> None:
    """Hook the blocks of one stack, and those of their parts that a requested site needs."""
    requested = [site for site in state.requested if site.stack == stack.name and site.kind != "in"]
    if not requested:
        return
    _hook_blocks(model, stack, state, cleanup)
    parts = {(site.kind, stack.blocks[site.layer]) for site in requested if site.layer is not None}
    if state.branches:
        _hook_branches(model, stack, parts, state, cleanup)
    for kind, path in {(kind, block.part(kind)) for kind, block in parts if kind in _BRANCHES}:
        if not state.branches:
            _hook_sublayer(model.get_submodule(path), kind, stack, state, cleanup)
    for path in {block.part("router") for kind, block in parts if kind == "router"}:
        _hook_router(model, path, stack, state, cleanup)
    for kind, path in {(kind, block.part("attention")) for kind, block in parts if kind in ("q.pre", "k.pre")}:
        _hook_projection(model, path, kind, stack, state, cleanup)
    for path in {block.part("attention") for kind, block in parts if kind in _ATTENTION_KINDS}:
        _hook_attention(model.get_submodule(path), stack, state, cleanup)
    if stack.final is not None and any(site.kind in ("final", "final.in") for site in requested):
        _hook_final(model.get_submodule(stack.final), stack, state, cleanup)


def _hook_blocks(model: nn.Module, stack: Stack, state: _CaptureState, cleanup: ExitStack) -> None:
    """Report the stream before the first block and after every block."""

    def on_input(call: LayerCall, x: Tensor) -> None:
        rows = rows_of(x, None, stack.batch_first)  # (b, T, d)
        state.shapes[stack.name] = rows.shape
        if stack.name in state.branch_calls:
            state.branch_calls[stack.name].begin(x)
        if call.is_first:
            state.report(Site("embed", stack=stack.name), rows)

    def on_output(call: LayerCall, x: Tensor) -> None:
        if not state.calls.in_forward:
            return  # gradient checkpointing runs the block again
        if stack.name in state.branch_calls:
            _report_branches(call, x, state)
        state.report(call.site, call.rows(x))
        if call.is_last_layer:
            state.last_output[stack.name] = x

    state.calls.hook_blocks(model, stack, cleanup, on_input=on_input, on_output=on_output)


def _hook_sublayer(module: nn.Module, kind: str, stack: Stack, state: _CaptureState, cleanup: ExitStack) -> None:
    def leave(output: Any) -> None:
        state.report_part(kind, stack.name, _sequences(hidden_state(output), stack, state))

    _after(module, cleanup, leave)


def _sequences(x: Tensor, stack: Stack, state: _CaptureState) -> Tensor:
    """Return (b, T, d) of hidden states, which may have the tokens of all sequences in one dimension."""
    if x.ndim == 2 and stack.name in state.shapes:
        x = x.reshape(*state.shapes[stack.name][:2], -1)
    return rows_of(x, None, stack.batch_first)


def _hook_branches(
    model: nn.Module, stack: Stack, parts: set[tuple[str, LayerRef]], state: _CaptureState, cleanup: ExitStack
) -> None:
    """Note what the requested branches of each block write; the end of the block reports it."""
    by_block: dict[LayerRef, set[str]] = {}
    for kind, block in parts:
        if kind in _BRANCHES:
            block.part(kind)  # raises if the block does not have it
            by_block.setdefault(block, set()).add(kind)
    if by_block:
        calls = state.branch_calls[stack.name] = BranchCalls()
        for block, kinds in by_block.items():
            hook_branches(model, block, kinds - {"attn"}, calls, cleanup)


def _report_branches(call: LayerCall, x: Tensor, state: _CaptureState) -> None:
    """Report the branches of a block that returned x."""
    for kind, tensors in state.branch_calls[call.stack.name].end(x).items():
        output, written, stream = (None if t is None else _sequences(t.detach(), call.stack, state) for t in tensors)
        assert output is not None
        assert written is not None
        site = Site(kind, call.layer, stack=call.stack.name)
        state.report(site, Branch(output, written, stream))


def _hook_router(model: nn.Module, path: str, stack: Stack, state: _CaptureState, cleanup: ExitStack) -> None:
    def leave(output: Any) -> None:
        if stack.name in state.shapes:
            state.report_part("router", stack.name, routing_of(model, path, output, state.shapes[stack.name][:2]))

    _after(model.get_submodule(path), cleanup, leave)


def _hook_projection(
    model: nn.Module, path: str, kind: str, stack: Stack, state: _CaptureState, cleanup: ExitStack
) -> None:
    source = projection(path, model.get_submodule(path), kind)

    def leave(output: Any) -> None:
        x = rows_of(hidden_state(output), None, stack.batch_first)
        state.report_part(kind, stack.name, source.split(x))

    _after(model.get_submodule(source.path), cleanup, leave)


def _hook_attention(module: nn.Module, stack: Stack, state: _CaptureState, cleanup: ExitStack) -> None:
    """Note when a self-attention layer runs, so that calls of attention functions can be assigned to it."""

    def enter(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if stack.name in state.calls.running:
            state.attending = (stack.name, state.calls.running[stack.name])

    def leave(output: Any) -> None:
        state.attending = None

    _before(module, cleanup, enter)
    _after(module, cleanup, leave)
    if (marked := marked_modules(module)) is not None:
        _hook_marks(*marked, state, cleanup)


def _hook_marks(q: nn.Module, k: nn.Module, pattern: nn.Module, state: _CaptureState, cleanup: ExitStack) -> None:
    """Report marked queries and keys together with the weights that are made from them."""
    passed: dict[str, Tensor] = {}

    def weigh(weights: Tensor) -> None:
        heads = passed.pop("q"), passed.pop("k")
        if state.is_attending():
            state.on_heads(weighted_heads(*heads, weights), None)

    _after(q, cleanup, lambda x: passed.update(q=x))
    _after(k, cleanup, lambda x: passed.update(k=x))
    _after(pattern, cleanup, weigh)


def _hook_final(module: nn.Module, stack: Stack, state: _CaptureState, cleanup: ExitStack) -> None:
    """Report the final norm if its input is what the last block returned (and not, say, a pooled token)."""

    def enter(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        x = hidden_input(args, kwargs)
        if x is not None and same_tensor(x, state.last_output.get(stack.name)):
            state.report(Site("final.in", stack=stack.name), rows_of(x, None, stack.batch_first))
        else:
            state.last_output.pop(stack.name, None)

    def leave(output: Any) -> None:
        if stack.name in state.last_output:
            x = hidden_state(output)
            state.report(Site("final", stack=stack.name), rows_of(x, None, stack.batch_first))

    _before(module, cleanup, enter)
    _after(module, cleanup, leave)


def _hook_input(model: nn.Module, site: Site, state: _CaptureState, cleanup: ExitStack) -> None:
    modules = dict(model.named_modules())
    if site.name not in modules:
        raise unknown("module", site.name, modules)

    def enter(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        x = hidden_input(args, kwargs)
        if x is None:
            state.log.reasons[site] = "Its input holds no float tensor; token ids are not vectors."
        else:
            state.report(site, rows_of(x, None))

    _before(modules[site.name], cleanup, enter)
