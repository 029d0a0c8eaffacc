"""The tensors that modules pass around: which one is the hidden state, and what its rows are."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor

from anisoscope.errors import CaptureError


def hidden_state(output: Any) -> Tensor:
    """Return the hidden state in what a block returns: the tensor itself, or the first float tensor of a tuple or dict.

    Raises:
        CaptureError: There is none.
    """
    state = next(_tensors(output), None)
    if state is None:
        raise CaptureError(
            f"A block returned a {type(output).__name__} without a float tensor, but hidden states were expected."
        )
    return state


def hidden_input(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Tensor | None:
    """Return the first float tensor in a module's arguments; among keywords, `hidden_states` comes first."""
    return next(_tensors((*args, kwargs.get("hidden_states"), dict(kwargs))), None)


def rows_of(x: Tensor, width: int | None, batch_first: bool = True) -> Tensor:
    """Return a view (batch, positions, width) of hidden states.

    Args:
        x: (b, T, d), (T, b, d) if not `batch_first`, (T, d) or an image grid (b, d, …) or (b, …, d).
        width: d, which tells where the channels of a grid are; None: they come first.
        batch_first: The order of the first two axes.

    Raises:
        CaptureError: x is a nested tensor.

    >>> rows_of(torch.zeros(2, 3, 4, 5), None).shape
    torch.Size([2, 20, 3])
    """
    if x.is_nested:
        raise CaptureError(
            "nn.TransformerEncoder packed the padded batch into a nested tensor, whose rows have no positions. "
            "Build it with enable_nested_tensor=False."
        )
    if x.ndim > 3:
        channels_last = width is not None and x.shape[1] != width and x.shape[-1] == width
        return x.flatten(1, -2) if channels_last else x.flatten(2).transpose(1, 2)
    if x.ndim == 3:
        return x if batch_first else x.transpose(0, 1)
    return x[None]


def same_tensor(a: Any, b: Tensor | None) -> bool:
    """Return whether two values are the same tensor: the same memory and the same shape."""
    return isinstance(a, Tensor) and b is not None and a.shape == b.shape and a.data_ptr() == b.data_ptr()


def detached(x: Any) -> Any:
    """Return a tensor, or the inputs of an attention layer, without their graph."""
    return _changed(x, Tensor.detach)


def copied(x: Any) -> Any:
    """Return a copy of a tensor, or of the inputs of an attention layer."""
    return _changed(x, Tensor.clone)


def _changed(x: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Apply a function to a tensor or to each tensor of a dataclass."""
    if isinstance(x, Tensor):
        return change(x)
    values = {field.name: getattr(x, field.name) for field in fields(x)}
    return replace(x, **{name: change(value) for name, value in values.items() if isinstance(value, Tensor)})


@contextmanager
def eager() -> Iterator[None]:
    """Run compiled code eagerly inside the `with`: hooks added after `torch.compile` would never fire."""
    if "torch._dynamo" not in sys.modules:  # nothing can have been compiled, and loading the compiler takes seconds
        yield
        return
    with torch.compiler.set_stance("force_eager"):
        yield


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        if value.is_floating_point() and value.ndim > 1:
            yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, tuple | list):
        for item in value:
            yield from _tensors(item)
