"""Choose the device and the precision of a model."""

from __future__ import annotations

import subprocess
import sys
from functools import cache

import torch

from anisoscope.errors import InputError, unknown

DTYPES = {
    "float64": torch.float64,
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "fp32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
}
HALVES = (torch.float16, torch.bfloat16)


def choose_device(device: str | torch.device | None) -> torch.device:
    """Return the requested device, else the first GPU, else the CPU."""
    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        chosen = torch.device(device)
    except RuntimeError as error:
        raise InputError(f"{device!r} is not a device. Use cpu, cuda, cuda:1 or mps.") from error
    if chosen.type == "meta":
        raise InputError("Tensors on the device 'meta' have no values. Use cpu, cuda, cuda:1 or mps.")
    if chosen.type == "cuda" and (chosen.index or 0) >= torch.cuda.device_count():
        raise InputError(
            f"Device {device} does not exist: this machine has {torch.cuda.device_count()} CUDA devices. Use cpu."
        )
    return chosen


def choose_dtype(requested: str | torch.dtype | None, stored: torch.dtype | None, device: torch.device) -> torch.dtype:
    """Return the dtype to load weights in: as requested, else as stored, else float32.

    On a CPU, weights stored in half precision are loaded as float32: half precision is slow and less exact there, and
    an illegal instruction on some processors. Half precision that is requested is tried out first.

    Raises:
        InputError: if the dtype is unknown or does not work on this CPU.
    """
    if requested is None:
        return torch.float32 if stored is None or (device.type == "cpu" and stored in HALVES) else stored
    dtype = _dtype(requested)
    if dtype in HALVES and device.type == "cpu" and (reason := half_fails(dtype)) is not None:
        raise InputError(f"{_name(dtype)} does not work on this CPU ({reason}). Use float32.")
    return dtype


@cache
def half_fails(dtype: torch.dtype) -> str | None:
    """Return why this CPU cannot multiply matrices in half precision; None if it can. Tried in another process."""
    trial = f"import torch; a = torch.ones(64, 64, dtype={dtype}); assert float((a @ a)[0, 0]) == 64"
    done = subprocess.run([sys.executable, "-c", trial], capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return None
    if done.returncode < 0:
        return f"the trial was killed by signal {-done.returncode}"
    return (done.stderr.strip().splitlines() or ["the trial failed"])[-1]


def _dtype(requested: str | torch.dtype) -> torch.dtype:
    if isinstance(requested, torch.dtype):
        return requested
    if requested not in DTYPES:
        raise unknown("dtype", requested, DTYPES)
    return DTYPES[requested]


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
