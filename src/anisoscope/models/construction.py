"""Bound what a configuration may build by what its weight files hold."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.nn.modules.module import register_module_buffer_registration_hook as on_buffer
from torch.nn.modules.module import register_module_module_registration_hook as on_module
from torch.nn.modules.module import register_module_parameter_registration_hook as on_parameter

from anisoscope.errors import InputError

# A module without parameters (an activation, a dropout, a rotary embedding) stands next to one or two that have some.
_MODULES_PER_TENSOR = 64
_FREE_MODULES = 8192  # a model of any published depth whose weights are fused into few tensors
# Weights of two bits become float32, matrices may be shared by two modules, and up to three classes are tried.
_BYTES_PER_BYTE = 64
_FREE_BYTES = 64 << 20  # masks and tables of positions, which no file holds


@contextmanager
def bounded_construction(source: str, tensors: int | None, files: Sequence[Path] = ()) -> Iterator[None]:
    """Refuse to build a model with far more modules, or far larger ones, than the stored tensors can fill.

    Building stops as soon as a bound is exceeded, so that a crafted number in a configuration costs neither time nor
    memory, whatever its name. Transformers builds on the meta device, so nothing is allocated yet. Only what this
    thread registers counts.

    Args:
        source: The name of the model in the message.
        tensors: The number of stored tensors; None if it is not known, which does not bound the number of modules.
        files: The weight files; none sets no bound on bytes.

    Raises:
        InputError: The model would have too many or too large modules.
    """
    most_modules = None if tensors is None else _FREE_MODULES + _MODULES_PER_TENSOR * tensors
    stored = sum(file.stat().st_size for file in files)
    most_bytes = _FREE_BYTES + _BYTES_PER_BYTE * stored if files else None
    thread, modules, size = threading.get_ident(), 0, 0

    def count_module(parent: torch.nn.Module, name: str, module: Any) -> None:
        nonlocal modules
        modules += threading.get_ident() == thread
        if most_modules is not None and modules > most_modules:
            raise InputError(
                f"The configuration of {source} describes more than {most_modules:,} modules, but its weights have "
                f"{tensors:,} tensors. Check that both belong to the same model."
            )

    def count_bytes(parent: torch.nn.Module, name: str, x: Any) -> None:
        nonlocal size
        if isinstance(x, torch.Tensor) and x.is_meta and threading.get_ident() == thread:
            size += x.numel() * x.element_size()
        if most_bytes is not None and size > most_bytes:
            raise InputError(
                f"The configuration of {source} describes more than {most_bytes >> 20:,} MB of weights, but its files "
                f"have {stored:,} bytes. Check that both belong to the same model."
            )

    handles = [on_module(count_module), on_parameter(count_bytes), on_buffer(count_bytes)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
