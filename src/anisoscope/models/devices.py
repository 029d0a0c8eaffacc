"""Where a model runs and in which precision."""

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
    """The device that is asked for, else the first GPU, else the CPU."""
    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        chosen = torch.device(device)
    except RuntimeError as error:
        raise InputError(f"{device!r} is not a device; give cpu, cuda, cuda:1 or mps") from error
    if chosen.type == "cuda" and (chosen.index or 0) >= torch.cuda.device_count():
        raise InputError(f"device {device} is not there: {torch.cuda.device_count()} CUDA devices; use cpu")
    return chosen


def choose_dtype(asked: str | torch.dtype | None, stored: torch.dtype | None, device: torch.device) -> torch.dtype:
    """The dtype to load weights in: as asked, else as stored, float32 where that is not known.

    A CPU gets float32 for stored halves: there they are slow, less exact, and on some processors an illegal
    instruction. When half precision is asked for it is tried first.
    """
    if asked is None:
        return torch.float32 if stored is None or (device.type == "cpu" and stored in HALVES) else stored
    dtype = _dtype(asked)
    if dtype in HALVES and device.type == "cpu" and (reason := half_fails(dtype)) is not None:
        raise InputError(f"{_name(dtype)} does not work on this CPU ({reason}); use float32")
    return dtype


@cache
def half_fails(dtype: torch.dtype) -> str | None:
    """Why this CPU cannot multiply matrices of a half precision, or None; tried once in a process that may die."""
    trial = f"import torch; a = torch.ones(64, 64, dtype={dtype}); assert float((a @ a)[0, 0]) == 64"
    done = subprocess.run([sys.executable, "-c", trial], capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return None
    if done.returncode < 0:
        return f"the trial was killed by signal {-done.returncode}"
    return (done.stderr.strip().splitlines() or ["the trial failed"])[-1]


def _dtype(asked: str | torch.dtype) -> torch.dtype:
    if isinstance(asked, torch.dtype):
        return asked
    if asked not in DTYPES:
        raise unknown("dtype", asked, DTYPES)
    return DTYPES[asked]


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
