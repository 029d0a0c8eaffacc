"""Run a model without side effects: modes, buffers and random numbers are restored afterwards."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from anisoscope.distributed import reshard

_WITH_GENERATORS = ("cuda", "xpu")  # devices with their own random numbers


@contextmanager
def side_effect_free(model: nn.Module) -> Iterator[None]:
    """Restore the model's modes and buffers and all random states on exit, also after an exception or Ctrl-C.

    Gradients and `requires_grad` are not saved: nothing that runs inside may call `backward` or freeze anything.
    """
    modes = [(module, module.training) for module in model.modules()]
    buffers = [(buffer, buffer.detach().clone(), buffer._version) for buffer in model.buffers()]
    try:
        with preserved_random_states(model):
            yield
    finally:
        for module, training in modes:
            module.training = training  # not `model.train()`, which would also reach parts that the user froze
        reshard(model)
        with torch.no_grad():
            for buffer, before, version in buffers:
                if buffer._version != version:  # written in place, such as running means
                    buffer.copy_(before)


@contextmanager
def preserved_random_states(model: nn.Module) -> Iterator[None]:
    """Restore the random states of torch (also on the model's devices), numpy and Python on exit."""
    python, numpy, states = random.getstate(), np.random.get_state(), get_random_states(model)
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        set_random_states(model, states)


def get_random_states(model: nn.Module) -> list[Tensor]:
    """Return torch's random states: of the CPU, then of the model's devices that have their own."""
    return [torch.get_rng_state(), *(generators.get_rng_state(device) for generators, device in _devices(model))]


def set_random_states(model: nn.Module, states: list[Tensor]) -> None:
    """Restore what `get_random_states` returned."""
    torch.set_rng_state(states[0])
    for (generators, device), state in zip(_devices(model), states[1:], strict=True):
        generators.set_rng_state(state, device)


def _devices(model: nn.Module) -> list[tuple[Any, torch.device]]:
    devices = dict.fromkeys(p.device for p in model.parameters())
    return [(torch.get_device_module(device), device) for device in devices if device.type in _WITH_GENERATORS]
