"""Looking without being seen: what runs inside leaves the model and every source of random numbers as they were."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from anisoscope.distributed import reshard

_WITH_GENERATORS = ("cuda", "xpu")  # devices with random numbers of their own


@contextmanager
def side_effect_free(model: nn.Module) -> Iterator[None]:
    """Restores modes, buffers and random states whatever happens inside, an exception or Ctrl-C included.

    Gradients and `requires_grad` need no care: nothing here calls `backward` or freezes anything.
    """
    modes = [(module, module.training) for module in model.modules()]
    buffers = [(buffer, buffer.detach().clone(), buffer._version) for buffer in model.buffers()]
    try:
        with random_states(model):
            yield
    finally:
        for module, training in modes:
            module.training = training  # each its own: `model.train()` would wake frozen parts
        reshard(model)
        with torch.no_grad():
            for buffer, before, version in buffers:
                if buffer._version != version:  # written to in place, such as running means
                    buffer.copy_(before)


@contextmanager
def random_states(model: nn.Module) -> Iterator[None]:
    """Random numbers of torch (on the model's devices too), numpy and Python go on as if nothing had been drawn."""
    python, numpy, drawn = random.getstate(), np.random.get_state(), get_random_states(model)
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        set_random_states(model, drawn)


def get_random_states(model: nn.Module) -> list[Tensor]:
    """The states of torch's random numbers: of the CPU, then of the model's devices that have their own."""
    return [torch.get_rng_state(), *(generators.get_rng_state(device) for generators, device in _devices(model))]


def set_random_states(model: nn.Module, states: list[Tensor]) -> None:
    """Go back to what `get_random_states` gave."""
    torch.set_rng_state(states[0])
    for (generators, device), state in zip(_devices(model), states[1:], strict=True):
        generators.set_rng_state(state, device)


def _devices(model: nn.Module) -> list[tuple[Any, torch.device]]:
    devices = dict.fromkeys(p.device for p in model.parameters())
    return [(torch.get_device_module(device), device) for device in devices if device.type in _WITH_GENERATORS]
