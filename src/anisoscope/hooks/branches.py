"""What a branch of a block adds to the residual stream, and the stream that it adds to.

Blocks arrange their norms in three ways, which the tensors of one call show. In a pre-norm block the stream of a branch
is the input of the norm that feeds it. In a post-norm block, which ends in a norm, the stream is the output of the norm
before the branch. A norm that follows a branch, in a block that does not end in one, is part of what is written.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from anisoscope.hooks.layout import LayerRef
from anisoscope.hooks.parts import inside, is_norm
from anisoscope.hooks.tensors import hidden_input, hidden_state, same_tensor


@dataclass(frozen=True)
class Branch:
    """The output of a branch, (b, T, d), what of it is added to the stream, and the stream before that, if known."""

    rows: Tensor
    written: Tensor
    stream: Tensor | None


@dataclass(frozen=True)
class _NormCall:
    """One call of a norm: its input and output, and whether it is part of the attention module."""

    entered: Tensor
    left: Tensor
    in_attention: bool


@dataclass
class _BranchCall:
    """One call of a branch. Copies, because blocks add to tensors in place; `output` itself tells what follows it."""

    output: Tensor
    rows: Tensor  # a copy of the output
    stream: Tensor | None  # if the block does not end in a norm
    stream_after: Tensor | None  # if it does
    normed: Tensor | None = None  # the output of a norm that follows


@dataclass
class BranchCalls:
    """What happened in the block that runs: the norms that were called, and the branches."""

    entered: Tensor | None = None  # the hidden state that entered the block
    norms: list[_NormCall] = field(default_factory=list)
    branches: dict[str, _BranchCall] = field(default_factory=dict)  # by kind

    def begin(self, x: Tensor | None) -> None:
        """Start a block with the hidden state that enters it."""
        self.entered = x
        self.norms.clear()
        self.branches.clear()

    def norm(self, entered: Tensor, left: Tensor, in_attention: bool) -> None:
        """Note a call of a norm."""
        self.norms.append(_NormCall(entered, left, in_attention))
        for branch in self.branches.values():
            if same_tensor(entered, branch.output) and branch.normed is None:
                branch.normed = left.detach().clone()

    def branch(self, kind: str, given: Tensor | None, output: Tensor) -> None:
        """Note a call of a branch with its input, if it is known."""
        streams = [self.entered, self.entered]
        if kind == "mlp":
            streams = [self._fed_stream(given), self._normed_stream()]
        copies = [None if x is None else x.detach().clone() for x in streams]
        self.branches[kind] = _BranchCall(output, output.detach().clone(), *copies)

    def end(self, x: Tensor) -> dict[str, tuple[Tensor, Tensor, Tensor | None]]:
        """Return output, written part and stream of every branch of a block that returned x, and forget them."""
        after = any(same_tensor(norm.left, x) for norm in self.norms)
        found = {}
        for kind, branch in self.branches.items():
            written = branch.rows if after or branch.normed is None else branch.normed
            found[kind] = branch.rows, written, branch.stream_after if after else branch.stream
        self.begin(None)
        return found

    def _fed_stream(self, given: Tensor | None) -> Tensor | None:
        """The stream before a feed-forward layer: what enters the norm that feeds it, or the layer itself."""
        if given is not None and self._is_state(given):
            fed_by = [norm.entered for norm in self.norms if same_tensor(norm.left, given)]
            return fed_by[-1] if fed_by else given
        attn = self.branches["attn"].output if "attn" in self.branches else None
        streams = [
            norm.entered
            for norm in self.norms
            if not norm.in_attention and self._is_state(norm.entered) and not same_tensor(norm.entered, attn)
        ]
        return streams[-1] if streams else self.entered

    def _normed_stream(self) -> Tensor | None:
        """The stream before a feed-forward layer of a block that ends in a norm: what the last norm returned."""
        streams = [norm.left for norm in self.norms if self._is_state(norm.left)]
        return streams[-1] if streams else self.entered

    def _is_state(self, x: Tensor) -> bool:
        """Whether a tensor has the size of the hidden state: norms of queries and keys have not."""
        return self.entered is not None and x.numel() == self.entered.numel() and x.shape[-1] == self.entered.shape[-1]


def hook_branches(model: nn.Module, block: LayerRef, kinds: set[str], calls: BranchCalls, cleanup: ExitStack) -> None:
    """Note the norms and the branches of one block, until clean-up."""
    attention = block.attention or block.attn or block.path + ".attention"
    for path, module in model.get_submodule(block.path).named_modules(prefix=block.path):
        if is_norm(module):
            _hook_norm(module, inside(path, attention), calls, cleanup)
    for kind in ("attn", *kinds):  # the output of attention also tells which norms follow it
        path = block.attn if kind == "attn" else block.mlp
        if path is not None:
            _hook_branch(model.get_submodule(path), kind, calls, cleanup)


def _hook_norm(module: nn.Module, in_attention: bool, calls: BranchCalls, cleanup: ExitStack) -> None:
    def leave(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        x = hidden_input(args, kwargs)
        if x is not None and isinstance(output, Tensor):
            calls.norm(x, output, in_attention)

    cleanup.callback(module.register_forward_hook(leave, with_kwargs=True).remove)


def _hook_branch(module: nn.Module, kind: str, calls: BranchCalls, cleanup: ExitStack) -> None:
    def leave(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        calls.branch(kind, hidden_input(args, kwargs), hidden_state(output))

    cleanup.callback(module.register_forward_hook(leave, with_kwargs=True).remove)
