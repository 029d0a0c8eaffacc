"""Tensors at named sites while a model runs: hooks inside a `with`, every site at most once a forward."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from threading import get_ident
from typing import Any

import torch
from torch import Tensor, nn

from anisoscope.capture.find import find_layout, unwrap
from anisoscope.capture.layout import Layout, Stack, expand, whole
from anisoscope.capture.queries import listening, marks, projection, weighted_heads
from anisoscope.capture.tensors import eager, hidden_input, hidden_state, rows_of, same_tensor
from anisoscope.errors import CaptureError, unknown
from anisoscope.records import Site
from anisoscope.stats.head_scores import Heads, Scores

Sink = Callable[[Site, Any], None]
Place = tuple[str, int]  # stack and layer
_INNER = ("q", "k", "pattern")


@dataclass
class CaptureLog:
    """What a capture has seen so far: how many forwards, and each site in how many of them."""

    forwards: int = 0
    counts: dict[Site, int] = field(default_factory=dict)
    reasons: dict[Site, str] = field(default_factory=dict)

    def require(self, sites: Iterable[Site | str]) -> None:
        """Silence is an error: each of these sites must have been seen in every forward."""
        wanted = dict.fromkeys(whole(Site.parse(site) if isinstance(site, str) else site) for site in sites)
        if not self.forwards:
            raise CaptureError(
                "no forward was seen; call the very model that was given to capture (not a part of it) inside the with"
            )
        missing = [site for site in wanted if self.counts.get(site, 0) < self.forwards]
        if missing:
            names = ", ".join(map(str, missing[:8])) + (", …" if len(missing) > 8 else "")
            raise CaptureError(f"{names}: not seen in every forward; {self._remedy(missing[0])}")

    def _remedy(self, site: Site) -> str:
        if site in self.reasons:
            return self.reasons[site]
        if site.kind in ("q", "k"):
            return (
                "this attention asks neither the attention interface of transformers nor scaled_dot_product_attention; "
                f"take {site.kind}.pre (before rotary embedding) and pattern instead, or mark them in its module with "
                "nn.Identity children called queries, keys and pattern"
            )
        if site.kind == "pattern":
            return "no attention function or softmax was met there; load the model with attn_implementation='eager'"
        if site.kind in ("final", "final.in"):
            return "the norm was not given the last block's output; give find_layout an example to look for another"
        return (
            "its module was not called: a skipped layer, or a kernel that fuses it away "
            "(torch.backends.mha.set_fastpath_enabled(False)); give find_layout an example to see what runs"
        )


@contextmanager
def capture(
    model: nn.Module, sites: Sequence[Site | str], sink: Sink, *, layout: Layout | None = None
) -> Iterator[CaptureLog]:
    """Call `sink(site, x)` for each of the sites during every forward of the model inside the `with`.

    x is detached, where it is, as it is: (batch, positions, width) for the stream (grids flattened), (batch, heads,
    positions, head width) for `q`, `k`, `q.pre`, `k.pre` under the layer-wide site, and for `pattern.i` a `Heads` (or
    `Scores`, where a model shows only logits) that `Attention.of` takes. Use it at once: it is the model's own memory.
    Strings are expanded by `expand`. Only calls inside a forward of `model` itself count, so what gradient
    checkpointing runs again in backward is not seen twice.

    >>> model = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 8, batch_first=True), 2)
    >>> import torch
    >>> with capture(model, ["resid"], lambda site, x: None) as seen:
    ...     _ = model(torch.zeros(1, 3, 8))
    >>> seen.require(["resid.0", "resid.1"])
    """
    model = unwrap(model)
    layout = find_layout(model) if layout is None else layout
    wanted = {whole(site) for site in expand(layout, sites)}
    if not wanted:
        raise CaptureError(f"none of the sites {', '.join(map(str, sites))} exists in {type(model).__name__}")
    seen = CaptureLog()
    watch = _Watch(wanted, sink, seen)
    with ExitStack() as cleanup:
        for stack in layout.stacks:
            _hook_stack(model, stack, watch, cleanup)
        for site in wanted:
            if site.kind == "in":
                _hook_input(model, site, watch, cleanup)
        _hook_forward(model, watch, cleanup)
        cleanup.enter_context(eager())
        if any(site.kind in _INNER for site in wanted):
            cleanup.enter_context(listening(watch))
        yield seen


class _Watch:
    """What is running at the moment, and which of the wanted sites this forward has shown."""

    def __init__(self, wanted: set[Site], sink: Sink, seen: CaptureLog) -> None:
        self.wanted = wanted
        self.sink = sink
        self.seen = seen
        self.depth = 0  # of nested forwards of the model
        self.thread = 0  # that runs them: other threads may run other models meanwhile
        self.shown: set[Site] = set()
        self.calls: dict[str, int] = {}
        self.layers: dict[str, int] = {}
        self.attending: Place | None = None
        self.shapes: dict[str, torch.Size] = {}
        self.last: dict[str, Tensor] = {}  # the last block's output, for the final norm to be known by

    def begin(self) -> None:
        if self.depth == 0:
            self.thread = get_ident()
            self.shown.clear()
            self.calls.clear()
            self.layers.clear()
            self.attending = None
        self.depth += 1

    def end(self) -> None:
        self.depth -= 1
        if self.depth == 0:
            self.last.clear()
            self.seen.forwards += 1

    def show(self, site: Site, x: Any) -> None:
        """Hand a tensor to the sink if its site is wanted; twice in one forward is an error."""
        if site not in self.wanted or not self.depth:
            return
        if site in self.shown:
            raise CaptureError(
                f"{site} was met twice in one forward, expected once: its module is called repeatedly; "
                "pass layout=find_layout(model, example), which counts the calls"
            )
        self.shown.add(site)
        self.seen.counts[site] = self.seen.counts.get(site, 0) + 1
        self.sink(site, x.detach() if isinstance(x, Tensor) else x)

    def show_here(self, kind: str, stack: str, x: Any) -> None:
        """The same for a kind of the block that runs in this stack, if one does."""
        if stack in self.layers:
            self.show(Site(kind, self.layers[stack], stack=stack), x)

    # --- what attention tells (see queries.Listener) ---

    def attends(self) -> bool:
        return self.attending is not None and self.depth > 0 and self.thread == get_ident()

    def heads(self, heads: Heads, pattern: str | None) -> None:
        stack, layer = self._place()
        self.show(Site("q", layer, stack=stack), heads.q)
        self.show(Site("k", layer, stack=stack), heads.k)
        site = Site("pattern", layer, stack=stack)
        if pattern is None:
            self.show(site, heads)
        else:
            self.seen.reasons[site] = pattern

    def scores(self, scores: Scores) -> None:
        stack, layer = self._place()
        self.show(Site("pattern", layer, stack=stack), scores)

    def _place(self) -> Place:
        assert self.attending is not None
        return self.attending


# --- hooks --------------------------------------------------------------------------------------------------------


def _before(module: nn.Module, cleanup: ExitStack, call: Callable[[tuple[Any, ...], dict[str, Any]], None]) -> None:
    """Call with the arguments before each run of a module, until clean-up."""
    hook = module.register_forward_pre_hook(lambda _, args, kwargs: call(args, kwargs), with_kwargs=True)
    cleanup.callback(hook.remove)


def _after(module: nn.Module, cleanup: ExitStack, call: Callable[[Any], None], *, always: bool = False) -> None:
    """Call with the output after each run of a module (`always`: also of one that failed), until clean-up."""
    hook = module.register_forward_hook(lambda _module, _args, output: call(output), always_call=always)
    cleanup.callback(hook.remove)


def _hook_forward(model: nn.Module, watch: _Watch, cleanup: ExitStack) -> None:
    _before(model, cleanup, lambda args, kwargs: watch.begin())
    _after(model, cleanup, lambda output: watch.end(), always=True)


def _hook_stack(model: nn.Module, stack: Stack, watch: _Watch, cleanup: ExitStack) -> None:
    """Hooks on the blocks of one stack, and on those of their parts that a wanted site needs."""
    wanted = [site for site in watch.wanted if site.stack == stack.name and site.kind != "in"]
    if not wanted:
        return
    for path, layer in {block.path: layer for layer, block in enumerate(stack.blocks)}.items():
        _hook_block(model.get_submodule(path), stack, layer, watch, cleanup)
    parts = {(site.kind, stack.blocks[site.layer]) for site in wanted if site.layer is not None}
    for kind, path in {(kind, block.part(kind)) for kind, block in parts if kind in ("attn", "mlp")}:
        _hook_sublayer(model.get_submodule(path), kind, stack, watch, cleanup)
    for kind, path in {(kind, block.part("attention")) for kind, block in parts if kind in ("q.pre", "k.pre")}:
        _hook_projection(model, path, kind, stack, watch, cleanup)
    for path in {block.part("attention") for kind, block in parts if kind in _INNER}:
        _hook_attention(model.get_submodule(path), stack, watch, cleanup)
    if stack.final is not None and any(site.kind in ("final", "final.in") for site in wanted):
        _hook_final(model.get_submodule(stack.final), stack, watch, cleanup)


def _hook_block(module: nn.Module, stack: Stack, layer: int, watch: _Watch, cleanup: ExitStack) -> None:
    """The stream around one block; where blocks are shared, the i-th call of any of them is layer i."""

    def enter(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        calls = watch.calls.get(stack.name, 0)
        watch.calls[stack.name] = calls + 1
        watch.layers[stack.name] = calls if stack.shared else layer
        x = hidden_input(args, kwargs)
        if x is None:
            return
        x = rows_of(x, None, stack.batch_first)  # (batch, positions, width)
        watch.shapes[stack.name] = x.shape
        if calls == 0:
            watch.show(Site("embed", stack=stack.name), x)

    def leave(output: Any) -> None:
        here = watch.layers.pop(stack.name, None)
        if here is None or not watch.depth:
            return
        if here >= len(stack.blocks):
            raise CaptureError(
                f"the shared blocks were called more than the {len(stack.blocks)} times expected; "
                "pass layout=find_layout(model, example), which counts the calls"
            )
        x, width = hidden_state(output), stack.blocks[here].width
        rows = rows_of(x, width, stack.batch_first)  # (batch, positions, width)
        site = Site("resid", here, stack=stack.name)
        if width is not None and rows.shape[-1] != width:
            raise CaptureError(
                f"{site} is {rows.shape[-1]} wide, expected {width} from the configuration; "
                "pass layout=find_layout(model, example), which measures widths"
            )
        watch.show(site, rows)
        if here == len(stack.blocks) - 1:
            watch.last[stack.name] = x

    _before(module, cleanup, enter)
    _after(module, cleanup, leave)


def _hook_sublayer(module: nn.Module, kind: str, stack: Stack, watch: _Watch, cleanup: ExitStack) -> None:
    def leave(output: Any) -> None:
        x = hidden_state(output)
        if x.ndim == 2 and stack.name in watch.shapes:  # tokens of all sequences in one dimension
            x = x.reshape(*watch.shapes[stack.name][:2], -1)
        watch.show_here(kind, stack.name, rows_of(x, None, stack.batch_first))

    _after(module, cleanup, leave)


def _hook_projection(model: nn.Module, path: str, kind: str, stack: Stack, watch: _Watch, cleanup: ExitStack) -> None:
    source = projection(path, model.get_submodule(path), kind)

    def leave(output: Any) -> None:
        x = rows_of(hidden_state(output).detach(), None, stack.batch_first)
        watch.show_here(kind, stack.name, source.split(x))

    _after(model.get_submodule(source.path), cleanup, leave)


def _hook_attention(module: nn.Module, stack: Stack, watch: _Watch, cleanup: ExitStack) -> None:
    """Know when a self-attention layer runs, for what its attention function tells."""

    def enter(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if stack.name in watch.layers:
            watch.attending = (stack.name, watch.layers[stack.name])

    def leave(output: Any) -> None:
        watch.attending = None

    _before(module, cleanup, enter)
    _after(module, cleanup, leave)
    if (marked := marks(module)) is not None:
        _hook_marks(*marked, watch, cleanup)


def _hook_marks(q: nn.Module, k: nn.Module, pattern: nn.Module, watch: _Watch, cleanup: ExitStack) -> None:
    """Queries and keys wait for the weights that are made from them."""
    passed: dict[str, Tensor] = {}

    def weigh(weights: Tensor) -> None:
        heads = passed.pop("q"), passed.pop("k")
        if watch.attends():
            watch.heads(weighted_heads(*heads, weights), None)

    _after(q, cleanup, lambda x: passed.update(q=x))
    _after(k, cleanup, lambda x: passed.update(k=x))
    _after(pattern, cleanup, weigh)


def _hook_final(module: nn.Module, stack: Stack, watch: _Watch, cleanup: ExitStack) -> None:
    """The final norm, when it is given what the last block returned (and not, say, a pooled token)."""

    def enter(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        x = hidden_input(args, kwargs)
        if x is not None and same_tensor(x, watch.last.get(stack.name)):
            watch.show(Site("final.in", stack=stack.name), rows_of(x, None, stack.batch_first))
        else:
            watch.last.pop(stack.name, None)

    def leave(output: Any) -> None:
        if stack.name in watch.last:
            x = hidden_state(output)
            watch.show(Site("final", stack=stack.name), rows_of(x, None, stack.batch_first))

    _before(module, cleanup, enter)
    _after(module, cleanup, leave)


def _hook_input(model: nn.Module, site: Site, watch: _Watch, cleanup: ExitStack) -> None:
    modules = dict(model.named_modules())
    if site.name not in modules:
        raise unknown("module", site.name, modules)

    def enter(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        x = hidden_input(args, kwargs)
        if x is None:
            watch.seen.reasons[site] = "its input holds no float tensor (token ids are no vectors)"
        else:
            watch.show(site, rows_of(x, None))

    _before(modules[site.name], cleanup, enter)
