"""Bound what a configuration may build by what its weight files hold."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.modules.module import register_module_module_registration_hook as on_module

from anisoscope.errors import InputError

# A module without parameters (an activation, a dropout, a rotary embedding) stands next to one or two that have some.
_MODULES_PER_TENSOR = 64
_FREE_MODULES = 8192  # a model of any published depth whose weights are fused into few tensors


@contextmanager
def bounded_construction(source: str, tensors: int | None) -> Iterator[None]:
    """Refuse to build a model with far more modules than the stored tensors can fill.

    Building stops as soon as the bound is exceeded, so that a crafted number in a configuration costs neither time nor
    memory, whatever its name. Only modules that this thread registers count.

    Args:
        source: The name of the model in the message.
        tensors: The number of stored tensors; None if it is not known, which sets no bound.

    Raises:
        InputError: The model would have too many modules.
    """
    if tensors is None:
        yield
        return
    limit = _FREE_MODULES + _MODULES_PER_TENSOR * tensors
    thread, count = threading.get_ident(), 0

    def counted(parent: torch.nn.Module, name: str, module: Any) -> None:
        nonlocal count
        if threading.get_ident() != thread:
            return
        count += 1
        if count > limit:
            raise InputError(
                f"The configuration of {source} describes more than {limit:,} modules, but its weights have "
                f"{tensors:,} tensors. Check that both belong to the same model."
            )

    handle = on_module(counted)
    try:
        yield
    finally:
        handle.remove()
